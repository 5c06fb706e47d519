"""Times of entries as calendar times. Pure.

Whoever writes an entry chooses its time, and older threads have times that no calendar has: a program that formats one
must not fail on it.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Final

LAST: Final = 253_402_300_799_999
"""UTC milliseconds of the end of the year 9999."""
_DAY: Final = 86_400_000


def calendar_time(milliseconds: float, zone: tzinfo | None = None) -> datetime:
    """Returns a time in a zone, or in that of this machine. A time beyond the calendar becomes its last day but one: on
    the last one, some zones are in the next year.
    """
    within = min(max(milliseconds, 0), LAST - _DAY)
    return datetime.fromtimestamp(within / 1000, UTC).astimezone(zone)
