"""What a whole tree of recursion may spend: calls of a model, tokens, money and time. One budget, shared by all of it.

Decisions only: nothing here waits or calls anybody, and the clock is passed in.
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
    """Dollars for a million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit."""

    calls: int | None = 50
    """Of the model, in the whole tree."""
    tokens: int | None = None
    """Read and written, in the whole tree."""
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
    """Executions that a child may take for its answer."""
    delegates: int = 8
    """Children that one execution may ask for."""
    price: Price | None = None
    """Where the provider does not say what a call cost."""

    def __post_init__(self) -> None:
        for name in ("calls", "tokens", "cost", "seconds", "depth", "iterations", "delegates"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InvalidInterpreter(f"a limit is 0 or more: {name}={value!r}", hint="None is for no limit")
        for name in ("call_seconds", "child_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInterpreter(f"{name}={getattr(self, name)!r} leaves no time", hint="give seconds above 0")


@dataclass(frozen=True, slots=True)
class Spent:
    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    """Calls of which nobody knows what they cost."""


def decide(limits: Limits, spent: Spent, seconds: float, calls: int) -> str | None:
    """Why so many more calls may not be made; None: they may. `seconds`: since the start."""
    if limits.calls is not None and spent.calls + calls > limits.calls:
        left = max(0, limits.calls - spent.calls)
        wanted = "this call" if calls == 1 else f"these {calls} calls"
        return (
            f"of {limits.calls} calls of the model {left} are left, too few for {wanted}: "
            f"{'ask fewer at once, or ' if left and calls > 1 else ''}go on in Python with what you have"
        )
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        return f"all {limits.tokens} tokens are spent: go on in Python with what you have"
    if limits.cost is not None and spent.cost >= limits.cost:
        return f"all ${limits.cost:g} are spent: go on in Python with what you have"
    if limits.cost is not None and spent.unpriced:
        return (
            f"there is a limit of ${limits.cost:g}, and nobody knows what a call of this model costs: "
            "give its price, or a limit of tokens instead"
        )
    if limits.seconds is not None and seconds >= limits.seconds:
        return f"the {limits.seconds:g} s for all of this are over: finish with what you have"
    return None


class Budget:
    """Shared: by an interpreter, its children and theirs, whichever threads they live in."""

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
        """Since its start."""
        return self._clock() - self._began

    @property
    def seconds_left(self) -> float | None:
        return None if self.limits.seconds is None else max(0.0, self.limits.seconds - self.seconds)

    def claim(self, calls: int = 1) -> None:
        """All of these calls, or none: they count from now on. Raises `BudgetExceeded`."""
        with self._lock:
            why = decide(self.limits, self._spent, self.seconds, calls)
            if why is not None:
                raise BudgetExceeded(why, hint="whoever made the interpreter can give it more")
            self._spent = replace(self._spent, calls=self._spent.calls + calls)

    def give_back(self, calls: int) -> None:
        """Calls that were claimed and never made."""
        with self._lock:
            self._spent = replace(self._spent, calls=max(0, self._spent.calls - calls))

    def spend(self, input_tokens: int, output_tokens: int, cost: float | None) -> float | None:
        """What a call took. Calls that are under way at once may go past a limit together. Returns what it cost."""
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
        """So long, or what is left of the tree's time."""
        left = self.seconds_left
        return seconds if left is None else min(seconds, left)

    def check_time(self) -> None:
        """Raises `BudgetExceeded`."""
        why = decide(replace(self.limits, calls=None, tokens=None, cost=None), self._spent, self.seconds, 0)
        if why is not None:
            raise BudgetExceeded(why, hint="whoever made the interpreter can give it more")
