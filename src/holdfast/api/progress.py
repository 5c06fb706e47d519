"""How long work, such as pulling an image or moving a box, reports its progress, one step at a time.

The receiver decides how to show it.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        """A step begins. `total` is the amount of work, in bytes or items, if it is known."""

    def advance(self, amount: int) -> None:
        """This much more of the total is done."""

    def output(self, data: bytes) -> None:
        """A command of the step printed this."""

    def end(self, summary: str = "") -> None:
        """The step is done."""

    def skip(self, step: str, detail: str = "") -> None:
        """A step is not needed, because it was done before."""


class Silent:
    """Shows nothing."""

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
