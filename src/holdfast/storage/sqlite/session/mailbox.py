"""Messages to sessions and people in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from holdfast.api.tools.mailbox import MessageType
from holdfast.sessions.tools.mailbox_rows import MessageRow, Recipient
from holdfast.storage.sqlite.database import Database

_COLUMNS: Final = (
    "id, kind, recipient, type, content, from_session, from_person, created_at, context_session, context_task,"
    " reply_to, read_at"
)


class SqliteMessages:
    """`MessageStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def add(self, row: MessageRow, most: int) -> bool:
        recipient = (self._tenant, row.kind.value, row.to)
        values = (
            self._tenant, row.id, row.kind.value, row.to, row.type.value, row.content, row.from_session,
            row.from_person, row.created_at, row.context_session, row.context_task, row.reply_to, row.read_at,
        )  # fmt: skip

        def work(connection: sqlite3.Connection) -> bool:
            there = "SELECT 1 FROM messages WHERE tenant = ? AND id = ?"
            if connection.execute(there, (self._tenant, row.id)).fetchone() is not None:
                return True
            mine = "tenant = ? AND kind = ? AND recipient = ?"
            (count,) = connection.execute(f"SELECT count(*) FROM messages WHERE {mine}", recipient).fetchone()
            if count >= most:
                oldest = f"SELECT number FROM messages WHERE {mine} AND read_at IS NOT NULL ORDER BY number LIMIT ?"
                removed = connection.execute(
                    f"DELETE FROM messages WHERE number IN ({oldest})", (*recipient, count - most + 1)
                ).rowcount
                if removed < count - most + 1:
                    return False
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO messages (tenant, {_COLUMNS}) VALUES ({marks})", values)
            return True

        return await self._database.change(work)

    async def get(self, id: str) -> MessageRow | None:
        query = f"SELECT {_COLUMNS} FROM messages WHERE tenant = ? AND id = ?"
        values = (self._tenant, id)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchone())
        return None if found is None else _row(*found)

    async def list(
        self, kind: Recipient, to: str | None, *, after: str | None = None, unread: bool = False, limit: int
    ) -> list[MessageRow]:
        query = (
            f"SELECT {_COLUMNS} FROM messages WHERE tenant = ?1 AND kind = ?2 AND (?3 IS NULL OR recipient = ?3)"
            " AND number > coalesce((SELECT number FROM messages WHERE tenant = ?1 AND id = ?4), 0)"
            " AND (?5 = 0 OR read_at IS NULL) ORDER BY number LIMIT ?6"
        )
        values = (self._tenant, kind.value, to, after, int(unread), limit)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchall())
        return [_row(*each) for each in found]

    async def mark_read(self, ids: Sequence[str], at: int) -> None:
        statement = "UPDATE messages SET read_at = ?3 WHERE tenant = ?1 AND id = ?2 AND read_at IS NULL"
        rows = [(self._tenant, id, at) for id in ids]
        if rows:
            await self._database.change(lambda connection: connection.executemany(statement, rows).rowcount)

    async def remove(self, id: str) -> bool:
        statement, values = "DELETE FROM messages WHERE tenant = ? AND id = ?", (self._tenant, id)
        return await self._database.change(lambda connection: connection.execute(statement, values).rowcount) == 1


def _row(id: str, kind: str, to: str, type: str, *rest: Any) -> MessageRow:
    return MessageRow(id, Recipient(kind), to, MessageType(type), *rest)
