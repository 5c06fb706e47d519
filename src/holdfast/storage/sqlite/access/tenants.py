"""The tenants of a server in SQLite."""

from __future__ import annotations

import builtins
import sqlite3

import orjson

from holdfast.api.access.tenants import TenantQuotas, TenantRecord
from holdfast.storage.sqlite.streams import SqliteStreams


class SqliteTenants:
    """`TenantStore` in the same file as the streams of the default tenant."""

    def __init__(self, streams: SqliteStreams) -> None:
        self._streams = streams

    async def list(self) -> builtins.list[TenantRecord]:
        query = "SELECT name, created_at FROM tenants ORDER BY name"
        rows = await self._streams.query(lambda connection: connection.execute(query).fetchall())
        return [TenantRecord(name=name, created_at=created_at) for name, created_at in rows]

    async def add(self, name: str, now: int) -> bool:
        return await self._change("INSERT OR IGNORE INTO tenants (name, created_at) VALUES (?, ?)", values=(name, now))

    async def remove(self, name: str) -> bool:
        # In one commit: a tenant that stays because the server died in between would have no limits.
        return await self._change(
            "DELETE FROM tenant_quotas WHERE name = ?", "DELETE FROM tenants WHERE name = ?", values=(name,)
        )

    async def quotas(self) -> dict[str, TenantQuotas]:
        query = "SELECT name, quotas FROM tenant_quotas"
        rows = await self._streams.query(lambda connection: connection.execute(query).fetchall())
        return {name: TenantQuotas.from_json(orjson.loads(text)) for name, text in rows}

    async def put_quotas(self, name: str, quotas: TenantQuotas) -> None:
        text = orjson.dumps(quotas.to_json()).decode()
        await self._change("INSERT OR REPLACE INTO tenant_quotas (name, quotas) VALUES (?, ?)", values=(name, text))

    async def _change(self, *statements: str, values: tuple[object, ...]) -> bool:
        """Returns whether the last statement changed something."""
        changed = 0

        def write(connection: sqlite3.Connection) -> None:
            nonlocal changed
            for each in statements:
                changed = connection.execute(each, values).rowcount

        await self._streams.write(write)
        return changed > 0
