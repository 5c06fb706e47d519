"""Budgets in SQLite."""

from __future__ import annotations

from holdfast.storage.sqlite.database import Database


class SqliteBudgets:
    """`BudgetStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def load_all(self) -> dict[tuple[str, str], str]:
        query = "SELECT scope, subject, budget FROM budgets WHERE tenant = ?"
        found = await self._database.read(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return {(scope, subject): budget for scope, subject, budget in found}

    async def put(self, scope: str, subject: str, budget: str, now: int) -> None:
        statement = "INSERT OR REPLACE INTO budgets (tenant, scope, subject, budget, changed_at) VALUES (?, ?, ?, ?, ?)"
        values = (self._tenant, scope, subject, budget, now)
        await self._database.change(lambda connection: connection.execute(statement, values))

    async def remove(self, scope: str, subject: str) -> bool:
        statement = "DELETE FROM budgets WHERE tenant = ? AND scope = ? AND subject = ?"
        values = (self._tenant, scope, subject)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount == 1)
