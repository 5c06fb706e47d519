"""Cookies of the gateway in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.gateway.credentials.cookies import CookieRow
from holdfast.storage.sqlite.database import Database

_COLUMNS: Final = "digest, place, session, generation, subject, via, expires_at"


class SqliteCookies:
    """`CookieStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def add(self, row: CookieRow) -> None:
        statement = f"INSERT OR REPLACE INTO gateway_cookies (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        await self._change(
            statement,
            (row.digest, row.place, row.session, row.epoch, row.subject, " ".join(row.via), row.expires_at),
        )

    async def find(self, digest: str) -> CookieRow | None:
        query = f"SELECT {_COLUMNS} FROM gateway_cookies WHERE tenant = ? AND digest = ?"
        values = (self._tenant, digest)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchone())
        if found is None:
            return None
        digest, place, session, epoch, subject, via, expires_at = found
        return CookieRow(digest, place, session, epoch, subject, tuple(via.split()), expires_at)

    async def renew(self, digest: str, expires_at: int) -> bool:
        statement = "UPDATE gateway_cookies SET expires_at = ?2 WHERE tenant = ?1 AND digest = ?3"
        return await self._change(statement, (expires_at, digest)) == 1

    async def remove_session(self, session: str) -> int:
        return await self._change("DELETE FROM gateway_cookies WHERE tenant = ? AND session = ?", (session,))

    async def remove_tree(self, session: str, credential: str) -> int:
        is_meant = "(digest = ?3 OR instr(' ' || via || ' ', ' ' || ?3 || ' '))"
        statement = f"DELETE FROM gateway_cookies WHERE tenant = ?1 AND session = ?2 AND {is_meant}"
        return await self._change(statement, (session, credential))

    async def remove_expired(self, now: int) -> int:
        return await self._change("DELETE FROM gateway_cookies WHERE tenant = ? AND expires_at <= ?", (now,))

    async def _change(self, statement: str, values: Sequence[Any]) -> int:
        """Returns how many rows changed. The first parameter is the tenant."""
        all_values = (self._tenant, *values)
        return await self._database.change(lambda connection: connection.execute(statement, all_values).rowcount)
