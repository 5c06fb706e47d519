"""Offsets: where in a stream a reader stands. To clients an opaque, sortable token; inside, a byte position.

The first half of the token is the segment, always zero until retention needs it.
"""

from __future__ import annotations

from typing import Final

from holdfast.api.errors import InvalidRequest

BEGINNING: Final = "-1"
NOW: Final = "now"
_SEGMENT: Final = "0000000000000000_"
_LENGTH: Final = 33


def format_offset(position: int) -> bytes:
    return b"0000000000000000_%016d" % position


def format_offset_text(position: int) -> str:
    return f"{_SEGMENT}{position:016d}"


def parse_offset(token: str) -> int:
    """The byte position of a token that `format_offset` made; sentinels are the caller's business."""
    if len(token) == _LENGTH and token.startswith(_SEGMENT):
        digits = token[17:]
        if digits.isascii() and digits.isdigit():
            return int(digits)
    raise InvalidRequest(
        f"offset {token[:64]!r} is not one this server gave out: use a Stream-Next-Offset value, -1 or now"
    )
