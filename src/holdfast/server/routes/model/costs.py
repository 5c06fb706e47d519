"""REST: what models have cost, prices, and budgets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from holdfast.api.errors import InvalidRequest
from holdfast.api.limits import RunId, ThreadId
from holdfast.api.model.budgets import Budget, BudgetList, BudgetRecord, BudgetScope, Cost, CostReport
from holdfast.api.model.models import ModelPrice, ModelPriceList, Price
from holdfast.egress.models import Meter
from holdfast.egress.models.model import checked_id, checked_name
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Administrator, Services, Use
from holdfast.threads.model_events import dollars
from holdfast.threads.rows import SpendingFilter, SpendingKey, cost_of

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["costs"])

Milliseconds = Annotated[int, Query(ge=0, lt=1 << 53)]


@router.get("/costs")
async def get_costs(
    services: Use,
    _: Administrator,
    thread: Annotated[ThreadId | None, Query(description="Only calls on this thread.")] = None,
    tree: Annotated[ThreadId | None, Query(description="Only calls on this thread and the threads below it.")] = None,
    run: Annotated[RunId | None, Query(description="Only calls of this run.")] = None,
    since: Annotated[Milliseconds | None, Query(description="Only calls after this time, in UTC milliseconds.")] = None,
    by: Literal["model", "run", "thread", "day"] = "model",
) -> CostReport:
    """Sum up the calls of models, as the server counted them."""
    for id in (thread, tree):
        if id is not None:
            await services.threads.get(id)
    wanted = SpendingFilter(
        runs=None if run is None else (run,), threads=None if thread is None else (thread,), tree=tree, since=since
    )
    [total] = await services.threads.spending(wanted)
    return CostReport(total=cost_of(total), by=tuple(map(cost_of, await services.threads.spending(wanted, by))))


@router.get("/budgets")
async def list_budgets(services: Use, _: Administrator) -> BudgetList:
    """List the budgets of threads, trees and days, with what was spent of each. Runs have theirs as an option."""
    meter = await _meter(services)
    found = sorted(meter.budgets.all().items())
    return BudgetList(budgets=tuple([await _budget(meter, *key, budget) for key, budget in found]))


@router.put("/budgets/day")
async def put_day_budget(budget: Budget, services: Use, _: Administrator) -> BudgetRecord:
    """Set the budget of each day, in UTC, for everything on this server."""
    return await _put(services, BudgetScope.DAY, "", budget)


@router.put("/budgets/{scope}/{id}")
async def put_budget(
    scope: Literal["thread", "tree"], id: ThreadId, budget: Budget, services: Use, _: Administrator
) -> BudgetRecord:
    """Set the budget of a thread, or of a thread and all threads below it. It applies to the next call."""
    await services.threads.get(id)
    return await _put(services, BudgetScope(scope), id, budget)


@router.delete("/budgets/day", status_code=204)
async def remove_day_budget(services: Use, _: Administrator) -> None:
    """Remove the budget of each day."""
    await (await _meter(services)).budgets.remove(BudgetScope.DAY, "")


@router.delete("/budgets/{scope}/{id}", status_code=204)
async def remove_budget(scope: Literal["thread", "tree"], id: ThreadId, services: Use, _: Administrator) -> None:
    """Remove the budget of a thread or a tree."""
    await (await _meter(services)).budgets.remove(BudgetScope(scope), id)


@router.get("/prices")
async def list_prices(services: Use, _: Administrator) -> ModelPriceList:
    """List the known prices of models, in dollars for a million tokens."""
    prices = (await _meter(services)).prices
    return ModelPriceList(
        prices=tuple(
            ModelPrice(model=model, price=price, is_own=prices.is_own(model)) for model, price in prices.all().items()
        )
    )


@router.put("/prices/{name}/{model:path}")
async def put_price(name: str, model: str, price: Price, services: Use, _: Administrator) -> ModelPrice:
    """Set the price of a model. It applies to the next call, and does not change what earlier ones cost."""
    full = f"{checked_name(name)}/{checked_id(model)}"
    await (await _meter(services)).prices.put(full, price)
    return ModelPrice(model=full, price=price, is_own=True)


@router.delete("/prices/{name}/{model:path}", status_code=204)
async def remove_price(name: str, model: str, services: Use, _: Administrator) -> None:
    """Remove a price that was set here. The one that comes with Holdfast counts again, if there is one."""
    await (await _meter(services)).prices.remove(f"{name}/{model}")


async def _meter(services: Services) -> Meter:
    meter = (await services.gateway.get()).meter
    if meter is None:
        raise InvalidRequest("this server does not count what models use")
    return meter


async def _put(services: Services, scope: BudgetScope, subject: str, budget: Budget) -> BudgetRecord:
    meter = await _meter(services)
    await meter.budgets.put(scope, subject, budget)
    return await _budget(meter, scope, subject, budget)


async def _budget(meter: Meter, scope: BudgetScope, subject: str, budget: Budget) -> BudgetRecord:
    spent = await meter.spent(scope, subject)
    return BudgetRecord(
        scope=scope,
        subject=subject,
        budget=budget,
        cost=dollars(spent.nanos),
        tokens=spent.tokens,
        unpriced=spent.unpriced,
    )


async def costs_by(services: Services, ids: Iterable[str], by: Literal["run", "thread"]) -> dict[str, Cost]:
    """Returns what runs or threads have cost, by id. Those without calls are left out."""
    among = tuple(ids)
    key: SpendingKey = by
    wanted = SpendingFilter(runs=among) if by == "run" else SpendingFilter(threads=among)
    return {spent.key: cost_of(spent) for spent in await services.threads.spending(wanted, key)} if among else {}
