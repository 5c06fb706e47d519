"""Parses durations such as `90s`, `2h` and `1d12h`, and describes them, as in `3 min`."""

from __future__ import annotations

from holdfast.api.quantities import parse_duration

__all__ = ["describe_duration", "parse_duration"]


def describe_duration(seconds: float) -> str:
    """Describe a duration in whole numbers of the largest unit that fits."""
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h"
    return f"{int(seconds // 86400)} d"
