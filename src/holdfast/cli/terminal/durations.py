"""Parses durations such as `90s`, `2h` and `1d12h`, and describes them, as in `3 min`."""

from __future__ import annotations

import math

from holdfast.api.quantities import parse_duration

__all__ = ["describe_duration", "describe_time_left", "parse_duration"]


def describe_duration(seconds: float) -> str:
    """Describe a duration in whole numbers of the largest unit that fits."""
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h"
    return f"{int(seconds // 86400)} d"


def describe_time_left(seconds: float) -> str:
    """Describe how long something still lasts. A week that has just begun is 7 d, and the last second is 1 s."""
    for unit in (86400, 3600, 60):
        if seconds > unit:
            return describe_duration(math.ceil(seconds / unit) * unit)
    return describe_duration(math.ceil(seconds))
