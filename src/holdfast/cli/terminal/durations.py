"""Parses durations such as `90s`, `2h` and `1d12h`, and describes them, as in `3 min`."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


def parse_duration(text: str) -> int:
    """Return seconds. A number without a unit is seconds."""
    match = _FORM.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not a duration: write it as 90s, 30m, 2h or 1d12h")
    return sum(int(count) * unit for count, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True) if count)


def describe_duration(seconds: float) -> str:
    """Describe a duration in whole numbers of the largest unit that fits."""
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h"
    return f"{int(seconds // 86400)} d"
