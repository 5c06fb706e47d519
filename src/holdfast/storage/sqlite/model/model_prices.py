"""Prices of models in SQLite."""

from __future__ import annotations

from holdfast.storage.sqlite.database import Database


class SqlitePrices:
    """`PriceStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def load_all(self) -> dict[str, str]:
        query = "SELECT model, price FROM model_prices WHERE tenant = ?"
        return dict(await self._database.read(lambda connection: connection.execute(query, (self._tenant,)).fetchall()))

    async def put(self, model: str, price: str, now: int) -> None:
        statement = "INSERT OR REPLACE INTO model_prices (tenant, model, price, changed_at) VALUES (?, ?, ?, ?)"
        values = (self._tenant, model, price, now)
        await self._database.change(lambda connection: connection.execute(statement, values))

    async def remove(self, model: str) -> bool:
        statement = "DELETE FROM model_prices WHERE tenant = ? AND model = ?"
        values = (self._tenant, model)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount == 1)
