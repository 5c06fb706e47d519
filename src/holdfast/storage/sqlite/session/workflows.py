"""Workflows, triggers and the list of executions in SQLite."""

from __future__ import annotations

import json
import sqlite3
from typing import Final

from holdfast.sessions.workflows.rows import WorkflowKind, WorkflowRow
from holdfast.storage.sqlite.database import Database

_COLUMNS: Final = "kind, id, list, document, created_at, is_open"


class SqliteWorkflows:
    """`WorkflowStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def put(self, row: WorkflowRow, most: int | None = None) -> bool:
        document = json.dumps(row.document, ensure_ascii=False)
        values = (self._tenant, row.kind.value, row.id, row.group, document, row.created_at, int(row.is_open))

        def work(connection: sqlite3.Connection) -> bool:
            mine = (self._tenant, row.kind.value)
            there = "SELECT 1 FROM workflow_records WHERE tenant = ? AND kind = ? AND id = ?"
            if most is not None and connection.execute(there, (*mine, row.id)).fetchone() is None:
                count = "SELECT count(*) FROM workflow_records WHERE tenant = ? AND kind = ?"
                if connection.execute(count, mine).fetchone()[0] >= most:
                    return False
            statement = f"INSERT OR REPLACE INTO workflow_records (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
            connection.execute(statement, values)
            return True

        return await self._database.change(work)

    async def get(self, kind: WorkflowKind, id: str) -> WorkflowRow | None:
        query = f"SELECT {_COLUMNS} FROM workflow_records WHERE tenant = ? AND kind = ? AND id = ?"
        values = (self._tenant, kind.value, id)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchone())
        return None if found is None else _row(*found)

    async def list(
        self, kind: WorkflowKind, *, group: str | None = None, only_open: bool = False, limit: int
    ) -> list[WorkflowRow]:
        query = (
            f"SELECT {_COLUMNS} FROM workflow_records WHERE tenant = ?1 AND kind = ?2 AND (?3 IS NULL OR list = ?3)"
            " AND (?4 = 0 OR is_open = 1) ORDER BY created_at DESC, id DESC LIMIT ?5"
        )
        values = (self._tenant, kind.value, group, int(only_open), limit)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchall())
        return [_row(*each) for each in found]

    async def remove(self, kind: WorkflowKind, id: str) -> bool:
        statement = "DELETE FROM workflow_records WHERE tenant = ? AND kind = ? AND id = ?"
        values = (self._tenant, kind.value, id)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount) == 1


def _row(kind: str, id: str, group: str, document: str, created_at: int, is_open: int) -> WorkflowRow:
    return WorkflowRow(WorkflowKind(kind), id, group, json.loads(document), created_at, bool(is_open))
