"""Records of the Daytona API: found by id and name, apart by tenant and kind, changed whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.compat.daytona.records import Record
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.daytona_records import SqliteDaytonaRecords

pytestmark = pytest.mark.anyio


async def test_records_are_kept(tmp_path: Path) -> None:
    async with Database(tmp_path / "store.db") as database:
        records = SqliteDaytonaRecords(database)
        first, second = (Record("sandbox", f"b-{n}", f"name-{n}", {"n": n}, n, n) for n in (1, 2))
        assert await records.insert("a", first)
        assert await records.insert("a", second)
        assert not await records.insert("a", Record("sandbox", "b-3", "name-1", {}, 3, 3)), "the name is taken"
        assert not await records.insert("a", Record("sandbox", "b-1", "name-3", {}, 3, 3)), "the id is taken"
        assert await records.insert("b", first), "another tenant has names of its own"
        assert await records.insert("a", Record("volume", "b-1", "name-1", {}, 1, 1)), "and so has another kind"
        assert await records.find("a", "sandbox", "b-1") == await records.find("a", "sandbox", "name-1") == first
        assert await records.find("c", "sandbox", "b-1") is None
        assert await records.list("a", "sandbox") == [second, first]
        assert await records.count("a", "sandbox") == 2
        changed = await records.change("a", "sandbox", "b-1", lambda document: {**document, "more": True}, 9)
        assert changed == Record("sandbox", "b-1", "name-1", {"n": 1, "more": True}, 1, 9)
        assert await records.find("b", "sandbox", "b-1") == first, "the other tenant's is as it was"
        assert await records.change("a", "sandbox", "none", lambda document: document, 9) is None
        assert await records.remove("a", "sandbox", "b-1")
        assert not await records.remove("a", "sandbox", "b-1")


async def test_an_id_comes_before_a_name(tmp_path: Path) -> None:
    async with Database(tmp_path / "store.db") as database:
        records = SqliteDaytonaRecords(database)
        await records.insert("a", Record("sandbox", "b-1", "x", {}, 1, 1))
        await records.insert("a", Record("sandbox", "b-2", "b-1", {}, 2, 2))
        found = await records.find("a", "sandbox", "b-1")
        assert found is not None
        assert found.id == "b-1"
