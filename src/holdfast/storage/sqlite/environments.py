"""Environments and their versions in SQLite."""

from __future__ import annotations

import sqlite3

from holdfast.environments.store import EnvironmentRow
from holdfast.storage.sqlite.database import Database

_COLUMNS = "name, version, digest, text, created_at, created_by"


class SqliteEnvironments:
    """`EnvironmentStore` on a database file, for one tenant.

    A removed environment leaves its versions without their texts, so that their numbers are not used again.
    """

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def add(
        self, name: str, digest: str, text: str, *, by: str, now: int, after: int | None = None
    ) -> EnvironmentRow | None:
        def change(connection: sqlite3.Connection) -> EnvironmentRow | None:
            newest, latest = connection.execute(
                "SELECT coalesce(max(version), 0), coalesce(max(version) FILTER (WHERE text IS NOT NULL), 0)"
                " FROM environments WHERE tenant = ? AND name = ?",
                (self._tenant, name),
            ).fetchone()
            if after is not None and after != latest:
                return None
            row = EnvironmentRow(name, newest + 1, digest, text, now, by)
            connection.execute(
                f"INSERT INTO environments (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._tenant, row.name, row.version, row.digest, row.text, row.created_at, row.created_by),
            )
            return row

        return await self._database.change(change)

    async def get(self, name: str, version: int | None = None) -> EnvironmentRow | None:
        which = "" if version is None else "AND version = ?"
        query = (
            f"SELECT {_COLUMNS} FROM environments WHERE tenant = ? AND name = ? AND text IS NOT NULL {which}"
            " ORDER BY version DESC LIMIT 1"
        )
        values = (self._tenant, name) if version is None else (self._tenant, name, version)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchone())
        return None if found is None else EnvironmentRow(*found)

    async def versions(self, name: str) -> list[EnvironmentRow]:
        query = (
            f"SELECT {_COLUMNS} FROM environments WHERE tenant = ? AND name = ? AND text IS NOT NULL"
            " ORDER BY version DESC"
        )
        values = (self._tenant, name)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchall())
        return [EnvironmentRow(*row) for row in found]

    async def latest(self) -> list[EnvironmentRow]:
        query = (
            f"SELECT {_COLUMNS} FROM environments AS each WHERE tenant = ? AND text IS NOT NULL AND version ="
            " (SELECT max(version) FROM environments WHERE tenant = each.tenant AND name = each.name) ORDER BY name"
        )
        values = (self._tenant,)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchall())
        return [EnvironmentRow(*row) for row in found]

    async def remove(self, name: str) -> bool:
        statement = "UPDATE environments SET text = NULL WHERE tenant = ? AND name = ? AND text IS NOT NULL"
        values = (self._tenant, name)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount > 0)

    async def allow(self, place: str, digest: str, *, by: str, now: int) -> None:
        statement = (
            "INSERT OR REPLACE INTO environment_consents (tenant, place, digest, allowed_at, allowed_by)"
            " VALUES (?, ?, ?, ?, ?)"
        )
        values = (self._tenant, place, digest, now, by)
        await self._database.change(lambda connection: connection.execute(statement, values))

    async def is_allowed(self, place: str, digest: str) -> bool:
        query = "SELECT 1 FROM environment_consents WHERE tenant = ? AND place = ? AND digest = ?"
        values = (self._tenant, place, digest)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchone())
        return found is not None

    async def disallow(self, place: str) -> bool:
        statement = "DELETE FROM environment_consents WHERE tenant = ? AND place = ?"
        values = (self._tenant, place)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount > 0)
