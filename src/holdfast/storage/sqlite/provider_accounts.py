"""Accounts of providers and their sealed credentials in SQLite."""

from __future__ import annotations

from holdfast.providers.accounts import AccountRow
from holdfast.storage.sqlite.database import Database

_COLUMNS = "name, kind, settings, credential"


class SqliteAccounts:
    """`AccountStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def load_all(self) -> list[AccountRow]:
        query = f"SELECT {_COLUMNS} FROM provider_accounts WHERE tenant = ? ORDER BY name"
        found = await self._database.read(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return [AccountRow(*row) for row in found]

    async def put(self, row: AccountRow, now: int) -> None:
        statement = (
            f"INSERT OR REPLACE INTO provider_accounts (tenant, {_COLUMNS}, changed_at) VALUES (?, ?, ?, ?, ?, ?)"
        )
        values = (self._tenant, row.name, row.kind, row.settings, row.credential, now)
        await self._database.change(lambda connection: connection.execute(statement, values))

    async def remove(self, name: str) -> bool:
        statement = "DELETE FROM provider_accounts WHERE tenant = ? AND name = ?"
        values = (self._tenant, name)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount == 1)
