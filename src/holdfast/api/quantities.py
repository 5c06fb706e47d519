"""Parses sizes such as `512M` and durations such as `2h`, as people write them in options and files."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS: Final = "kmgt"
_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


def parse_size(text: str) -> int:
    """Return bytes. A number without a unit is bytes. Units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write it as 512M, 2G or 1.5G")
    number, unit = match.groups()
    return int(float(number) * 1024 ** (_UNITS.index(unit.lower()) + 1 if unit else 0))


def parse_duration(text: str) -> int:
    """Return seconds. A number without a unit is seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not a duration: write it as 90s, 30m, 2h or 1d12h")
    return sum(int(count) * unit for count, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True) if count)
