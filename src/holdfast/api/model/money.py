"""Writes costs for people. A cost that is not known is never written as nothing."""

from __future__ import annotations


def describe_cost(dollars: float) -> str:
    if 0 < dollars < 0.0001:
        return f"${dollars:.9f}".rstrip("0")
    if 0 < dollars < 0.01:
        return f"${dollars:.4f}"
    return f"${dollars:,.2f}"


def describe_spent(dollars: float, unpriced: int) -> str:
    """Returns what calls have cost. `dollars` is the cost of those with a price, `unpriced` how many have none."""
    if not unpriced:
        return describe_cost(dollars)
    return f"at least {describe_cost(dollars)}" if dollars else "unknown"


def describe_in_full(dollars: float, unpriced: int) -> str:
    """Like `describe_spent`, with the number of calls whose cost is not known."""
    missing = f", {describe_calls(unpriced)} without a price" if unpriced else ""
    return describe_spent(dollars, unpriced) + missing


def describe_calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number:,} calls"
