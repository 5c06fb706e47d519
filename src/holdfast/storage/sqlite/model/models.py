"""Models and their sealed keys in SQLite."""

from __future__ import annotations

from holdfast.egress.models.model import ModelRow
from holdfast.storage.sqlite.database import Database

_COLUMNS = "name, endpoints, model, context_window, max_tokens, key"


class SqliteModels:
    """`ModelStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def load_all(self) -> list[ModelRow]:
        query = f"SELECT {_COLUMNS} FROM models WHERE tenant = ? ORDER BY name"
        found = await self._database.read(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return [ModelRow(*row) for row in found]

    async def put(self, row: ModelRow, now: int) -> None:
        statement = f"INSERT OR REPLACE INTO models (tenant, {_COLUMNS}, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        values = (
            self._tenant, row.name, row.endpoints, row.model, row.context_window, row.max_tokens, row.key, now,
        )  # fmt: skip
        await self._database.change(lambda connection: connection.execute(statement, values))

    async def remove(self, name: str) -> bool:
        statement = "DELETE FROM models WHERE tenant = ? AND name = ?"
        values = (self._tenant, name)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount == 1)
