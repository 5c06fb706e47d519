"""API keys in SQLite."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from holdfast.api.access.tenants import TenantRole
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.threads.access.credentials import ApiKey

_SELECT: Final = (
    "SELECT k.id, k.name, k.created_at, k.revoked_at, o.role, o.member, m.role FROM api_keys k"
    " LEFT JOIN key_owners o ON o.tenant = k.tenant AND o.key = k.id"
    " LEFT JOIN members m ON m.tenant = k.tenant AND m.name = o.member"
)
"""A key without an owner is from before there were roles: it is an owner's."""


class SqliteApiKeys:
    """`KeyStore` in the same file as the streams, for one tenant."""

    def __init__(self, streams: SqliteStreams, *, tenant: str = "default") -> None:
        self._streams = streams
        self._tenant = tenant

    async def find_key(self, digest: bytes) -> ApiKey | None:
        rows = self._streams.look_up(f"{_SELECT} WHERE k.digest = ? AND k.tenant = ?", (digest, self._tenant))
        return _key(rows[0]) if rows else None

    async def get_key(self, id: str) -> ApiKey | None:
        rows = self._streams.look_up(f"{_SELECT} WHERE k.id = ? AND k.tenant = ?", (id, self._tenant))
        return _key(rows[0]) if rows else None

    async def list_keys(self) -> list[ApiKey]:
        query = f"{_SELECT} WHERE k.tenant = ? ORDER BY k.id"
        rows = await self._streams.query(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return [_key(row) for row in rows]

    async def add_key(self, key: ApiKey, digest: bytes) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO api_keys (id, tenant, name, digest, created_at) VALUES (?, ?, ?, ?, ?)",
                (key.id, self._tenant, key.name, digest, key.created_at),
            )
            connection.execute(
                "INSERT INTO key_owners (tenant, key, role, member) VALUES (?, ?, ?, ?)",
                (self._tenant, key.id, key.role.value, key.member),
            )

        await self._streams.write(write)

    async def revoke_key(self, id: str, at: int) -> bool:
        changed = 0

        def write(connection: sqlite3.Connection) -> None:
            nonlocal changed
            statement = "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND tenant = ? AND revoked_at IS NULL"
            changed = connection.execute(statement, (at, id, self._tenant)).rowcount

        await self._streams.write(write)
        return changed > 0


def _key(row: tuple[Any, ...]) -> ApiKey:
    id, name, created_at, revoked_at, role, member, role_of_member = row
    given = TenantRole(role) if role is not None else TenantRole.OWNER
    if member is not None:
        now = TenantRole(role_of_member) if role_of_member is not None else TenantRole.VIEWER
        given = min(given, now, key=lambda each: each.rank)
        if role_of_member is None and revoked_at is None:
            revoked_at = created_at  # nobody's key
    return ApiKey(id, name, created_at, revoked_at, given, member)
