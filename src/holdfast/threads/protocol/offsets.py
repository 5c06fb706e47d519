"""Offsets: positions of readers in a stream. Opaque, sortable tokens for clients; byte positions inside the server.

The first half of a token is the segment, which is always zero until retention needs it.
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
    """Returns the byte position of a token from `format_offset`. The caller handles sentinels."""
    if len(token) == _LENGTH and token.startswith(_SEGMENT):
        digits = token[17:]
        if digits.isascii() and digits.isdigit():
            return int(digits)
    raise InvalidRequest(f"invalid offset {token[:64]!r}: use a Stream-Next-Offset value, -1 or now")
