"""Shares of threads in SQLite."""

from __future__ import annotations

import builtins
import sqlite3
from typing import Any, Final

from holdfast.api.access.shares import ShareRecord
from holdfast.storage.sqlite.streams import SqliteStreams

_SELECT: Final = "SELECT id, thread, created_by, created_at, expires_at, stream FROM shares WHERE tenant = ?"


class SqliteShares:
    """`ShareStore` in the same file as the streams, for one tenant."""

    def __init__(self, streams: SqliteStreams, *, tenant: str = "default") -> None:
        self._streams = streams
        self._tenant = tenant

    async def add(self, share: ShareRecord, digest: bytes, stream: int) -> None:
        statement = (
            "INSERT INTO shares (tenant, id, digest, thread, created_by, created_at, expires_at, stream)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        await self._change(
            statement, share.id, digest, share.thread, share.created_by, share.created_at, share.expires_at, stream
        )

    async def find(self, digest: bytes) -> tuple[ShareRecord, int] | None:
        rows = self._streams.look_up(f"{_SELECT} AND digest = ?", (self._tenant, digest))
        return (_share(rows[0]), rows[0][-1]) if rows else None

    async def list(self, thread: str) -> builtins.list[ShareRecord]:
        query, values = f"{_SELECT} AND thread = ? ORDER BY created_at, id", (self._tenant, thread)
        rows = await self._streams.query(lambda connection: connection.execute(query, values).fetchall())
        return [_share(row) for row in rows]

    async def remove(self, thread: str, id: str) -> bool:
        return await self._change("DELETE FROM shares WHERE tenant = ? AND thread = ? AND id = ?", thread, id) > 0

    async def remove_expired(self, now: int) -> int:
        return await self._change("DELETE FROM shares WHERE tenant = ? AND expires_at <= ?", now)

    async def _change(self, statement: str, *values: object) -> int:
        changed = 0

        def write(connection: sqlite3.Connection) -> None:
            nonlocal changed
            changed = connection.execute(statement, (self._tenant, *values)).rowcount

        await self._streams.write(write)
        return changed


def _share(row: tuple[Any, ...]) -> ShareRecord:
    id, thread, created_by, created_at, expires_at, _ = row
    return ShareRecord(id=id, thread=thread, created_by=created_by, created_at=created_at, expires_at=expires_at)
