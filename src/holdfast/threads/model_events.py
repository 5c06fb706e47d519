"""Model signals on a thread: calls, budgets and failovers. Their payloads, and how a call is read back.

Only data and pure functions. The model gateway writes these entries with the server's seal. What a thread has cost is
the sum of its sealed calls: an entry without a seal, or one that came with a fork, is shown and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PREFIX: Final = "signal.model."
CALL: Final = "signal.model.call"
BUDGET: Final = "signal.model.budget"
FAILOVER: Final = "signal.model.failover"

NANO: Final = 1_000_000_000
"""Costs are counted in billionths of a dollar, as integers, so that sums are exact."""
MOST_TOKENS: Final = 100_000_000
"""Of one call. A provider that reports more is not believed."""
MOST_NANOS: Final = 100_000 * NANO
_MAX_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one answer."""

    input: int = 0
    """Without what was read from or written to a cache."""
    output: int = 0
    """With reasoning."""
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    """The part of `cache_write` that is kept for an hour, which costs more."""
    reasoning: int = 0
    """The part of `output` that the model did not show."""

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a model, as its entry tells."""

    id: str
    """Of the entry."""
    run: str
    model: str
    """`NAME/MODEL`."""
    at: int
    """UTC milliseconds of its end."""
    status: int
    ms: int
    usage: Usage
    nanos: int | None
    """The cost in billionths of a dollar. None: the price is unknown."""
    estimated: bool


def call(
    *,
    run: str,
    model: str,
    api: str,
    status: int,
    ms: int,
    usage: Usage,
    nanos: int | None,
    estimated: bool,
    skipped: int = 0,
) -> dict[str, Any]:
    """`skipped` counts earlier calls without usage, such as refused ones, that got no entry of their own."""
    payload: dict[str, Any] = {
        "type": CALL,
        "run": run,
        "model": model[:_MAX_TEXT],
        "api": api,
        "status": status,
        "ms": ms,
        "input": usage.input,
        "output": usage.output,
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
    }
    if usage.cache_write_1h:
        payload["cache_write_1h"] = usage.cache_write_1h
    if usage.reasoning:
        payload["reasoning"] = usage.reasoning
    payload["cost"] = None if nanos is None else dollars(nanos)
    if estimated:
        payload["estimated"] = True
    if skipped:
        payload["skipped"] = skipped
    return payload


def budget(*, run: str, scope: str, subject: str, state: str, unit: str, limit: float, spent: float) -> dict[str, Any]:
    """`state` is `warning` or `reached`, `unit` is `cost` (dollars) or `tokens`."""
    return {
        "type": BUDGET,
        "run": run,
        "scope": scope,
        "subject": subject,
        "state": state,
        "unit": unit,
        "limit": limit,
        "spent": spent,
    }


def failover(
    *, run: str, model: str, to: str | None, reason: str, status: int, message: str, pause_ms: int
) -> dict[str, Any]:
    """`to` is None if no other model was left. `pause_ms` is how long the model is not tried again."""
    return {
        "type": FAILOVER,
        "run": run,
        "model": model[:_MAX_TEXT],
        "to": None if to is None else to[:_MAX_TEXT],
        "reason": reason,
        "status": status,
        "message": message[:_MAX_TEXT],
        "pause_ms": pause_ms,
    }


def call_of(entry: Mapping[str, Any]) -> ModelCall | None:
    """Returns the call that a sealed entry records, or None if it is malformed. Never raises."""
    payload = entry["payload"]
    run, model = payload.get("run"), payload.get("model")
    if payload.get("type") != CALL or not isinstance(run, str) or not isinstance(model, str):
        return None
    usage = Usage(
        _count(payload, "input"),
        _count(payload, "output"),
        _count(payload, "cache_read"),
        _count(payload, "cache_write"),
        _count(payload, "cache_write_1h"),
        _count(payload, "reasoning"),
    )
    return ModelCall(
        entry["id"],
        run,
        model,
        entry["ts"],
        _count(payload, "status"),
        _count(payload, "ms"),
        usage,
        nanos_of(payload.get("cost")),
        payload.get("estimated") is True,
    )


def dollars(nanos: int) -> float:
    return round(nanos / NANO, 9)


def nanos_of(cost: object) -> int | None:
    """Returns a cost in dollars as billionths, or None if it is not a cost: negative, endless, or no number."""
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not math.isfinite(cost) or cost < 0:
        return None
    return MOST_NANOS if cost >= MOST_NANOS / NANO else round(cost * NANO)


def _count(payload: Mapping[str, Any], name: str) -> int:
    value = payload.get(name)
    return min(value, MOST_TOKENS) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
