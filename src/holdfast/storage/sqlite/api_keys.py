"""API keys in SQLite."""

from __future__ import annotations

import sqlite3

from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.threads.access.credentials import ApiKey

_COLUMNS = "id, name, created_at, revoked_at"


class SqliteApiKeys:
    """`KeyStore` in the same file as the streams, for one tenant."""

    def __init__(self, streams: SqliteStreams, *, tenant: str = "default") -> None:
        self._streams = streams
        self._tenant = tenant

    async def find_key(self, digest: bytes) -> ApiKey | None:
        rows = self._streams.look_up(
            f"SELECT {_COLUMNS} FROM api_keys WHERE digest = ? AND tenant = ?", (digest, self._tenant)
        )
        return ApiKey(*rows[0]) if rows else None

    async def list_keys(self) -> list[ApiKey]:
        query = f"SELECT {_COLUMNS} FROM api_keys WHERE tenant = ? ORDER BY id"
        rows = await self._streams.query(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return [ApiKey(*row) for row in rows]

    async def add_key(self, key: ApiKey, digest: bytes) -> None:
        statement = "INSERT INTO api_keys (id, tenant, name, digest, created_at) VALUES (?, ?, ?, ?, ?)"
        values = (key.id, self._tenant, key.name, digest, key.created_at)
        await self._streams.write(lambda connection: connection.execute(statement, values).close())

    async def revoke_key(self, id: str, at: int) -> bool:
        changed = 0

        def write(connection: sqlite3.Connection) -> None:
            nonlocal changed
            statement = "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND tenant = ? AND revoked_at IS NULL"
            changed = connection.execute(statement, (at, id, self._tenant)).rowcount

        await self._streams.write(write)
        return changed > 0
