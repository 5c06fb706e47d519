"""Databases of every version are opened, brought up to date, or refused by name."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from holdfast.storage import DatabaseDamaged, UnknownSchema
from holdfast.storage.sqlite import schema
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.testing.store_suites.streams import read_all
from holdfast.threads.store import AppendRequest, Keyed, Producer

FILES = Path(__file__).parent / "files"
pytestmark = pytest.mark.anyio


def version_of(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


async def test_a_database_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    """As a server of that version left it when it was killed: some of it filed, some of it in the journal."""
    path = tmp_path / "db"
    with sqlite3.connect(path) as connection:
        connection.executescript((FILES / "schema-1.sql").read_text())
    assert version_of(path) == 1
    for _ in range(2):
        store = await SqliteStreams.open(path)
        assert await read_all(store, "a") == b"first filed in the journal"
        assert (await read_all(store, "threads/t-1")).count(b"hello") == 3
        assert (await store.append("a", AppendRequest(b"x", producer=Producer("p", 1, 1)))).duplicate
        assert (await store.append("threads/t-1", AppendRequest(keyed=(Keyed("e-2", b"{},\n"),)))).duplicate
        await store.close()
        assert version_of(path) == schema.VERSION


async def test_a_new_database_has_the_tables_of_a_migrated_one(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "old") as connection:
        connection.executescript((FILES / "schema-1.sql").read_text())
    columns = {}
    for name in ("old", "new"):
        await (await SqliteStreams.open(tmp_path / name)).close()
        with sqlite3.connect(tmp_path / name) as connection:
            tables = [table for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            columns[name] = {
                table: {column for _, column, *_ in connection.execute(f"PRAGMA table_info({table})")}
                for table in tables
            }
    assert columns["old"] == columns["new"]


async def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    await (await SqliteStreams.open(tmp_path / "db")).close()
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(UnknownSchema, match="newer Holdfast"):
        await SqliteStreams.open(tmp_path / "db")


async def test_what_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"nothing of the kind" * 1000)
    with pytest.raises(DatabaseDamaged, match="not a database"):
        await SqliteStreams.open(tmp_path / "db")
