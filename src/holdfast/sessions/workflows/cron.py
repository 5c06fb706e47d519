"""Cron expressions: five fields, in UTC. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.api.errors import InvalidRequest

_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_LONGEST: Final = 200
_YEARS: Final = 8
"""How far the next time is searched: 29 February comes at least every eight years."""
_SHORT: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    any_day: bool
    any_weekday: bool

    def next_after(self, now: int) -> int | None:
        """Returns the next time after `now`, both in UTC milliseconds, or None if there is none."""
        at = datetime.fromtimestamp(now // 60_000 * 60, UTC) + timedelta(minutes=1)
        end = at + timedelta(days=366 * _YEARS)
        while at < end:
            if at.month not in self.months:
                at = (at.replace(day=1, hour=0, minute=0) + timedelta(days=32)).replace(day=1)
            elif not self._has_day(at):
                at = at.replace(hour=0, minute=0) + timedelta(days=1)
            elif at.hour not in self.hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self.minutes:
                at += timedelta(minutes=1)
            else:
                return int(at.timestamp()) * 1000
        return None

    def _has_day(self, at: datetime) -> bool:
        """As cron does: if both the day and the weekday are limited, either is enough."""
        day, weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return day and weekday
        return day or weekday


def parse_cron(text: str) -> Cron:
    """Raises `InvalidRequest`."""
    expression = _SHORT.get(text.strip(), text)
    parts = expression.split()
    if len(parts) != len(_FIELDS) or len(text) > _LONGEST:
        raise InvalidRequest(f"cron {text[:80]!r} must have five fields: minute hour day month weekday")
    sets = [_parse_field(part, *about, text) for part, about in zip(parts, _FIELDS, strict=True)]
    weekdays = frozenset(each % 7 for each in sets[4])
    cron = Cron(sets[0], sets[1], sets[2], sets[3], weekdays, parts[2].startswith("*"), parts[4].startswith("*"))
    if cron.next_after(0) is None:
        raise InvalidRequest(f"cron {text[:80]!r} never comes")
    return cron


def _parse_field(part: str, name: str, lowest: int, highest: int, text: str) -> frozenset[int]:
    found: set[int] = set()
    for each in part.split(","):
        span, slash, step = each.partition("/")
        first, dash, last = span.partition("-")
        numbers = (first if span != "*" else str(lowest), last if dash else first, step if slash else "1")
        if span == "*":
            numbers = (str(lowest), str(highest), numbers[2])
        if not all(number.isascii() and number.isdigit() and len(number) <= 4 for number in numbers):
            raise InvalidRequest(f"{each[:40]!r} is no {name} in cron {text[:80]!r}")
        begin, end, jump = map(int, numbers)
        if slash and not dash and span != "*":
            end = highest
        if not lowest <= begin <= end <= highest or jump < 1:
            raise InvalidRequest(f"{each[:40]!r} is no {name} in cron {text[:80]!r}: {lowest} to {highest}")
        found.update(range(begin, end + 1, jump))
    return frozenset(found)
