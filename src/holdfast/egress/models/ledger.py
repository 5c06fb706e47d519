"""The ledger: what has been spent in each scope, and what calls in progress hold.

The truth is on the threads. An account is loaded from there when a call needs it, is exact while calls use it, and can
be forgotten after that. A call holds an estimate before it begins, and settles what it really took at its end.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.api.model.budgets import BudgetScope
from holdfast.egress.models.budgets import NOTHING, Amount
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RowFilter, SpendingFilter

_REMEMBERED: Final = 10_000
_MOST_TASKS: Final = 1000

Key = tuple[BudgetScope, str]
Load = Callable[[BudgetScope, str], Awaitable[Amount]]
"""Returns what the threads say was spent in a scope."""


@dataclass(slots=True)
class Account:
    """What was spent and is held in one scope."""

    key: Key
    spent: Amount = NOTHING
    held: Amount = NOTHING
    users: int = 0
    is_loaded: bool = False
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set and replaced whenever something is settled."""


class Ledger:
    """All accounts. Used on one event loop; nothing but loading awaits."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._accounts: OrderedDict[Key, Account] = OrderedDict()

    async def open(self, keys: Sequence[Key]) -> tuple[Account, ...]:
        """Returns accounts that are loaded, and stay until `close`."""
        accounts = tuple(self._pin(key) for key in keys)
        try:
            for account in accounts:
                if not account.is_loaded:
                    async with account.loading:
                        if not account.is_loaded:
                            account.spent += await self._load(*account.key)
                            account.is_loaded = True
        except BaseException:
            self.close(accounts)
            raise
        return accounts

    def close(self, accounts: Sequence[Account]) -> None:
        for account in accounts:
            account.users -= 1
        while len(self._accounts) > _REMEMBERED:
            idle = next((key for key, each in self._accounts.items() if not each.users), None)
            if idle is None:
                return
            del self._accounts[idle]

    def hold(self, accounts: Sequence[Account], amount: Amount) -> None:
        for account in accounts:
            account.held += amount

    def settle(self, accounts: Sequence[Account], held: Amount, spent: Amount) -> None:
        """Replace what a call held by what it took."""
        for account in accounts:
            account.held -= held
            account.spent += spent
            account.changed.set()
            account.changed = asyncio.Event()

    def _pin(self, key: Key) -> Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key)
        self._accounts.move_to_end(key)
        account.users += 1
        return account


def load_from(projection: Projection) -> Load:
    """Returns what reads accounts from the rows of threads."""

    async def load(scope: BudgetScope, subject: str) -> Amount:
        wanted = [_filter(scope, subject)]
        if scope is BudgetScope.RUN:
            wanted += [SpendingFilter(tree=task) for task in await _delegated_by(projection, subject)]
        total = NOTHING
        for each in wanted:
            [spent] = await projection.spending(each)
            total += Amount(spent.nanos, spent.tokens, spent.unpriced)
        return total

    return load


async def _delegated_by(projection: Projection, run: str) -> list[str]:
    """Returns the tasks that a run has delegated."""
    found = await projection.run(run)
    if found is None:
        return []
    rows = await projection.rows(RowFilter(parent=found.thread, archived=None, limit=_MOST_TASKS))
    return [row.id for row in rows if row.runs.delegation is not None and row.runs.delegation.run == run]


def _filter(scope: BudgetScope, subject: str) -> SpendingFilter:
    match scope:
        case BudgetScope.RUN:
            return SpendingFilter(runs=(subject,))
        case BudgetScope.THREAD:
            return SpendingFilter(threads=(subject,))
        case BudgetScope.TREE:
            return SpendingFilter(tree=subject)
        case BudgetScope.DAY:
            return SpendingFilter(since=start_of_day(subject))


def day_of(now: int) -> str:
    """Returns the day of a time (UTC milliseconds), as `2026-11-17`."""
    return datetime.datetime.fromtimestamp(now / 1000, datetime.UTC).date().isoformat()


def start_of_day(day: str) -> int:
    """Returns UTC milliseconds."""
    begins = datetime.datetime.combine(datetime.date.fromisoformat(day), datetime.time(), datetime.UTC)
    return int(begins.timestamp() * 1000)
