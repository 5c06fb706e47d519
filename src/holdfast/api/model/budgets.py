"""Costs of models and budgets for them. Costs are in dollars, times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from holdfast.api.document import Document, Limits


class BudgetScope(StrEnum):
    """What a budget is for."""

    RUN = "run"
    THREAD = "thread"
    """All runs of a thread."""
    TREE = "tree"
    """A thread and all threads below it."""
    DAY = "day"
    """Everything on this server in a day, in UTC."""


BudgetCost = Annotated[float, Limits(ge=0, le=1_000_000, allow_inf_nan=False)]
BudgetTokens = Annotated[int, Limits(ge=0, le=1_000_000_000_000, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Document):
    """At most this much. A budget of neither is no budget."""

    cost: BudgetCost | None = None
    """In dollars. Models whose price is unknown are then refused."""
    tokens: BudgetTokens | None = None
    """Input and output, cached or not."""
    warn_at: Annotated[float, Limits(gt=0, le=1, allow_inf_nan=False)] = 0.8
    """The share after which the thread is told."""

    @property
    def is_empty(self) -> bool:
        return self.cost is None and self.tokens is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Document):
    """The sum of calls of models."""

    key: str = ""
    """The run, thread, model or day of these calls; empty for all."""
    calls: int = 0
    input: int = 0
    """Tokens that were neither read from nor written to a cache."""
    output: int = 0
    """Tokens, with reasoning."""
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: float = 0
    """Of the calls whose price is known, in dollars."""
    unpriced: int = 0
    """Calls whose price is unknown. If there are any, `cost` is not the whole cost."""
    estimated: int = 0
    """Calls whose usage was estimated, because the answer was cut off or reported none."""

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport(Document):
    total: Cost
    by: tuple[Cost, ...]
    """The same calls by model, run, thread or day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRecord(Document):
    """A budget, and what has been spent of it."""

    scope: BudgetScope
    subject: str
    """The thread, or the root of the tree; empty for the budget of a day."""
    budget: Budget
    cost: float
    """Spent so far, in dollars, by calls whose price is known."""
    tokens: int
    unpriced: int = 0
    """Calls whose price is unknown. If there are any, `cost` is not all that was spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetList(Document):
    budgets: tuple[BudgetRecord, ...]
