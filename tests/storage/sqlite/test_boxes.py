"""Boxes on SQLite keep the contract, and what is their own: order, cancelled changes, tables that are missing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.boxes.rows import BoxRows
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.storage.sqlite.schema import connect, prepare
from holdfast.testing.store_suites import BoxLeaseSuite, BoxRowSuite
from holdfast.testing.store_suites.box_rows import box_row
from holdfast.testing.store_suites.opener import OpenStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def open_store(tmp_path: Path) -> OpenStore[BoxRows]:
    @asynccontextmanager
    async def open_store(tenant: str) -> AsyncIterator[BoxRows]:
        async with SqliteBoxes(tmp_path / "data.db") as rows:
            yield rows

    return open_store


@pytest.fixture
async def rows(tmp_path: Path) -> AsyncIterator[SqliteBoxes]:
    async with SqliteBoxes(tmp_path / "data.db") as rows:
        yield rows


class TestSqliteBoxRows(BoxRowSuite):
    pass


class TestSqliteBoxLeases(BoxLeaseSuite):
    pass


async def test_a_store_of_threads_gets_the_tables_it_lacks(tmp_path: Path) -> None:
    connection = connect(tmp_path / "data.db")
    prepare(connection)
    for table in ("boxes", "box_leases", "box_nodes"):
        connection.execute(f"DROP TABLE {table}")
    connection.close()
    async with SqliteBoxes(tmp_path / "data.db") as rows:
        await rows.insert(box_row())
    with pytest.raises(RuntimeError):
        await rows.get("default", "b-1")
    connection = sqlite3.connect(tmp_path / "data.db")
    assert connection.execute("SELECT id FROM boxes").fetchall() == [("b-1",)]
    connection.close()


async def test_a_change_that_nobody_waits_for_any_more_is_made_at_once_or_never(rows: SqliteBoxes) -> None:
    await rows.insert(box_row(id="b-0", key=None))
    changing = [asyncio.ensure_future(rows.insert(box_row(id=f"b-{number}", key=None))) for number in range(1, 6)]
    await asyncio.sleep(0)
    for each in changing:
        each.cancel()
    await asyncio.gather(*changing, return_exceptions=True)
    await rows.get("default", "b-0")  # whatever was under way is over
    there = await rows.live("default", "here")
    await rows.insert(box_row(id="b-9", key=None))
    assert await rows.live("default", "here") == [*there, await rows.get("default", "b-9")]


async def test_whoever_asks_after_a_change_sees_it_though_all_come_at_once(rows: SqliteBoxes) -> None:
    first, second = box_row(id="b-1", key="one"), box_row(id="b-2", key="two")
    asked = await asyncio.gather(
        rows.get("default", "b-1"),
        rows.insert(first),
        rows.get("default", "b-1"),
        rows.get("default", "b-2"),
        rows.insert(second),
        rows.swap(first, replace(first, ended_why="swapped")),
        rows.get("default", "b-1"),
    )
    assert asked == [None, None, first, None, None, None, replace(first, ended_why="swapped")]
