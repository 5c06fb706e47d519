"""The budget of a whole tree of interpreters: calls of a model, tokens, money and time.

Only decisions: nothing here waits or makes a call, and the clock is passed in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.api.errors.interpreters import BudgetExceeded, InvalidInterpreter

_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit."""

    calls: int | None = 50
    """Calls of the model, in the whole tree."""
    tokens: int | None = None
    """Input and output tokens, in the whole tree."""
    cost: float | None = None
    """In dollars, in the whole tree."""
    seconds: float | None = None
    """From the start of the budget, for the whole tree."""
    call_seconds: float = 60.0
    """For one call of the model, or of a tool."""
    child_seconds: float = 900.0
    """For one child, from its start to its answer."""
    depth: int = 2
    """Levels of children below the root."""
    iterations: int = 30
    """Executions of one child."""
    delegates: int = 8
    """Children that one execution may request."""
    price: Price | None = None
    """Used if the provider does not report the cost of a call."""

    def __post_init__(self) -> None:
        for name in ("calls", "tokens", "cost", "seconds", "depth", "iterations", "delegates"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InvalidInterpreter(f"the limit {name}={value!r} is below 0", hint="give 0 or more, or None")
        for name in ("call_seconds", "child_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInterpreter(f"{name}={getattr(self, name)!r} leaves no time", hint="give a number above 0")


@dataclass(frozen=True, slots=True)
class Spent:
    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    """Calls whose cost is unknown."""


def decide(limits: Limits, spent: Spent, seconds: float, calls: int) -> str | None:
    """Return why this many more calls are not allowed, or None. `seconds` is the time since the start."""
    if limits.calls is not None and spent.calls + calls > limits.calls:
        left = max(0, limits.calls - spent.calls)
        wanted = "this call" if calls == 1 else f"these {calls} calls"
        return (
            f"{left} of {limits.calls} model calls are left, too few for {wanted}: "
            f"{'ask fewer at once, or ' if left and calls > 1 else ''}continue in Python with what you have"
        )
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        return f"all {limits.tokens} tokens are spent: continue in Python with what you have"
    if limits.cost is not None and spent.cost >= limits.cost:
        return f"all ${limits.cost:g} are spent: continue in Python with what you have"
    if limits.cost is not None and spent.unpriced:
        return (
            f"the limit is ${limits.cost:g}, but the cost of a call of this model is unknown: "
            "set its price, or a limit of tokens instead"
        )
    if limits.seconds is not None and seconds >= limits.seconds:
        return f"the time limit of {limits.seconds:g} s is over: finish with what you have"
    return None


class Budget:
    """Shared by all interpreters of a tree, in any thread."""

    def __init__(self, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._began = clock()
        self._spent = Spent()
        self._lock = threading.Lock()

    @property
    def spent(self) -> Spent:
        return self._spent

    @property
    def seconds(self) -> float:
        """Seconds since its start."""
        return self._clock() - self._began

    @property
    def seconds_left(self) -> float | None:
        return None if self.limits.seconds is None else max(0.0, self.limits.seconds - self.seconds)

    def claim(self, calls: int = 1) -> None:
        """Reserve all of these calls or none. Raises `BudgetExceeded`."""
        with self._lock:
            why = decide(self.limits, self._spent, self.seconds, calls)
            if why is not None:
                raise BudgetExceeded(why, hint="the creator of the interpreter can raise its limits")
            self._spent = replace(self._spent, calls=self._spent.calls + calls)

    def give_back(self, calls: int) -> None:
        """Release calls that were claimed and never made."""
        with self._lock:
            self._spent = replace(self._spent, calls=max(0, self._spent.calls - calls))

    def spend(self, input_tokens: int, output_tokens: int, cost: float | None) -> float | None:
        """Record the usage of a call. Returns its cost. Concurrent calls may exceed a limit together."""
        price = self.limits.price
        if cost is None and price is not None:
            cost = (input_tokens * price.input + output_tokens * price.output) / _MILLION
        with self._lock:
            self._spent = replace(
                self._spent,
                tokens=self._spent.tokens + input_tokens + output_tokens,
                cost=self._spent.cost + (cost or 0.0),
                unpriced=self._spent.unpriced + (cost is None),
            )
        return cost

    def time_for(self, seconds: float) -> float:
        """The smaller of `seconds` and the time that the tree has left."""
        left = self.seconds_left
        return seconds if left is None else min(seconds, left)

    def check_time(self) -> None:
        """Raises `BudgetExceeded`."""
        why = decide(replace(self.limits, calls=None, tokens=None, cost=None), self._spent, self.seconds, 0)
        if why is not None:
            raise BudgetExceeded(why, hint="the creator of the interpreter can raise its limits")
