"""The sleep of boxes, where things go wrong halfway and several are at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.boxes.conftest import SPEC

from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import OnIdle
from holdfast.api.errors.boxes import BoxConflict, BoxGone, BoxUnreachable, NoSpace, Unsupported
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import HIBERNATION
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.reaper import STUCK
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import CAPABILITIES, DummyProvider

pytestmark = pytest.mark.anyio

HIBERNATE = replace(SPEC, on_idle=OnIdle.HIBERNATE, idle_seconds=60)
PAUSE = replace(SPEC, on_idle=OnIdle.PAUSE, idle_seconds=60)


@pytest.fixture
async def provider(tmp_path: Path, clock: ManualClock) -> AsyncIterator[DummyProvider]:
    able = CAPABILITIES | {Capability.PAUSE}
    async with DummyProvider(tmp_path / "dummy", clock=clock.now, capabilities=able) as provider:
        yield provider


@pytest.fixture
async def other(rows: SqliteBoxes, provider: DummyProvider, clock: ManualClock) -> AsyncIterator[Boxes]:
    """Another server on the same store."""
    boxes = Boxes(rows, {"dummy": provider}, node="here", clock=clock.now)
    yield boxes
    await boxes.close()


async def test_a_box_falls_asleep_when_idle_and_says_so(boxes: Boxes, clock: ManualClock) -> None:
    hibernated, paused = await boxes.create(HIBERNATE), await boxes.create(PAUSE)
    clock.advance(59_000)
    assert (await boxes.sweep()).asleep == ()
    clock.advance(1_000)
    assert set((await boxes.sweep()).asleep) == {hibernated.id, paused.id}
    assert (await boxes.get(hibernated.id)).state is BoxState.HIBERNATED
    assert (await boxes.get(paused.id)).state is BoxState.PAUSED
    clock.advance(10**9)
    swept = await boxes.sweep()
    assert (swept.asleep, swept.removed) == ((), ())


async def test_looking_is_no_use_and_working_is(boxes: Boxes, clock: ManualClock) -> None:
    row = await boxes.create(HIBERNATE)
    for _ in range(6):
        clock.advance(9_000)
        await boxes.get(row.id)
        async with await boxes.peek(row.id) as box:
            await box.metrics()
            await box.processes()
        await boxes.sweep()
    with boxes.using(row.id):
        clock.advance(10_000)
        assert (await boxes.sweep()).asleep == ()
    clock.advance(59_000)
    assert (await boxes.sweep()).asleep == ()
    clock.advance(1_010)
    assert (await boxes.sweep()).asleep == (row.id,)


async def test_what_a_provider_cannot_do_is_refused_before_anything_is_made(
    rows: SqliteBoxes, tmp_path: Path, clock: ManualClock
) -> None:
    async with DummyProvider(tmp_path / "less", capabilities=CAPABILITIES - {Capability.STOP}) as provider:
        boxes = Boxes(rows, {"dummy": provider}, node="here", clock=clock.now)
        with pytest.raises(Unsupported, match="does not support pause"):
            await boxes.create(PAUSE)
        with pytest.raises(Unsupported, match="does not support stop"):
            await boxes.create(HIBERNATE)
        assert await provider.find() == []
        await boxes.close()


async def test_who_comes_while_a_box_falls_asleep_waits_and_wakes_it(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(HIBERNATE)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await go_on.wait()

    provider.at["snapshot"] = hang
    sleeping = asyncio.create_task(boxes.hibernate(row.id))
    await reached.wait()
    assert (await boxes.get(row.id)).state is BoxState.HIBERNATING
    opening = asyncio.create_task(boxes.open(row.id))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not opening.done()
    go_on.set()
    assert (await sleeping).state is BoxState.HIBERNATED
    async with await opening as box:
        assert (await box.exec(["true"])).ok


async def test_a_box_that_is_used_at_the_last_moment_stays_awake(boxes: Boxes) -> None:
    """It is seen awake by somebody right before it is said to be asleep."""
    for sleep in (boxes.hibernate, boxes.pause):
        row = await boxes.create(HIBERNATE)
        with boxes.using(row.id):
            with pytest.raises(BoxConflict, match="in use"):
                await sleep(row.id)
            async with await boxes.open(row.id) as box:
                assert (await box.exec(["true"])).ok
        assert (await boxes.get(row.id)).state is BoxState.RUNNING


async def test_a_box_that_another_server_uses_is_not_put_to_sleep(
    boxes: Boxes, other: Boxes, clock: ManualClock
) -> None:
    row = await boxes.create(HIBERNATE)
    with other.working(row.id):
        clock.advance(100_000)
        await other.sweep()
        assert (await boxes.sweep()).asleep == ()


async def test_two_servers_wake_a_box_once(boxes: Boxes, other: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(HIBERNATE)
    await boxes.hibernate(row.id)
    provider.calls.clear()
    opened = await asyncio.gather(*(each.open(row.id) for each in (boxes, other) for _ in range(20)))
    for box in opened:
        assert (await box.exec(["true"])).ok
        await box.close()
    assert provider.calls["start"] == 1


@pytest.mark.parametrize("point", ["stop", "snapshot", "snapshot.half", "delete_snapshot"])
async def test_a_sleep_that_fails_halfway_loses_nothing(boxes: Boxes, provider: DummyProvider, point: str) -> None:
    row = await boxes.create(HIBERNATE)
    async with await boxes.open(row.id) as box:
        await box.files.write("notes", b"1")
    await boxes.hibernate(row.id)
    async with await boxes.open(row.id) as box:
        await box.files.write("notes", b"2")
    provider.fail_next(point, NoSpace("the disk is full"))
    with pytest.raises(NoSpace):
        await boxes.hibernate(row.id)
    assert (await boxes.get(row.id)).state in (BoxState.RUNNING, BoxState.HIBERNATED)
    async with await boxes.open(row.id) as box:
        assert await box.files.read("notes") == b"2"
    await boxes.hibernate(row.id)
    assert len(await provider.snapshots({HIBERNATION: row.id})) == 1


async def test_a_wake_that_fails_is_tried_again_by_the_next_who_asks(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(HIBERNATE)
    await boxes.hibernate(row.id)
    provider.fail_next("start", BoxUnreachable("no answer"))
    with pytest.raises(BoxUnreachable):
        await boxes.open(row.id)
    assert (await boxes.get(row.id)).state is BoxState.HIBERNATED
    async with await boxes.open(row.id) as box:
        assert (await box.exec(["true"])).ok


async def test_what_somebody_died_at_is_settled(
    boxes: Boxes, rows: SqliteBoxes, provider: DummyProvider, clock: ManualClock
) -> None:
    for state in (BoxState.HIBERNATING, BoxState.WAKING):
        for stopped, then in ((False, BoxState.RUNNING), (True, BoxState.HIBERNATED)):
            row = await boxes.create(HIBERNATE)
            if stopped:
                async with await provider.attach(row.id) as box:
                    await box.stop()
            await rows.swap(row, replace(row, state=state, holder="h-dead"))
            clock.advance(STUCK)
            await boxes.sweep()
            assert (await boxes.get(row.id)).state is then
            async with await boxes.open(row.id) as box:
                assert (await box.exec(["true"])).ok
            await boxes.delete(row.id)


async def test_lost_files_come_back_also_where_the_first_try_fails(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(HIBERNATE)
    async with await boxes.open(row.id) as box:
        await box.files.write("notes", b"1")
    await boxes.hibernate(row.id)
    await provider.remove(row.id)
    assert (await boxes.sweep()).gone == ()
    provider.fail_next("restore", NoSpace("the disk is full"))
    with pytest.raises(NoSpace):
        await boxes.open(row.id)
    assert (await boxes.get(row.id)).state is BoxState.HIBERNATED
    async with await boxes.open(row.id) as box:
        assert await box.files.read("notes") == b"1"


async def test_a_sleeping_box_without_files_and_without_a_snapshot_is_gone(
    boxes: Boxes, provider: DummyProvider
) -> None:
    row = await boxes.create(HIBERNATE)
    await boxes.hibernate(row.id)
    (taken,) = await provider.snapshots({HIBERNATION: row.id})
    await boxes.delete_snapshot(taken.id)
    await provider.remove(row.id)
    with pytest.raises(BoxGone):
        await boxes.open(row.id)
    assert (await boxes.get(row.id)).state is BoxState.GONE


async def test_the_snapshot_of_a_sleep_goes_with_its_box(
    boxes: Boxes, provider: DummyProvider, clock: ManualClock
) -> None:
    kept = await boxes.create(HIBERNATE)
    await boxes.hibernate(kept.id)
    by_us = await boxes.create(HIBERNATE)
    await boxes.hibernate(by_us.id)
    await boxes.delete(by_us.id)
    changed = await boxes.create(SPEC)  # of a box that is not told to hibernate, but was
    await boxes.hibernate(changed.id)
    await boxes.delete(changed.id)
    await boxes.sweep()
    assert {each.labels[HIBERNATION] for each in await provider.snapshots()} == {kept.id}
