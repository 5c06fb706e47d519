"""Members of a tenant in SQLite."""

from __future__ import annotations

import builtins
import sqlite3

from holdfast.api.access.tenants import TenantMember, TenantRole
from holdfast.storage.sqlite.streams import SqliteStreams


class SqliteMembers:
    """`MemberStore` in the same file as the streams, for one tenant."""

    def __init__(self, streams: SqliteStreams, *, tenant: str = "default") -> None:
        self._streams = streams
        self._tenant = tenant

    async def find(self, name: str) -> TenantMember | None:
        query = "SELECT name, role, created_at FROM members WHERE tenant = ? AND name = ?"
        rows = self._streams.look_up(query, (self._tenant, name))
        return _member(rows[0]) if rows else None

    async def list(self) -> builtins.list[TenantMember]:
        query = "SELECT name, role, created_at FROM members WHERE tenant = ? ORDER BY name"
        rows = await self._streams.query(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return [_member(row) for row in rows]

    async def put(self, name: str, role: TenantRole, now: int) -> TenantMember:
        statement = (
            "INSERT INTO members (tenant, name, role, created_at) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (tenant, name) DO UPDATE SET role = excluded.role"
        )
        values = (self._tenant, name, role.value, now)
        await self._streams.write(lambda connection: connection.execute(statement, values).close())
        found = await self.find(name)
        assert found is not None
        return found

    async def remove(self, name: str, now: int) -> bool:
        changed = 0

        def write(connection: sqlite3.Connection) -> None:
            nonlocal changed
            values = (self._tenant, name)
            changed = connection.execute("DELETE FROM members WHERE tenant = ? AND name = ?", values).rowcount
            connection.execute(
                "UPDATE api_keys SET revoked_at = ?3 WHERE tenant = ?1 AND revoked_at IS NULL"
                " AND id IN (SELECT key FROM key_owners WHERE tenant = ?1 AND member = ?2)",
                (*values, now),
            )

        await self._streams.write(write)
        return changed > 0


def _member(row: tuple[str, str, int]) -> TenantMember:
    return TenantMember(name=row[0], role=TenantRole(row[1]), created_at=row[2])
