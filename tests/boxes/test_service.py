"""The box service on SQLite and the dummy provider."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tests.boxes.conftest import SPEC

from holdfast.api.box.box import BoxInfo, Liveness, Power
from holdfast.api.box.records import OWNER_THREAD, BoxState, Owner
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxGone,
    BoxNotFound,
    BoxUnreachable,
    CreateFailed,
    InvalidSpec,
    NoSpace,
    Unsupported,
    WrongSnapshot,
)
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import KEY, NODE, TENANT
from holdfast.boxes.labels import SPEC as SPEC_LABEL
from holdfast.boxes.rows import BoxFilter, BoxRow
from holdfast.boxes.service.acquire_rules import How
from holdfast.boxes.service.boxes import Boxes
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import CAPABILITIES, DummyProvider

pytestmark = pytest.mark.anyio


# Making


async def test_a_new_box_runs_and_is_written_down(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(replace(SPEC, labels={"team": "blue"}), owner=Owner(thread="t-1"))
    assert row.state is BoxState.RUNNING
    assert row == await boxes.get(row.id)
    assert row.owner == Owner("default", "t-1", None)
    assert row.labels == {
        "team": "blue", TENANT: "default", OWNER_THREAD: "t-1", SPEC_LABEL: row.spec.hash, NODE: "here",
    }  # fmt: skip
    (info,) = await provider.find({OWNER_THREAD: "t-1"})
    assert info.id == row.id
    async with await boxes.open(row.id) as box:
        assert (await box.exec(["echo", "hello"])).text == "hello\n"


async def test_reserved_labels_are_refused(boxes: Boxes, provider: DummyProvider) -> None:
    with pytest.raises(InvalidSpec, match=r"holdfast\.key is reserved"):
        await boxes.create(replace(SPEC, labels={KEY: "mine"}))
    assert provider.calls["create"] == 0


async def test_what_the_provider_cannot_do_is_refused_by_name_before_anything_is_made(
    boxes: Boxes, provider: DummyProvider
) -> None:
    for spec, what in ((replace(SPEC, memory=1 << 30), "memory-limit"), (replace(SPEC, image="x"), "images")):
        with pytest.raises(Unsupported, match=what):
            await boxes.acquire("k", spec)
    with pytest.raises(Unsupported, match="there is no provider moon"):
        await boxes.create(BoxSpec(provider="moon"))
    assert provider.calls["create"] == 0
    assert (await boxes.list(BoxFilter(live_only=False))).rows == ()


async def test_a_create_that_fails_leaves_a_tombstone_that_says_why(boxes: Boxes, provider: DummyProvider) -> None:
    for error, raised in ((NoSpace("the disk is full"), NoSpace), (RuntimeError("odd"), CreateFailed)):
        provider.fail_next("create.half", error)
        with pytest.raises(raised):
            await boxes.create(SPEC)
    rows = (await boxes.list(BoxFilter(live_only=False))).rows
    assert {row.state for row in rows} == {BoxState.DELETED}
    assert {row.ended_why for row in rows} == {"could not be created: the disk is full", "could not be created: odd"}
    assert await provider.find() == []


async def test_a_create_whose_row_cannot_be_written_leaves_no_box(
    boxes: Boxes, provider: DummyProvider, rows: SqliteBoxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(row: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(rows, "insert", full)
    with pytest.raises(CreateFailed, match="the disk is full"):
        await boxes.create(SPEC)
    assert await provider.find() == []


@pytest.mark.parametrize("point", ["create", "create.half", "create.made"])
async def test_a_cancelled_create_leaves_nothing(boxes: Boxes, provider: DummyProvider, point: str) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    provider.at[point] = hang
    creating = asyncio.create_task(boxes.acquire("k", SPEC))
    await reached.wait()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await provider.find() == []
    (row,) = (await boxes.list(BoxFilter(live_only=False))).rows
    assert (row.state, row.ended_why) == (BoxState.DELETED, "cancelled")
    del provider.at[point]
    assert (await boxes.acquire("k", SPEC)).how is How.CREATED


async def test_an_acquire_that_takes_too_long_says_so_and_leaves_nothing(boxes: Boxes, provider: DummyProvider) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    provider.at["create.half"] = hang
    with pytest.raises(BoxUnreachable, match=r"not ready within 0\.05 s"):
        await boxes.acquire("k", SPEC, timeout=0.05)
    assert await provider.find() == []


async def test_an_id_of_ones_own_is_taken_once(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(SPEC, id="mine")
    with pytest.raises(BoxConflict, match="box id mine is taken"):
        await boxes.create(SPEC, id="mine")
    assert [info.id for info in await provider.find()] == [row.id]
    await provider.create(SPEC, id="theirs")
    with pytest.raises(BoxConflict):
        await boxes.create(SPEC, id="theirs")
    assert {info.id for info in await provider.find()} == {"mine", "theirs"}
    with pytest.raises(BoxNotFound):
        await boxes.get("theirs")


# Acquiring


async def test_many_at_once_get_one_box(boxes: Boxes, provider: DummyProvider) -> None:
    acquired = await asyncio.gather(*(boxes.acquire("k", SPEC) for _ in range(50)))
    assert len({each.row.id for each in acquired}) == 1
    assert provider.calls["create"] == 1
    assert sorted(each.how for each in acquired) == [How.CREATED] + [How.RESUMED] * 49


async def test_two_services_on_one_store_get_one_box(
    boxes: Boxes, provider: DummyProvider, tmp_path: Path, clock: ManualClock
) -> None:
    async with SqliteBoxes(tmp_path / "data.db") as rows, DummyProvider(tmp_path / "dummy") as second:
        other = Boxes(rows, {"dummy": second}, node="here", clock=clock.now)
        acquired = await asyncio.gather(*(each.acquire("k", SPEC) for each in (boxes, other) * 10))
        await other.close()
    assert len({each.row.id for each in acquired}) == 1
    assert provider.calls["create"] + second.calls["create"] == 1


async def test_keys_do_not_wait_for_each_other(boxes: Boxes, provider: DummyProvider) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await go_on.wait()

    provider.at["create.half"] = hang
    slow = asyncio.create_task(boxes.acquire("slow", SPEC))
    await reached.wait()
    del provider.at["create.half"]
    await boxes.acquire("quick", SPEC)
    assert not slow.done()
    go_on.set()
    await slow


async def test_a_changed_spec_replaces_the_box_and_says_what_changed(boxes: Boxes, provider: DummyProvider) -> None:
    first = await boxes.acquire("k", replace(SPEC, env={"TOKEN": "hush", "SAME": "1"}))
    second = await boxes.acquire("k", replace(SPEC, env={"TOKEN": "hush-hush", "SAME": "1"}, workdir="/code"))
    assert (second.how, second.replaced) == (How.CREATED, first.row.id)
    assert second.why == "the spec changed: env (TOKEN), workdir /workspace → /code"
    old = await boxes.get(first.row.id)
    assert (old.state, old.ended_why) == (BoxState.DELETED, f"replaced: {second.why}")
    assert [info.id for info in await provider.find()] == [second.row.id]


async def test_labels_and_lifetime_do_not_make_another_machine(boxes: Boxes) -> None:
    first = await boxes.acquire("k", SPEC)
    again = await boxes.acquire("k", replace(SPEC, lifetime=Lifetime.EPHEMERAL, idle_seconds=5, labels={"a": "b"}))
    assert (again.row.id, again.how) == (first.row.id, How.RESUMED)
    assert (await boxes.get(first.row.id)).lifetime is Lifetime.EPHEMERAL


async def test_a_stopped_box_is_started(boxes: Boxes, provider: DummyProvider) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    assert (await boxes.stop(row.id)).state is BoxState.STOPPED
    acquired = await boxes.acquire("k", SPEC)
    assert (acquired.row.id, acquired.how, acquired.row.state) == (row.id, How.RESUMED, BoxState.RUNNING)
    assert (await provider.find())[0].power is Power.RUNNING


async def test_a_box_that_stopped_by_itself_is_started_too(boxes: Boxes, provider: DummyProvider) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    async with await provider.attach(row.id) as box:
        await box.stop()
    assert (await boxes.acquire("k", SPEC)).why == "it was stopped and has been started"
    assert (await provider.find())[0].power is Power.RUNNING


async def test_a_box_whose_start_fails_for_good_is_replaced(boxes: Boxes, provider: DummyProvider) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    await boxes.stop(row.id)

    async def is_lost() -> None:
        del provider.at["start"]
        await provider.remove(row.id)
        raise BoxGone("its disk is gone")

    provider.at["start"] = is_lost
    acquired = await boxes.acquire("k", SPEC)
    assert (acquired.how, acquired.why) == (How.CREATED, f"box {row.id} could not be started and is gone")
    assert (await boxes.get(row.id)).state is BoxState.GONE


async def test_a_box_that_is_gone_comes_back_from_its_latest_snapshot(boxes: Boxes, provider: DummyProvider) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    async with await boxes.open(row.id) as box:
        await box.files.write("a", b"old")
        await boxes.snapshot(row.id)
        await box.files.write("a", b"new")
        latest = await boxes.snapshot(row.id, {"mine": "yes"})
    assert latest.labels[KEY] == "k"
    assert latest.labels["mine"] == "yes"
    await provider.remove(row.id)
    acquired = await boxes.acquire("k", SPEC)
    assert acquired.how is How.RESTORED
    assert acquired.why == f"box {row.id} is gone; restored from snapshot {latest.id}"
    assert acquired.row.snapshot == latest.id
    assert (await boxes.get(row.id)).state is BoxState.GONE
    async with await boxes.open(acquired.row.id) as box:
        assert await box.files.read("a") == b"new"


async def test_a_snapshot_that_cannot_be_restored_is_passed_over_and_said(
    boxes: Boxes, provider: DummyProvider
) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    snapshot = await boxes.snapshot(row.id)
    await boxes.delete(row.id)
    provider.fail_next("restore", WrongSnapshot("it is damaged"))
    acquired = await boxes.acquire("k", SPEC)
    assert acquired.how is How.CREATED
    assert acquired.why == f"snapshot {snapshot.id} could not be restored (it is damaged), so the box starts empty"


async def test_a_fresh_box_has_nothing_of_the_one_before(boxes: Boxes) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    await boxes.snapshot(row.id)
    acquired = await boxes.acquire("k", SPEC, fresh=True)
    assert (acquired.how, acquired.replaced, acquired.why) == (How.CREATED, row.id, "a fresh one was asked for")
    assert acquired.row.snapshot is None
    assert (await boxes.get(row.id)).state is BoxState.DELETED
    assert (await boxes.acquire("k", SPEC)).row.id == acquired.row.id
    await boxes.delete(acquired.row.id)
    assert (await boxes.acquire("k", SPEC, fresh=True)).how is How.CREATED


async def test_a_snapshot_of_another_spec_is_not_taken(boxes: Boxes) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    await boxes.snapshot(row.id)
    assert (await boxes.acquire("k", replace(SPEC, env={"A": "1"}))).how is How.CREATED


async def test_a_box_that_may_be_alive_is_never_doubled(boxes: Boxes, provider: DummyProvider) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    provider.liveness[row.id] = Liveness.UNKNOWN
    for spec in (SPEC, replace(SPEC, env={"A": "1"})):
        with pytest.raises(BoxUnreachable):
            await boxes.acquire("k", spec)
    assert (await boxes.sweep()).gone == ()
    assert provider.calls["create"] == 1
    assert (await boxes.get(row.id)).state is BoxState.RUNNING
    del provider.liveness[row.id]
    assert (await boxes.acquire("k", SPEC)).row.id == row.id


async def test_a_box_of_another_node_is_not_taken_for_gone(
    boxes: Boxes, rows: SqliteBoxes, tmp_path: Path, clock: ManualClock
) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    async with DummyProvider(tmp_path / "elsewhere") as provider:
        elsewhere = Boxes(rows, {"dummy": provider}, node="there", clock=clock.now)
        for attempt in (elsewhere.acquire("k", SPEC), elsewhere.open(row.id), elsewhere.delete(row.id)):
            with pytest.raises(BoxUnreachable, match="on node here"):
                await attempt
        clock.advance(3_600_000)
        await elsewhere.sweep()
        await elsewhere.close()
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


async def test_a_one_shot_is_never_given_out_twice(boxes: Boxes) -> None:
    shared = (await boxes.acquire("k", SPEC)).row
    one_shot = replace(SPEC, lifetime=Lifetime.ONE_SHOT)
    acquired = [await boxes.acquire("k", one_shot) for _ in range(2)]
    assert len({shared.id, *(each.row.id for each in acquired)}) == 3
    assert {each.how for each in acquired} == {How.CREATED}
    assert (await boxes.acquire("k", SPEC)).row.id == shared.id


async def test_a_box_whose_row_was_lost_is_found_by_its_labels(
    boxes: Boxes, provider: DummyProvider, tmp_path: Path, clock: ManualClock
) -> None:
    row = (await boxes.acquire("k", SPEC, owner=Owner(thread="t-1"))).row
    async with SqliteBoxes(tmp_path / "other.db") as rows:
        other = Boxes(rows, {"dummy": provider}, node="here", clock=clock.now)
        acquired = await other.acquire("k", SPEC)
        await other.close()
    assert (acquired.row.id, acquired.how) == (row.id, How.RESUMED)
    assert acquired.row.owner.thread == "t-1"


# Looking, stopping, deleting


async def test_boxes_are_listed_by_label_page_by_page(boxes: Boxes, clock: ManualClock) -> None:
    made = []
    for number in range(5):
        clock.advance(1)
        made.append((await boxes.create(replace(SPEC, labels={"odd": str(number % 2)}))).id)
    await boxes.delete(made[4])
    page = await boxes.list(BoxFilter(limit=1, labels={"odd": "0"}))
    rest = await boxes.list(BoxFilter(limit=1, labels={"odd": "0"}, after=page.next_cursor))
    assert [row.id for row in (*page.rows, *rest.rows)] == [made[2], made[0]]
    assert rest.next_cursor is None
    dead = await boxes.list(BoxFilter(states=[BoxState.DELETED]))
    assert [row.id for row in dead.rows] == [made[4]]


async def test_stop_keeps_files_and_can_be_repeated(boxes: Boxes) -> None:
    row = await boxes.create(SPEC)
    async with await boxes.open(row.id) as box:
        await box.files.write("kept", b"yes")
    for _ in range(2):
        assert (await boxes.stop(row.id)).state is BoxState.STOPPED
    for _ in range(2):
        assert (await boxes.start_box(row.id)).state is BoxState.RUNNING
    async with await boxes.open(row.id) as box:
        assert await box.files.read("kept") == b"yes"


async def test_a_stop_that_fails_leaves_the_row_saying_what_is(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(SPEC)
    provider.fail_next("stop", BoxUnreachable("no answer"))
    with pytest.raises(BoxUnreachable):
        await boxes.stop(row.id)
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


async def test_delete_says_what_it_freed_again_and_again(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(SPEC)
    async with await boxes.open(row.id) as box:
        await box.files.write("big", bytes(100_000))
    deleted = await boxes.delete(row.id)
    assert deleted.freed >= 100_000
    assert await boxes.delete(row.id) == deleted
    tombstone = await boxes.get(row.id)
    assert (tombstone.state, tombstone.freed, tombstone.ended_why) == (BoxState.DELETED, deleted.freed, "deleted")
    for attempt in (boxes.open(row.id), boxes.stop(row.id), boxes.snapshot(row.id), boxes.fork(row.id)):
        with pytest.raises(BoxGone):
            await attempt
    with pytest.raises(BoxNotFound):
        await boxes.delete("b-none")
    assert provider.calls["remove"] == 1


async def test_many_deletes_at_once_are_one(boxes: Boxes, provider: DummyProvider) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    assert len(set(await asyncio.gather(*(boxes.delete(row.id) for _ in range(10))))) == 1
    assert await provider.find() == []


async def test_a_box_that_its_provider_lost_is_buried_when_opened(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(SPEC)
    await provider.remove(row.id)
    with pytest.raises(BoxGone):
        await boxes.open(row.id)
    assert (await boxes.get(row.id)).state is BoxState.GONE


async def test_a_fork_is_another_box_with_the_same_files_and_no_key(boxes: Boxes) -> None:
    row = (await boxes.acquire("k", SPEC, owner=Owner(thread="t-1"))).row
    async with await boxes.open(row.id) as box:
        await box.files.write("a", b"1")
    fork = await boxes.fork(row.id)
    assert (fork.key, fork.owner.thread, KEY in fork.labels) == (None, "t-1", False)
    async with await boxes.open(fork.id) as box:
        assert await box.files.read("a") == b"1"


async def test_a_fork_can_have_a_key_that_no_other_box_has(boxes: Boxes) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    fork = await boxes.fork(row.id, key="child")
    again = await boxes.acquire("child", SPEC)
    assert (again.row.id, again.how) == (fork.id, How.RESUMED)
    with pytest.raises(BoxConflict, match=f"key k already has a live box: {row.id}"):
        await boxes.fork(row.id, key="k")
    assert {each.id for each in await boxes.rows.live(boxes.tenant, boxes.node)} == {row.id, fork.id}


async def test_a_snapshot_outlives_its_box_and_is_restored_by_its_spec(boxes: Boxes) -> None:
    row = await boxes.create(replace(SPEC, env={"A": "1"}))
    async with await boxes.open(row.id) as box:
        await box.files.write("a", b"1")
    snapshot = await boxes.snapshot(row.id)
    await boxes.delete(row.id)
    assert await boxes.snapshots(box=row.id) == [snapshot]
    assert await boxes.snapshots(key="k") == []
    restored = await boxes.restore(snapshot.id)
    assert (restored.spec, restored.snapshot) == (row.spec, snapshot.id)
    async with await boxes.open(restored.id) as box:
        assert await box.files.read("a") == b"1"
    assert await boxes.delete_snapshot(snapshot.id) > 0


async def test_volumes_go_through_to_the_provider(boxes: Boxes) -> None:
    await boxes.create_volume("v", "dummy")
    assert [volume.name for volume in await boxes.volumes("dummy")] == ["v"]
    assert await boxes.delete_volume("v", "dummy") == 0


# Sweeping

EPHEMERAL = replace(SPEC, lifetime=Lifetime.EPHEMERAL, idle_seconds=60)


async def test_an_ephemeral_box_is_reaped_when_idle_and_a_shared_one_never(boxes: Boxes, clock: ManualClock) -> None:
    shared = await boxes.create(SPEC)
    ephemeral = await boxes.create(EPHEMERAL)
    stopped = await boxes.create(EPHEMERAL)
    await boxes.stop(stopped.id)
    clock.advance(59_000)
    assert (await boxes.sweep()).removed == ()
    clock.advance(1_000)
    swept = await boxes.sweep()
    assert {each.id for each in swept.removed} == {ephemeral.id, stopped.id}
    assert {each.why for each in swept.removed} == {"idle for 60 s"}
    clock.advance(10**10)
    assert (await boxes.sweep()).removed == ()
    assert (await boxes.get(shared.id)).state is BoxState.RUNNING


async def test_a_box_that_works_is_not_idle(boxes: Boxes, clock: ManualClock) -> None:
    row = await boxes.create(EPHEMERAL)
    async with await boxes.open(row.id) as box:
        with boxes.working(row.id):
            clock.advance(100_000)
            assert (await boxes.sweep()).removed == ()
        clock.advance(59_000)
        assert (await boxes.sweep()).removed == ()
        process = await box.spawn(["cat"], stdin=True)
        clock.advance(100_000)
        assert (await boxes.sweep()).removed == ()
        await process.close_stdin()
        await process.wait(240)
        async with await box.channel(["cat"]):
            clock.advance(100_000)
            assert (await boxes.sweep()).removed == ()
    clock.advance(100_000)
    assert [each.id for each in (await boxes.sweep()).removed] == [row.id]


async def test_a_box_that_is_acquired_meanwhile_is_not_reaped(
    boxes: Boxes, provider: DummyProvider, clock: ManualClock
) -> None:
    row = (await boxes.acquire("k", EPHEMERAL)).row
    clock.advance(100_000)

    async def acquire() -> None:
        del provider.at["metrics"]
        assert (await boxes.acquire("k", EPHEMERAL)).row.id == row.id

    provider.at["metrics"] = acquire  # after the sweep read the row, before it decides
    assert (await boxes.sweep()).removed == ()
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


async def test_an_acquire_waits_for_the_reaper_and_gets_a_new_box(
    boxes: Boxes, provider: DummyProvider, clock: ManualClock
) -> None:
    row = (await boxes.acquire("k", EPHEMERAL)).row
    clock.advance(100_000)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await go_on.wait()

    provider.at["remove"] = hang
    sweeping = asyncio.create_task(boxes.sweep())
    await reached.wait()
    acquiring = asyncio.create_task(boxes.acquire("k", EPHEMERAL))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not acquiring.done()
    go_on.set()
    acquired = await acquiring
    assert acquired.row.id != row.id
    assert acquired.how is How.CREATED
    assert [each.id for each in (await sweeping).removed] == [row.id]


async def test_a_create_that_is_cancelled_at_its_very_end_leaves_nothing(
    boxes: Boxes, provider: DummyProvider, rows: SqliteBoxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = rows.swap

    async def swap_and_cancel(before: BoxRow, after: BoxRow) -> None:
        await swap(before, after)
        if after.state is BoxState.RUNNING:
            raise asyncio.CancelledError

    monkeypatch.setattr(rows, "swap", swap_and_cancel)
    with pytest.raises(asyncio.CancelledError):
        await boxes.create(SPEC)
    assert await provider.find() == []
    (row,) = (await boxes.list(BoxFilter(live_only=False))).rows
    assert (row.state, row.ended_why) == (BoxState.DELETED, "cancelled")


async def test_a_one_shot_goes_with_its_first_work(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(replace(SPEC, lifetime=Lifetime.ONE_SHOT))
    removed = asyncio.Event()
    provider.at["remove.done"] = removed.set
    with boxes.using(row.id):
        async with await boxes.open(row.id) as box:
            await box.files.write("input", b"1")
    assert (await boxes.sweep()).removed == ()
    with boxes.working(row.id):
        async with await boxes.open(row.id) as box:
            await box.exec(["true"])
    async with asyncio.timeout(240):
        await removed.wait()
    await boxes.delete(row.id)
    assert (await boxes.get(row.id)).ended_why == "one-shot, and its work has ended"


async def test_a_one_shot_stays_while_something_runs_in_it(boxes: Boxes, clock: ManualClock) -> None:
    row = await boxes.create(replace(SPEC, lifetime=Lifetime.ONE_SHOT))
    async with await boxes.open(row.id) as box:
        with boxes.working(row.id):
            process = await box.spawn(["cat"], stdin=True)
        assert (await boxes.sweep()).removed == ()
        await process.close_stdin()
        await process.wait(240)
    assert [each.id for each in (await boxes.sweep()).removed] == [row.id]


async def test_a_box_that_is_gone_becomes_a_tombstone(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(SPEC)
    await provider.remove(row.id)
    assert (await boxes.sweep()).gone == (row.id,)
    assert (await boxes.get(row.id)).state is BoxState.GONE


async def test_a_box_that_is_not_listed_is_gone_only_if_its_provider_says_so(
    boxes: Boxes, provider: DummyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(labels: object = None) -> list[BoxInfo]:
        return []

    row = await boxes.create(SPEC)
    monkeypatch.setattr(provider, "find", nothing)
    for said in (Liveness.UNKNOWN, Liveness.LIVE):
        provider.liveness[row.id] = said
        assert (await boxes.sweep()).gone == ()
        assert (await boxes.get(row.id)).state is BoxState.RUNNING


async def test_one_box_that_fails_does_not_stop_the_others_and_is_logged_once(
    boxes: Boxes, provider: DummyProvider, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    made = [await boxes.create(EPHEMERAL) for _ in range(3)]
    clock.advance(100_000)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            provider.liveness[made[0].id] = Liveness.UNKNOWN
            await boxes.sweep()
    assert [record.getMessage() for record in caplog.records] == [
        f"sweep of boxes: {made[0].id}: box {made[0].id} does not answer"
    ]
    assert [row.id for row in (await boxes.list(BoxFilter())).rows] == [made[0].id]


async def test_a_delete_that_failed_is_finished_by_the_sweep(boxes: Boxes, provider: DummyProvider) -> None:
    row = await boxes.create(SPEC)
    provider.fail_next("remove", BoxUnreachable("no answer"))
    with pytest.raises(BoxUnreachable):
        await boxes.delete(row.id)
    assert (await boxes.get(row.id)).state is BoxState.DELETING
    with pytest.raises(BoxGone):
        await boxes.open(row.id)
    assert [each.id for each in (await boxes.sweep()).removed] == [row.id]


async def test_orphans_are_removed_and_those_of_others_are_not(
    boxes: Boxes, provider: DummyProvider, clock: ManualClock
) -> None:
    old = {TENANT: "default", NODE: "here"}
    await provider.create(SPEC, id="older-than-the-store", labels=old)
    clock.advance(1_000)
    await boxes.sweep()
    clock.advance(1_000)
    await provider.create(SPEC, id="orphan", labels=old)
    await provider.create(SPEC, id="of-another-node", labels={**old, NODE: "there"})
    await provider.create(SPEC, id="of-another-tenant", labels={**old, TENANT: "them"})
    await provider.create(SPEC, id="of-nobody")
    await provider.create(SPEC, id="keyed", labels={**old, KEY: "k"})
    assert (await boxes.sweep()).removed == ()
    clock.advance(60_000)
    swept = await boxes.sweep()
    assert [(each.id, each.why) for each in swept.removed] == [("orphan", "no store knows it")]
    assert set(swept.adopted) == {"older-than-the-store", "keyed"}
    assert (await boxes.acquire("k", SPEC)).row.id == "keyed"


async def test_prune_deletes_what_does_nothing_now(boxes: Boxes) -> None:
    shared, idle, busy = await boxes.create(SPEC), await boxes.create(EPHEMERAL), await boxes.create(EPHEMERAL)
    async with await boxes.open(idle.id) as box:
        await box.files.write("a", bytes(5_000))
    with boxes.working(busy.id):
        pruned = await boxes.prune()
    assert [each.id for each in pruned.removed] == [idle.id]
    assert pruned.freed >= 5_000
    assert {row.id for row in (await boxes.list(BoxFilter())).rows} == {shared.id, busy.id}


async def test_the_long_dead_are_forgotten_unless_a_snapshot_needs_them(boxes: Boxes, clock: ManualClock) -> None:
    dead, kept = await boxes.create(SPEC), await boxes.create(SPEC)
    snapshot = await boxes.snapshot(kept.id)
    for row in (dead, kept):
        await boxes.delete(row.id)
    clock.advance(29 * 24 * 3600 * 1000)
    await boxes.sweep()
    assert (await boxes.get(dead.id)).tombstone
    clock.advance(2 * 24 * 3600 * 1000)
    await boxes.sweep()
    with pytest.raises(BoxNotFound):
        await boxes.get(dead.id)
    assert (await boxes.restore(snapshot.id)).state is BoxState.RUNNING


async def test_the_periodic_sweep_runs_until_closed(
    rows: SqliteBoxes, provider: DummyProvider, clock: ManualClock
) -> None:
    boxes = Boxes(rows, {"dummy": provider}, node="here", clock=clock.now, sweep_seconds=0.01)
    await boxes.start()
    swept = asyncio.Event()
    provider.at["sweep"] = swept.set
    async with asyncio.timeout(240):
        await swept.wait()
    await boxes.close()


async def test_a_provider_that_cannot_stop_says_so(rows: SqliteBoxes, tmp_path: Path) -> None:
    async with DummyProvider(
        tmp_path / "d", capabilities=CAPABILITIES - {Capability.STOP, Capability.FORK}
    ) as provider:
        boxes = Boxes(rows, {"dummy": provider}, node="here")
        row = await boxes.create(SPEC)
        for attempt, what in ((boxes.stop(row.id), "stop"), (boxes.fork(row.id), "fork")):
            with pytest.raises(Unsupported, match=what):
                await attempt
        await boxes.close()


async def test_the_store_is_for_its_owner_alone_and_secrets_are_not_shown(boxes: Boxes, tmp_path: Path) -> None:
    row = await boxes.create(replace(SPEC, env={"TOKEN": "hush"}))
    assert (await boxes.get(row.id)).spec.env == {"TOKEN": "hush"}
    assert "hush" not in repr(row)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("data.db*")} == {0o600}
