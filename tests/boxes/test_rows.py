"""Rows and leases in SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.boxes.conftest import SPEC
from tests.boxes.test_decisions import NOW, row

from holdfast.api.box_spec import Lifetime, VolumeMount
from holdfast.api.boxes import BoxState
from holdfast.api.errors.boxes import BoxConflict
from holdfast.api.network import Network, NetworkPolicy
from holdfast.boxes.rows import BoxRows
from holdfast.boxes.service.leases import LEASE, Leases
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.storage.sqlite.schema import connect, prepare
from holdfast.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_a_row_comes_back_as_it_was(rows: SqliteBoxes) -> None:
    store: BoxRows = rows
    whole = row(
        spec=replace(
            SPEC,
            cpu=0.5,
            env={"A": "ü\n"},
            volumes=(VolumeMount("v", "/v", "sub", True),),
            network=NetworkPolicy(Network.ALLOW, ("a.example",)),
            lifetime=Lifetime.EPHEMERAL,
            idle_seconds=0,
        ),
        labels={"a": "b"},
        ended_at=1,
        ended_why="why",
        freed=2,
        snapshot="s",
        holder="h",
    )
    await store.insert(whole)
    assert await store.get("default", "b-1") == whole
    assert await store.get("another", "b-1") is None
    assert await store.of_key("default", "k") == whole
    assert await store.live("default", "here") == [whole]
    assert await store.live("default", "there") == []


async def test_a_key_has_one_live_box_besides_one_shots(rows: SqliteBoxes) -> None:
    await rows.insert(row())
    with pytest.raises(BoxConflict, match="key k has a live box already: b-1"):
        await rows.insert(row(id="b-2"))
    await rows.insert(row(id="b-2", spec=replace(SPEC, lifetime=Lifetime.ONE_SHOT)))
    await rows.insert(row(id="b-3", tenant="another"))
    await rows.insert(row(id="b-4", key=None))
    await rows.insert(row(id="b-5", key=None))
    await rows.swap(row(), row(BoxState.GONE))
    await rows.insert(row(id="b-6"))
    with pytest.raises(BoxConflict, match="box id b-6 is taken"):
        await rows.insert(row(id="b-6", key="other"))


@pytest.mark.parametrize("meanwhile", [{"holder": "another"}, {"changed_at": NOW + 1}], ids=["holder", "changed"])
async def test_a_swap_fails_where_another_came_back_to_the_same_state(
    rows: SqliteBoxes, meanwhile: dict[str, Any]
) -> None:
    read = row(BoxState.STOPPING, holder="dead")
    await rows.insert(read)
    await rows.swap(read, replace(read, **meanwhile))
    with pytest.raises(BoxConflict, match="stopping"):
        await rows.swap(read, row(BoxState.STOPPED))


async def test_a_swap_wants_the_row_as_it_was_read(rows: SqliteBoxes) -> None:
    await rows.insert(row())
    await rows.swap(row(), row(BoxState.STOPPING))
    with pytest.raises(BoxConflict, match="was running, is stopping now"):
        await rows.swap(row(), row(BoxState.DELETING))
    assert not await rows.touch("default", "b-1", BoxState.RUNNING, NOW)
    assert await rows.touch("default", "b-1", BoxState.STOPPING, NOW)
    with pytest.raises(BoxConflict):
        await rows.swap(row(BoxState.STOPPING), row(BoxState.STOPPED))
    await rows.forget("default", "b-1")
    with pytest.raises(BoxConflict, match="is no more"):
        await rows.swap(row(), row(BoxState.DELETING))


async def test_a_lease_has_one_holder_until_it_is_released_or_expires(rows: SqliteBoxes) -> None:
    async def take(holder: str, now: int) -> bool:
        return await rows.take("default", "x", holder, now, 10)

    assert await take("a", 0)
    assert not await take("b", 9)
    assert await take("a", 5)
    assert not await take("b", 14)
    assert await rows.renew("default", ["x", "y"], "a", 14, 10) == 1
    assert not await take("b", 23)
    assert await rows.held("default", "", 23) == {"x"}
    assert await rows.held("default", "", 24) == set()
    assert await take("b", 24)
    await rows.release("default", "x", "a")
    assert await rows.renew("default", ["x"], "a", 24, 10) == 0
    assert not await take("a", 25)
    await rows.release("default", "x", "b")
    assert await take("a", 25)


async def test_only_one_of_many_connections_gets_a_lease(rows: SqliteBoxes, tmp_path: Path) -> None:
    async with SqliteBoxes(tmp_path / "data.db") as other:
        taken = await asyncio.gather(
            *(each.take("default", "x", f"h{number}", 0, 10) for number, each in enumerate((rows, other) * 10))
        )
    assert sum(taken) == 1


async def test_turns_are_taken_one_at_a_time_and_the_dead_lose_theirs(
    rows: SqliteBoxes, tmp_path: Path, clock: ManualClock
) -> None:
    async with SqliteBoxes(tmp_path / "data.db") as other_rows:
        mine, other = Leases(rows, "default", clock.now), Leases(other_rows, "default", clock.now)
        await mine.join()
        await other.join()
        assert await mine.holders() == {mine.holder, other.holder}
        at_once = most = 0

        async def work(turns: Leases) -> None:
            nonlocal at_once, most
            async with turns.turn("x"):
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0)
                at_once -= 1

        await asyncio.gather(*(work(turns) for turns in (mine, other) * 5))
        assert most == 1
        async with asyncio.timeout(10), other.turn("x"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), mine.turn("x"):
                    pass
            clock.advance(LEASE)  # as if it had died
            assert await mine.holders() == {mine.holder}
            async with mine.turn("x"):
                pass
        await mine.close()
        await other.close()


async def test_a_wait_that_is_cancelled_leaves_no_lease_behind(rows: SqliteBoxes, clock: ManualClock) -> None:
    turns = Leases(rows, "default", clock.now)

    async def hold() -> None:
        async with turns.turn("x"):
            await asyncio.Event().wait()

    for steps in range(20):
        holding = asyncio.create_task(hold())
        for _ in range(steps):
            await asyncio.sleep(0)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    assert await rows.held("default", "x", clock.now()) == set()


async def test_old_tombstones_and_leases_are_pruned(rows: SqliteBoxes) -> None:
    for id, ended in (("old", 5), ("kept", 5), ("young", 10)):
        await rows.insert(row(BoxState.DELETED, id=id, ended_at=ended))
    await rows.insert(row(id="alive"))
    await rows.take("default", "old", "h", 0, 5)
    await rows.take("default", "young", "h", 0, 10)
    assert await rows.prune("default", 10, ["kept"]) == 1
    assert [id for id in ("old", "kept", "young", "alive") if await rows.get("default", id)] == [
        "kept",
        "young",
        "alive",
    ]
    assert await rows.held("default", "", -1) == {"young"}
    assert await rows.prune("default", 10, ["kept"]) == 0


async def test_a_store_knows_since_when_it_knows_a_node(rows: SqliteBoxes) -> None:
    assert await rows.join("default", "here", 5) == 5
    assert await rows.join("default", "here", 9) == 5
    assert await rows.join("default", "there", 9) == 9


async def test_a_store_of_threads_gets_the_tables_it_lacks(tmp_path: Path) -> None:
    connection = connect(tmp_path / "data.db")
    prepare(connection)
    for table in ("boxes", "box_leases", "box_nodes"):
        connection.execute(f"DROP TABLE {table}")
    connection.close()
    async with SqliteBoxes(tmp_path / "data.db") as rows:
        await rows.insert(row())
    with pytest.raises(RuntimeError):
        await rows.get("default", "b-1")
    connection = sqlite3.connect(tmp_path / "data.db")
    assert connection.execute("SELECT id FROM boxes").fetchall() == [("b-1",)]
    connection.close()


async def test_of_changes_that_share_a_transaction_one_that_fails_fails_alone(rows: SqliteBoxes) -> None:
    same = [row(id=f"b-{number % 8}", key=None) for number in range(16)]
    answers = await asyncio.gather(*(rows.insert(each) for each in same), return_exceptions=True)
    assert answers[:8] == [None] * 8
    assert [type(answer) for answer in answers[8:]] == [BoxConflict] * 8
    assert [each.id for each in await rows.live("default", "here")] == [f"b-{number}" for number in range(8)]


async def test_a_change_that_nobody_waits_for_any_more_is_made_at_once_or_never(rows: SqliteBoxes) -> None:
    await rows.insert(row(id="b-0", key=None))
    changing = [asyncio.ensure_future(rows.insert(row(id=f"b-{number}", key=None))) for number in range(1, 6)]
    await asyncio.sleep(0)
    for each in changing:
        each.cancel()
    await asyncio.gather(*changing, return_exceptions=True)
    await rows.get("default", "b-0")  # whatever was under way is over
    there = await rows.live("default", "here")
    await rows.insert(row(id="b-9", key=None))
    assert await rows.live("default", "here") == [*there, await rows.get("default", "b-9")]


async def test_whoever_asks_after_a_change_sees_it_though_all_come_at_once(rows: SqliteBoxes) -> None:
    first, second = row(id="b-1", key="one"), row(id="b-2", key="two")
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
