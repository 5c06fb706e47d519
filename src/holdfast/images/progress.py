"""How a build reports its progress, one step at a time. Implementations decide how to show it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        """A step begins. `total` is the amount of work if known: bytes, or items."""

    def advance(self, amount: int) -> None:
        """This much more of the total is done."""

    def output(self, data: bytes) -> None:
        """Output of a command of the step."""

    def end(self, summary: str = "") -> None:
        """The step is done."""

    def skip(self, step: str, detail: str = "") -> None:
        """A step that need not be run, because its result is cached."""


class Silent:
    """Reports nothing."""

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        return None

    def advance(self, amount: int) -> None:
        return None

    def output(self, data: bytes) -> None:
        return None

    def end(self, summary: str = "") -> None:
        return None

    def skip(self, step: str, detail: str = "") -> None:
        return None
