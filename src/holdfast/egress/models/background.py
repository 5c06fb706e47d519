"""Sees whether a request may ask for an answer in the background. Pure.

Such an answer ends after its request: it reports no usage, and goes on if the agent leaves. A sign of it only raises
what an answer without usage is charged for, so the look may be mistaken in one direction: it never misses one.
"""

from __future__ import annotations

from typing import Final

_SIGNS: Final = (
    b'"background"',
    rb"\u006",  # letters that are escaped, of which the name may be made
    rb"\u007",
    b"\0",  # JSON of two or four bytes for each letter
)
_OVERLAP: Final = max(map(len, _SIGNS)) - 1


class BackgroundLook:
    """For one request: feed it every piece of the body, in order."""

    def __init__(self) -> None:
        self.is_possible = False
        self._tail = b""

    def feed(self, piece: bytes) -> None:
        if self.is_possible:
            return
        seam = self._tail + piece[:_OVERLAP]
        self.is_possible = any(sign in seam or sign in piece for sign in _SIGNS)
        self._tail = (self._tail + piece)[-_OVERLAP:] if len(piece) < _OVERLAP else piece[-_OVERLAP:]
