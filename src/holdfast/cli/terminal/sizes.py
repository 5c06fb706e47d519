"""Parses sizes such as `512M` and `2G`, and describes them, as in `1.2 GB`. Units are powers of 1024."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS: Final = "kmgt"


def parse_size(text: str) -> int:
    """Return bytes. A number without a unit is bytes."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write it as 512M, 2G or 1.5G")
    number, unit = match.groups()
    return int(float(number) * 1024 ** (_UNITS.index(unit.lower()) + 1 if unit else 0))


def describe_size(size: int) -> str:
    """Describe a size in the largest unit that fits, with one decimal below 10."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KB", "MB", "GB", "TB"):
        amount /= 1024
        if amount < 1023.95 or unit == "TB":
            return f"{amount:.{1 if amount < 9.95 else 0}f}".removesuffix(".0") + f" {unit}"
    raise AssertionError("unreachable")
