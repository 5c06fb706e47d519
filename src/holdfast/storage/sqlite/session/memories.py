"""Memories in SQLite, with its full-text search."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

from holdfast.sessions.tools.memory_rows import MemoryRow
from holdfast.storage.sqlite.database import Database

_COLUMNS: Final = "id, category, content, session, root, created_at"
_MOST_WORDS: Final = 32
_INDEX: Final = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS memory_words"
    " USING fts5(content, tenant UNINDEXED, tokenize = 'unicode61 remove_diacritics 2')"
)


class SqliteMemories:
    """`MemoryStore` on a database file, for one tenant.

    The index is created with the first memory: a server starts also where SQLite was built without full-text search.
    """

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def add(self, row: MemoryRow, most: int) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            if _find_number(connection, self._tenant, row.id) is not None:
                return True
            count = "SELECT count(*) FROM memories WHERE tenant = ?"
            if connection.execute(count, (self._tenant,)).fetchone()[0] >= most:
                return False
            connection.execute(_INDEX)
            values = (self._tenant, row.id, row.category, row.content, row.session, row.root, row.created_at)
            added = connection.execute(
                f"INSERT INTO memories (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", values
            )
            words = "INSERT INTO memory_words (rowid, content, tenant) VALUES (?, ?, ?)"
            connection.execute(words, (added.lastrowid, f"{row.category} {row.content}", self._tenant))
            return True

        return await self._database.change(work)

    async def get(self, id: str) -> MemoryRow | None:
        query = f"SELECT {_COLUMNS} FROM memories WHERE tenant = ? AND id = ?"
        values = (self._tenant, id)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchone())
        return None if found is None else MemoryRow(*found)

    async def find(self, query: str | None, category: str | None, limit: int) -> list[MemoryRow]:
        where, values = "tenant = ?", [self._tenant]
        if category is not None:
            where, values = f"{where} AND category = ?", [*values, category]
        if query is None:
            select = f"SELECT {_COLUMNS} FROM memories WHERE {where} ORDER BY number DESC LIMIT ?"
            return await self._rows(select, (*values, limit))
        words = re.findall(r"\w+", query)[:_MOST_WORDS]
        if not words:
            return []
        # Quoted, so that nothing in it is an operator.
        match = " ".join(f'"{word}"*' for word in words)
        named = ", ".join(f"memories.{each}" for each in _COLUMNS.split(", "))
        select = (
            f"SELECT {named} FROM memory_words JOIN memories ON memories.number = memory_words.rowid"
            f" WHERE memory_words MATCH ? AND memories.{where.replace(' category', ' memories.category')}"
            " ORDER BY memory_words.rank, memories.number DESC LIMIT ?"
        )
        return await self._rows(select, (match, *values, limit))

    async def remove(self, id: str, root: str | None = None) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            number = _find_number(connection, self._tenant, id, root)
            if number is None:
                return False
            connection.execute("DELETE FROM memories WHERE number = ?", (number,))
            connection.execute("DELETE FROM memory_words WHERE rowid = ?", (number,))
            return True

        return await self._database.change(work)

    async def _rows(self, select: str, values: tuple[object, ...]) -> list[MemoryRow]:
        def work(connection: sqlite3.Connection) -> list[MemoryRow]:
            is_indexed = "SELECT 1 FROM sqlite_schema WHERE name = 'memory_words'"
            if connection.execute(is_indexed).fetchone() is None:
                return []  # there was no memory yet
            return [MemoryRow(*each) for each in connection.execute(select, values)]

        return await self._database.read(work)


def _find_number(connection: sqlite3.Connection, tenant: str, id: str, root: str | None = None) -> int | None:
    query = "SELECT number FROM memories WHERE tenant = ?1 AND id = ?2 AND (?3 IS NULL OR root = ?3)"
    found = connection.execute(query, (tenant, id, root)).fetchone()
    return None if found is None else int(found[0])
