"""Records of the Daytona API in SQLite."""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Callable
from typing import Any

from holdfast.compat.daytona.records import Document, Record
from holdfast.storage.sqlite.database import Database

_COLUMNS = "kind, id, name, document, created_at, changed_at"


class SqliteDaytonaRecords:
    """`RecordStore` on a database file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, tenant: str, record: Record) -> bool:
        statement = f"INSERT OR IGNORE INTO daytona_records (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
        document = json.dumps(record.document)
        values = (tenant, record.kind, record.id, record.name, document, record.created_at, record.changed_at)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount == 1)

    async def find(self, tenant: str, kind: str, id_or_name: str) -> Record | None:
        query = (
            f"SELECT {_COLUMNS} FROM daytona_records WHERE tenant = ?1 AND kind = ?2 AND (id = ?3 OR name = ?3) "
            "ORDER BY id = ?3 DESC LIMIT 1"
        )
        values = (tenant, kind, id_or_name)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchone())
        return None if found is None else _record(found)

    async def count(self, tenant: str, kind: str) -> int:
        query = "SELECT count(*) FROM daytona_records WHERE tenant = ? AND kind = ?"
        found = await self._database.read(lambda connection: connection.execute(query, (tenant, kind)).fetchone())
        return int(found[0])

    async def change(
        self, tenant: str, kind: str, id: str, change: Callable[[Document], Document], now: int
    ) -> Record | None:
        def work(connection: sqlite3.Connection) -> Record | None:
            query = f"SELECT {_COLUMNS} FROM daytona_records WHERE tenant = ? AND kind = ? AND id = ?"
            found = connection.execute(query, (tenant, kind, id)).fetchone()
            if found is None:
                return None
            document = json.dumps(change(json.loads(found[3])))
            statement = (
                "UPDATE daytona_records SET document = ?, changed_at = ? WHERE tenant = ? AND kind = ? AND id = ?"
            )
            connection.execute(statement, (document, now, tenant, kind, id))
            return _record((*found[:3], document, found[4], now))

        return await self._database.change(work)

    async def remove(self, tenant: str, kind: str, id: str) -> bool:
        statement = "DELETE FROM daytona_records WHERE tenant = ? AND kind = ? AND id = ?"
        values = (tenant, kind, id)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount == 1)

    async def list(self, tenant: str, kind: str) -> builtins.list[Record]:
        query = (
            f"SELECT {_COLUMNS} FROM daytona_records WHERE tenant = ? AND kind = ? ORDER BY created_at DESC, id DESC"
        )
        found = await self._database.read(lambda connection: connection.execute(query, (tenant, kind)).fetchall())
        return [_record(row) for row in found]


def _record(row: tuple[Any, ...]) -> Record:
    kind, id, name, document, created_at, changed_at = row
    return Record(kind, id, name, json.loads(document), created_at, changed_at)
