"""Offsets: positions of readers in a stream. Opaque, sortable tokens for clients; byte positions inside the server.

The first half of a token is the segment, which is always zero until retention needs it. Cursors are numbers that
clients echo, so that caches on the way can merge equal requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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


_EPOCH_MS: Final = 1_728_432_000_000  # 2024-10-09T00:00:00Z
_INTERVAL_MS: Final = 20_000
_MAX_JITTER_SECONDS: Final = 3600


def next_cursor(echoed: str | None, now: int, jitter: Callable[[int, int], int] = random.randint) -> int:
    """Returns the current interval, or a later one than the client's if the client's is not in the past."""
    interval = (now - _EPOCH_MS) // _INTERVAL_MS
    if echoed is None or not echoed.isascii() or not echoed.isdigit() or len(echoed) > 16:
        return interval
    theirs = int(echoed)
    if theirs < interval:
        return interval
    return theirs + -(-jitter(1, _MAX_JITTER_SECONDS) * 1000 // _INTERVAL_MS)
