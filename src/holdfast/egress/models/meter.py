"""The meter: admits calls of models within their budgets, charges them, and writes them on their threads.

A call is admitted while what is spent and held is below every budget that applies. It then holds an estimate, so that
many calls at once cannot all pass: each of those that did can take more than it held, by its own size at most.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from holdfast.api.model.budgets import Budget, BudgetScope
from holdfast.api.model.models import Api
from holdfast.egress.models.budgets import Amount, Budgets, Crossing, Limit, find_reached, find_warnings
from holdfast.egress.models.ledger import Account, Key, Ledger, Load, day_of
from holdfast.egress.models.model import ModelChoice
from holdfast.egress.models.prices import Prices
from holdfast.egress.models.usage import EXPECTED_OUTPUT, Answer, Measured, charged_usage, estimate_input
from holdfast.threads import model_events
from holdfast.threads.model_events import Usage, dollars
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

_UNKNOWN_SIZE: Final = 128 * 1024
"""Bytes of a request that does not say its length."""
_WAIT_SECONDS: Final = 60.0
"""How long a call waits for calls in progress to show whether there is something left for it."""
_QUIET_MS: Final = 1000
"""A run's calls without usage, such as refused ones, are recorded this often."""
_REMEMBERED: Final = 1000


@dataclass(frozen=True, slots=True)
class Terms:
    """What applies to the calls of one run, or of a caller that has no run."""

    thread: str | None
    """None: the call belongs to no thread. Only the budget of the day applies to it."""
    run: str
    """The run, or a name for the caller."""
    trees: tuple[str, ...] = ()
    """The thread and the threads above it. Each may have a budget for itself and everything below it."""
    fallbacks: tuple[str, ...] = ()
    """Models (`NAME/MODEL`) to use if the run's own gives no answer, in order."""
    budget: Budget | None = None
    """Of the run."""
    above: tuple[tuple[str, Budget | None], ...] = ()
    """The runs that have delegated this one, the nearest first, with their budgets. What it uses counts for them."""


class OverBudget(Exception):
    """A call is not admitted. The text is for the agent."""


class Journal(Protocol):
    """Writes sealed entries on threads."""

    async def append(self, thread: str | None, payload: dict[str, Any], id: str | None = None) -> None:
        """Returns when the entry is on disk. An entry that cannot be written is logged.

        Without a thread, the entry is written on the one for calls that belong to no thread.
        """
        ...


@dataclass(slots=True)
class _Quiet:
    until: int = 0
    skipped: int = 0


class Meter:
    def __init__(
        self,
        prices: Prices,
        budgets: Budgets,
        load: Load,
        journal: Journal,
        *,
        clock: Callable[[], int],
        ticks: Callable[[], int],
    ) -> None:
        """`clock` returns UTC milliseconds, `ticks` those of a monotonic clock."""
        self.prices = prices
        self.budgets = budgets
        self.journal = journal
        self._ledger = Ledger(load)
        self._clock = clock
        self._ticks = ticks
        self._quiet: OrderedDict[str, _Quiet] = OrderedDict()
        """By run."""
        self._told: OrderedDict[str, None] = OrderedDict()
        """Ids of entries about budgets that are on their threads."""

    async def spent(self, scope: BudgetScope, subject: str) -> Amount:
        """Returns what was spent in a scope. `subject` is empty for the current day."""
        key: Key = (scope, subject or day_of(self._clock()))
        accounts = await self._ledger.open((key,))
        self._ledger.close(accounts)
        return accounts[0].spent

    async def open(self, terms: Terms, choice: ModelChoice, size: int | None) -> Call:
        """Admit a call, whose request has `size` bytes. Raises `OverBudget`."""
        keys: list[Key] = [(BudgetScope.DAY, day_of(self._clock()))]
        if terms.thread is not None:
            keys += [(BudgetScope.RUN, terms.run), (BudgetScope.THREAD, terms.thread)]
            keys += [(BudgetScope.RUN, run) for run, _ in terms.above]
            keys += [(BudgetScope.TREE, each) for each in terms.trees]
        accounts = await self._ledger.open(keys)
        call = Call(self, self._ledger, accounts, terms)
        try:
            await self._admit(call, choice)
        except BaseException:
            call.release()
            raise
        tokens = min(estimate_input(_UNKNOWN_SIZE if size is None else size), choice.context_window) + EXPECTED_OUTPUT
        usage = Usage(input=tokens - EXPECTED_OUTPUT, output=EXPECTED_OUTPUT)
        call.hold(Amount(self.prices.cost(str(choice), usage) or 0, tokens))
        return call

    async def _admit(self, call: Call, choice: ModelChoice) -> None:
        try:
            async with time_limit(_WAIT_SECONDS):
                while True:
                    limits = self.limits(call)
                    self.check_price(limits, str(choice))
                    reached = find_reached((limit, account.spent) for limit, account in limits)
                    if reached is not None:
                        break
                    full = find_reached((limit, account.spent + account.held) for limit, account in limits)
                    if full is None:
                        return
                    # What calls in progress hold is an estimate: they may leave something.
                    account = next(account for limit, account in limits if limit == full.limit)
                    await account.changed.wait()
        except TimeoutError:
            raise OverBudget(
                "calls in progress may have used up the budget, so this one is out of budget for now"
            ) from None
        await self._tell(call, reached, "reached")
        raise OverBudget(reached.message(call.terms.run))

    def limits(self, call: Call) -> list[tuple[Limit, Account]]:
        """Returns the budgets that apply to a call, with their accounts."""
        found = []
        of_runs = {**dict(call.terms.above), call.terms.run: call.terms.budget}
        for account in call.accounts:
            scope, subject = account.key
            if scope is BudgetScope.RUN:
                budget = of_runs[subject]
            else:
                budget = self.budgets.find(scope, "" if scope is BudgetScope.DAY else subject)
            if budget is not None:
                found.append((Limit(scope, subject, budget), account))
        return found

    def check_price(self, limits: Sequence[tuple[Limit, Account]], model: str) -> None:
        """A cost that nobody knows cannot be kept below a limit."""
        if self.prices.find(model) is None and any(limit.budget.cost is not None for limit, _ in limits):
            raise OverBudget(
                f"billing needs a price, and that of {model} is unknown: holdfast model price {model}"
                " --input DOLLARS --output DOLLARS, or use a budget of tokens"
            )

    async def charge(
        self,
        call: Call,
        *,
        model: str,
        api: Api,
        status: int,
        ms: int,
        usage: Usage,
        measured: Measured,
        estimated: bool,
    ) -> Amount:
        """Write a call on its thread. Returns what it took. The price is that of the model that answered, if known."""
        answered = f"{model.partition('/')[0]}/{measured.model or ''}"
        priced = answered if self.prices.find(answered) is not None else model
        nanos = self.prices.cost(priced, usage, measured.nanos)
        if nanos is None and not usage.total and status >= 400:
            nanos = 0  # an error that used nothing costs nothing, whatever the price
        amount = Amount(nanos or 0, usage.total, unpriced=int(nanos is None))
        terms = call.terms
        skipped = 0
        if not usage.total:
            now, quiet = self._ticks(), self._quiet_of(terms.run)
            if now < quiet.until:
                quiet.skipped += 1
                return Amount(amount.nanos)
            quiet.until, skipped, quiet.skipped = now + _QUIET_MS, quiet.skipped, 0
        payload = model_events.call(
            run=terms.run,
            model=priced,
            api=api.value,
            status=status,
            ms=ms,
            usage=usage,
            nanos=nanos,
            estimated=estimated,
            skipped=skipped,
        )
        await self.journal.append(terms.thread, payload)
        return amount

    async def warn(self, call: Call) -> None:
        """Tell the thread of budgets that are nearly used up, once for each run."""
        for crossing in find_warnings((limit, account.spent) for limit, account in self.limits(call)):
            await self._tell(call, crossing, "warning")

    async def _tell(self, call: Call, crossing: Crossing, state: str) -> None:
        terms, limit, unit = call.terms, crossing.limit, crossing.unit
        if terms.thread is None:
            return
        # The id begins as ids do that only the server writes, and is the same after a restart: one entry for each run.
        whose = "" if limit.subject == terms.run or limit.scope is not BudgetScope.RUN else f"-{limit.subject}"
        id = f"{terms.run}-budget-{limit.scope.value}-{unit}-{state}-{crossing.most}{whose}"
        if id in self._told:
            return
        self._told[id] = None
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        is_cost = unit == "cost"
        payload = model_events.budget(
            run=terms.run,
            scope=limit.scope.value,
            subject=limit.subject,
            state=state,
            unit=unit,
            limit=dollars(crossing.most) if is_cost else crossing.most,
            spent=dollars(crossing.spent) if is_cost else crossing.spent,
        )
        await self.journal.append(terms.thread, payload, id)

    def _quiet_of(self, run: str) -> _Quiet:
        quiet = self._quiet.setdefault(run, _Quiet())
        self._quiet.move_to_end(run)
        while len(self._quiet) > _REMEMBERED:
            self._quiet.popitem(last=False)
        return quiet


class Call:
    """A call that was admitted. Its owner charges what was answered, and then releases it."""

    def __init__(self, meter: Meter, ledger: Ledger, accounts: Sequence[Account], terms: Terms) -> None:
        self.accounts = accounts
        self.terms = terms
        self._meter = meter
        self._ledger = ledger
        self._held = Amount()
        self._is_open = True

    def hold(self, amount: Amount) -> None:
        self._held += amount
        self._ledger.hold(self.accounts, amount)

    def check_price(self, model: str) -> None:
        """Raises `OverBudget` if a budget of money applies and the price of this model is unknown."""
        self._meter.check_price(self._meter.limits(self), model)

    async def tell(self, payload: dict[str, Any]) -> None:
        """Write an entry about this call on its thread."""
        await self._meter.journal.append(self.terms.thread, payload)

    async def charge(self, choice: ModelChoice, api: Api, answer: Answer) -> None:
        """Charge one answer, and write it on the thread. What the call holds stays: another model may be asked."""
        has_budget = bool(self._meter.limits(self))
        usage, estimated = charged_usage(answer, choice.context_window, choice.max_tokens if has_budget else None)
        spent = await self._meter.charge(
            self,
            model=str(choice),
            api=api,
            status=answer.shown_status,
            ms=answer.ms,
            usage=usage,
            measured=answer.measured,
            estimated=estimated,
        )
        self._ledger.settle(self.accounts, Amount(), spent)
        await self._meter.warn(self)

    def release(self) -> None:
        """Give back what the call holds. Has no effect the second time."""
        if self._is_open:
            self._is_open = False
            self._ledger.settle(self.accounts, self._held, Amount())
            self._ledger.close(self.accounts)
