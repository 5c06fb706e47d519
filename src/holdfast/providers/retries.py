"""When a request to the API of a cloud is repeated, and after which pause. Pure functions."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

TRIES: Final = 4
PASSING: Final = frozenset({500, 502, 503, 504})
"""Statuses of failures that may pass. Whether the request was carried out is not known."""
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 20.0


def pause_before(attempt: int, retry_after: float | None, jitter: float) -> float | None:
    """Returns the seconds before the next attempt, or None if that would take too long. `jitter` is from 0 to 1."""
    if retry_after is not None:
        return None if retry_after > _LONGEST_PAUSE else retry_after
    return min(_FIRST_PAUSE * (1 << attempt), _LONGEST_PAUSE) * (0.5 + jitter / 2)


def read_retry_after(text: str | None, now: float) -> float | None:
    """Returns the seconds of a `Retry-After` header, which holds a number or a date."""
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError):
        return None
