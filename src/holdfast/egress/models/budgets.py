"""Budgets for models: which there are, and the decisions about them, which are pure.

Budgets of threads, trees and days are settings, in a store. The budget of a run is an option of its launch, on its
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Literal, Protocol, Self

import orjson

from holdfast.api.errors import NotFound
from holdfast.api.errors.models import InvalidModel
from holdfast.api.ids import now_ms
from holdfast.api.model.budgets import Budget, BudgetScope
from holdfast.api.outcomes import out_of_budget
from holdfast.threads.model_events import NANO, dollars

_MOST: Final = 10_000

Unit = Literal["cost", "tokens"]


@dataclass(frozen=True, slots=True)
class Amount:
    """Money and tokens."""

    nanos: int = 0
    """Billionths of a dollar."""
    tokens: int = 0
    unpriced: int = 0
    """Calls whose price is unknown. If there are any, `nanos` is not all that was spent."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.nanos + other.nanos, self.tokens + other.tokens, self.unpriced + other.unpriced)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.nanos - other.nanos, self.tokens - other.tokens, self.unpriced - other.unpriced)


NOTHING: Final = Amount()


@dataclass(frozen=True, slots=True)
class Limit:
    """A budget that applies to a call."""

    scope: BudgetScope
    subject: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class Crossing:
    """A budget that is used up, or nearly."""

    limit: Limit
    unit: Unit
    most: int
    """The budget, in the unit."""
    spent: int

    def message(self, run: str) -> str:
        """Returns the refusal for a run."""
        spent, most = describe(self.unit, self.spent), describe(self.unit, self.most)
        is_above = self.limit.scope is BudgetScope.RUN and self.limit.subject != run
        return out_of_budget("parent" if is_above else self.limit.scope.value, spent, most)

    @property
    def share(self) -> float:
        return self.spent / self.most if self.most else 1.0


def describe(unit: Unit, number: int) -> str:
    if unit == "tokens":
        return f"{number:,} tokens"
    # What is less than a ten-thousandth is not nothing.
    return f"${dollars(number):.9f}".rstrip("0") if 0 < number < NANO // 10_000 else f"${dollars(number):,.4f}"


def find_reached(limits: Iterable[tuple[Limit, Amount]]) -> Crossing | None:
    """Returns the first budget of which nothing is left. Each comes with what counts against it."""
    for limit, amount in limits:
        for unit, most, spent in _units(limit.budget, amount):
            if spent >= most:
                return Crossing(limit, unit, most, spent)
    return None


def find_warnings(limits: Iterable[tuple[Limit, Amount]]) -> list[Crossing]:
    """Returns the budgets of which more has been spent than should pass in silence."""
    return [
        Crossing(limit, unit, most, spent)
        for limit, amount in limits
        for unit, most, spent in _units(limit.budget, amount)
        if spent >= most * limit.budget.warn_at
    ]


def _units(budget: Budget, amount: Amount) -> list[tuple[Unit, int, int]]:
    found: list[tuple[Unit, int, int]] = []
    if budget.cost is not None:
        found.append(("cost", round(budget.cost * NANO), amount.nanos))
    if budget.tokens is not None:
        found.append(("tokens", budget.tokens, amount.tokens))
    return found


class BudgetStore(Protocol):
    """The budgets that were set on a server. What `put` and `remove` have returned from is on disk."""

    async def load_all(self) -> dict[tuple[str, str], str]:
        """Returns JSON by scope and subject."""
        ...

    async def put(self, scope: str, subject: str, budget: str, now: int) -> None: ...

    async def remove(self, scope: str, subject: str) -> bool:
        """Remove a budget. Returns whether there was one."""
        ...


class Budgets:
    """The budgets of threads, trees and days, in a store and in memory. `async with` loads them."""

    def __init__(
        self,
        store: BudgetStore,
        *,
        clock: Callable[[], int] = now_ms,
        day_ceiling: Callable[[], Budget | None] = lambda: None,
    ) -> None:
        """`day_ceiling` is the budget of a day that the operator has set, which the budgets here cannot exceed."""
        self._day_ceiling = day_ceiling
        self._store = store
        self._clock = clock
        self._known: dict[tuple[BudgetScope, str], Budget] = {}
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        for (scope, subject), text in (await self._store.load_all()).items():
            self._known[BudgetScope(scope), subject] = Budget.from_json(orjson.loads(text))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does not close the store, which its owner closes."""

    def all(self) -> Mapping[tuple[BudgetScope, str], Budget]:
        return dict(self._known)

    def find(self, scope: BudgetScope, subject: str = "") -> Budget | None:
        found = self._known.get((scope, subject))
        ceiling = self._day_ceiling() if scope is BudgetScope.DAY else None
        if ceiling is None or ceiling.cost is None:
            return found
        if found is None:
            return ceiling
        return found if found.cost is not None and found.cost <= ceiling.cost else replace(found, cost=ceiling.cost)

    async def put(self, scope: BudgetScope, subject: str, budget: Budget) -> None:
        """Set a budget. `subject` is the thread, and empty for a day."""
        if scope is BudgetScope.RUN:
            raise InvalidModel("a run gets its budget when it is launched", hint="holdfast run --budget DOLLARS")
        if budget.is_empty:
            raise InvalidModel("a budget needs a cost or a number of tokens", hint="give --cost or --tokens")
        async with self._changing:
            key = (scope, subject)
            if key not in self._known and len(self._known) >= _MOST:
                raise InvalidModel(f"there are {_MOST} budgets already", hint="remove budgets that are not needed")
            await self._store.put(scope.value, subject, orjson.dumps(budget.to_json()).decode(), self._clock())
            self._known[key] = budget

    async def remove(self, scope: BudgetScope, subject: str) -> None:
        async with self._changing:
            if not await self._store.remove(scope.value, subject):
                raise NotFound(f"there is no budget of {scope.value} {subject}".rstrip(), hint="holdfast budget list")
            self._known.pop((scope, subject), None)
