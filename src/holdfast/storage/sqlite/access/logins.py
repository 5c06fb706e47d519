"""Logins of browsers in SQLite."""

from __future__ import annotations

import builtins
import sqlite3
from typing import Any, Final

from holdfast.api.access.tenants import TenantRole
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.threads.access.logins import Login

_SELECT: Final = (
    "SELECT l.id, l.user, l.role, l.via, l.created_at, l.expires_at, l.key, l.member, m.role FROM logins l"
    " LEFT JOIN api_keys k ON k.tenant = l.tenant AND k.id = l.key"
    " LEFT JOIN members m ON m.tenant = l.tenant AND m.name = l.member AND m.created_at <= l.created_at"
    " WHERE l.tenant = ? AND (l.key IS NULL OR (k.id IS NOT NULL AND k.revoked_at IS NULL))"
    " AND (l.member IS NULL OR m.name IS NOT NULL)"
)
"""A member of the same name who was added later is somebody else."""


class SqliteLogins:
    """`LoginStore` in the same file as the streams, for one tenant."""

    def __init__(self, streams: SqliteStreams, *, tenant: str = "default") -> None:
        self._streams = streams
        self._tenant = tenant

    async def add(self, login: Login, digest: bytes) -> None:
        statement = (
            "INSERT INTO logins (tenant, id, digest, user, role, via, created_at, expires_at, key, member)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        values = (
            self._tenant,
            login.id,
            digest,
            login.user,
            login.role.value,
            login.via,
            login.created_at,
            login.expires_at,
            login.key,
            login.member,
        )
        await self._streams.write(lambda connection: connection.execute(statement, values).close())

    async def find(self, digest: bytes) -> Login | None:
        rows = self._streams.look_up(f"{_SELECT} AND l.digest = ?", (self._tenant, digest))
        return _login(rows[0]) if rows else None

    async def list(self) -> builtins.list[Login]:
        query = f"{_SELECT} ORDER BY l.created_at, l.id"
        rows = await self._streams.query(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return [_login(row) for row in rows]

    async def remove(self, id: str) -> bool:
        return await self._change("DELETE FROM logins WHERE tenant = ? AND id = ?", id) > 0

    async def remove_expired(self, now: int) -> int:
        return await self._change("DELETE FROM logins WHERE tenant = ? AND expires_at <= ?", now)

    async def _change(self, statement: str, value: object) -> int:
        changed = 0

        def write(connection: sqlite3.Connection) -> None:
            nonlocal changed
            changed = connection.execute(statement, (self._tenant, value)).rowcount

        await self._streams.write(write)
        return changed


def _login(row: tuple[Any, ...]) -> Login:
    *fields, role_of_member = row
    id, user, role, via, created_at, expires_at, key, member = fields
    now = TenantRole(role)
    if role_of_member is not None:
        now = min(now, TenantRole(role_of_member), key=lambda each: each.rank)
    return Login(id, user, now, via, created_at, expires_at, key, member)
