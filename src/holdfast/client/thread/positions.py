"""The position of a reader on a thread: an offset of the server, and how many entries after it have been read.

The server returns offsets between batches, not between entries. The position of a reader that stops inside a batch is
`OFFSET+COUNT`; forks in the protocol count the same way (`Stream-Fork-Sub-Offset`).
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
    """How many entries after the offset have been read."""

    def __str__(self) -> str:
        return f"{self.offset}+{self.past}" if self.past else self.offset


def parse_position(text: str | None) -> Position:
    """Parse a position. None is the beginning of the thread."""
    if text is None:
        return Position()
    offset, plus, past = text.rpartition("+")
    if not plus:
        return Position(text)
    if not offset or offset == NOW or not (past.isascii() and past.isdigit()):
        raise ValueError(f"{text!r} is not a position on a thread: use an offset, OFFSET+COUNT, {BEGINNING} or {NOW}")
    return Position(offset, int(past))
