"""Parses sizes such as `512M` and `2G`, and describes them, as in `1.2 GB`. Units are powers of 1024."""

from __future__ import annotations

from holdfast.api.quantities import parse_size

__all__ = ["describe_size", "parse_size"]


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
