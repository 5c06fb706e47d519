"""How a build tells what it is doing. One step at a time; whoever shows it decides what that looks like."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        """A step begins. `total` is how much there is to do, where that is known: bytes, or things."""

    def advance(self, amount: int) -> None:
        """So much more of the total is done."""

    def output(self, data: bytes) -> None:
        """What a command of the step prints."""

    def end(self, summary: str = "") -> None:
        """The step is done."""

    def skip(self, step: str, detail: str = "") -> None:
        """A step that need not be done: it was, before."""


class Silent:
    """Tells nobody."""

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
