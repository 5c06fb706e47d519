"""Cursors: values that clients echo, so that caches on the way can merge equal requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

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
