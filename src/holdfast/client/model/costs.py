"""What models have cost on a server, and budgets: `client.costs`. Needs an API key."""

from __future__ import annotations

from typing import Literal

from holdfast.api.model.budgets import Budget, BudgetList, BudgetRecord, BudgetScope, CostReport
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import Resource


class Costs:
    """The costs and budgets of a server: `client.costs`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._costs = Resource(connection, "/v1/costs")
        self._budgets = Resource(connection, "/v1/budgets")

    async def report(
        self,
        *,
        thread: str | None = None,
        tree: str | None = None,
        run: str | None = None,
        since: int | None = None,
        by: Literal["model", "run", "thread", "day"] = "model",
    ) -> CostReport:
        """Sum up the calls of models: all of them, or those of a thread, of a thread and the threads below it, or of a
        run. `since` is a time in UTC milliseconds.
        """
        wanted = (("thread", thread), ("tree", tree), ("run", run), ("since", None if since is None else str(since)))
        parameters = [("by", str(by)), *((name, value) for name, value in wanted if value is not None)]
        return (await self._costs.ask("GET", parameters=parameters)).read(CostReport.from_json)

    async def budgets(self) -> list[BudgetRecord]:
        """Returns the budgets of threads, trees and days."""
        return list((await self._budgets.ask("GET")).read(BudgetList.from_json).budgets)

    async def set_budget(self, scope: BudgetScope, subject: str, budget: Budget) -> BudgetRecord:
        """Set a budget. `subject` is the thread, and empty for the budget of each day."""
        path = "/day" if scope is BudgetScope.DAY else f"/{scope.value}/{subject}"
        return (await self._budgets.ask("PUT", path, budget.to_request())).read(BudgetRecord.from_json)

    async def remove_budget(self, scope: BudgetScope, subject: str = "") -> None:
        path = "/day" if scope is BudgetScope.DAY else f"/{scope.value}/{subject}"
        await self._budgets.ask("DELETE", path, repeatable=False)
