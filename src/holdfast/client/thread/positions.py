"""Where a reader of a thread stands: an offset of the server, and how many entries past it the reader has already.

The server gives out offsets between batches, not between entries. A reader that stops inside a batch keeps its place
as `OFFSET+COUNT`; forks of the protocol count the same way (`Stream-Fork-Sub-Offset`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEGINNING: Final = "-1"
NOW: Final = "now"


@dataclass(frozen=True, slots=True)
class Position:
    offset: str = BEGINNING
    past: int = 0
    """Entries after the offset that are done with."""

    def __str__(self) -> str:
        return f"{self.offset}+{self.past}" if self.past else self.offset


def parse_position(text: str | None) -> Position:
    """The position that a text stands for; None is the beginning."""
    if text is None:
        return Position()
    offset, plus, past = text.rpartition("+")
    if not plus:
        return Position(text)
    if not offset or offset == NOW or not (past.isascii() and past.isdigit()):
        raise ValueError(f"{text!r} is not a place on a thread: use an offset, OFFSET+COUNT, {BEGINNING} or {NOW}")
    return Position(offset, int(past))
