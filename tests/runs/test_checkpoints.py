"""The files of each turn are saved at its end, once, and never at the expense of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runs.turns import begin, box_of, finish, read, saved, snapshots, turn, write
from tests.runs.world import PATIENCE, SPEC, World, a_world

from holdfast.api.box.records import Owner
from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.api.errors import InvalidRequest
from holdfast.api.errors.boxes import BoxConflict, BoxUnreachable
from holdfast.api.run.checkpoints import CheckpointPolicy
from holdfast.boxes.labels import CHECKPOINT
from holdfast.runs.checkpoint.rules import fork_title, removable
from holdfast.runs.launch.plan import key_of
from holdfast.threads.protocol.framing import parse_json, split_messages

pytestmark = pytest.mark.anyio

DAY = 24 * 3600 * 1000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path) as world:
        world.provider.takes_checkpoints = True
        yield world


async def signals(world: World, thread: str) -> list[dict[str, Any]]:
    return [
        each["payload"]
        for each in await world.entries(thread)
        if each["payload"]["type"].startswith("signal.thread.checkpoint")
    ]


# --- taking ---


async def test_the_files_of_each_turn_are_saved_at_its_end(world: World) -> None:
    thread = await turn(world, "one", a="1")
    await turn(world, "two", thread, a="2")
    found = await signals(world, thread)
    assert [(each["turn"], each["type"]) for each in found] == [
        (1, "signal.thread.checkpoint"),
        (2, "signal.thread.checkpoint"),
    ]
    assert [each["snapshot"] for each in found] == [each.id for each in await snapshots(world)]
    assert (await world.latest(thread)).turn == 2


async def test_a_checkpoint_names_the_position_after_the_end_of_its_turn(world: World) -> None:
    thread = await turn(world, "one")
    run = await world.latest(thread)
    assert run.checkpoint is not None
    piece = await world.store.read(f"threads/{thread}", 0, 1 << 20)
    *_, last = split_messages(piece.data[: run.checkpoint.offset])
    assert parse_json(last)["id"] == f"end-{run.run}"


async def test_the_next_turn_begins_when_the_last_one_is_saved(world: World) -> None:
    runner = await begin(world, "one")
    thread = runner.thread
    await write(world, thread, a="1")
    await world.runs.probe.signal(runner.run, 9)
    await runner.end()
    await world.runs.resume(thread)
    types = [each["payload"]["type"] for each in await world.entries(thread)]
    assert types.index("signal.thread.checkpoint") < len(types) - 1 - types[::-1].index("signal.run.started")


async def test_a_failing_snapshot_fails_no_run(world: World) -> None:
    runner = await begin(world, "one")
    world.provider.fail_next("snapshot", BoxUnreachable("the disk is on fire"))
    await finish(world, runner, "done")
    run = await saved(world, runner.thread)
    assert run.status.value == "completed"
    [skipped] = await signals(world, runner.thread)
    assert skipped["type"] == "signal.thread.checkpoint_skipped"
    assert "the disk is on fire" in skipped["why"]
    world.provider.heal()
    await turn(world, "two", runner.thread)


async def test_a_slow_snapshot_is_given_up_and_leaves_nothing(world: World) -> None:
    runner = await begin(world, "one", checkpoints="every seconds=1")
    go_on = asyncio.Event()

    async def slowly() -> None:
        await go_on.wait()

    world.provider.at["snapshot"] = slowly
    await finish(world, runner, "done")
    run = await saved(world, runner.thread)
    assert run.checkpoint is not None
    assert run.checkpoint.why == "the snapshot took longer than 1 s"
    go_on.set()
    await asyncio.sleep(0)
    world.provider.at.clear()
    assert await snapshots(world) == []


async def test_without_checkpoints_nothing_is_saved_or_said(world: World) -> None:
    runner = await begin(world, "one", checkpoints="off")
    await finish(world, runner, "done")
    run = await saved(world, runner.thread)
    assert run.checkpoint is None
    assert await signals(world, runner.thread) == []
    assert await snapshots(world) == []


async def test_a_turn_whose_box_is_gone_tells_so(world: World) -> None:
    runner = await begin(world, "one")
    await world.boxes.delete(await box_of(world, runner.thread))
    await runner.end()
    await saved(world, runner.thread)
    assert await signals(world, runner.thread) == [], "no policy asks for a checkpoint of a box that is gone"


# --- deaths of the server ---


@pytest.mark.parametrize("step", ["before the snapshot", "in the snapshot", "before the entry"])
async def test_a_killed_server_leaves_one_checkpoint(world: World, step: str) -> None:
    runner = await begin(world, "one")
    thread = runner.thread
    await write(world, thread, a="1")
    await runner.say("done")
    await world.runs.probe.signal(runner.run, 9)
    stuck = asyncio.Event()

    async def never() -> None:
        stuck.set()
        await asyncio.Event().wait()

    if step == "in the snapshot":
        world.provider.at["snapshot"] = never
    if step == "before the entry":
        world.log.die_at = world.log.appends + 1
    await runner.end()
    if step != "before the snapshot":
        task = asyncio.ensure_future(world.runs.checkpoints.settle(thread))
        await (stuck.wait() if step == "in the snapshot" else task)
        task.cancel()
    await world.runs.close()
    world.servers.remove(world.runs)
    await world.restart()
    assert await signals(world, thread) == []
    run = await saved(world, thread)
    assert run.checkpoint is not None
    assert run.checkpoint.files is not None
    assert [each.id for each in await snapshots(world)] == [run.checkpoint.files.snapshot]
    assert len(await signals(world, thread)) == 1
    await saved(world, thread)
    assert len(await snapshots(world)) == 1


# --- collecting ---


def snapshot(id: str, age_days: int = 0, size: int = 1) -> Snapshot:
    return Snapshot(id, "local", "layers", Holding.REFERENCE, "b", None, size, 1000 * DAY - age_days * DAY, {})


@pytest.mark.parametrize(
    ("policy", "needed", "gone"),
    [
        ("every", (), []),
        ("every keep=2", (), ["s-1", "s-2"]),
        ("every keep=2", ("s-1",), ["s-2"]),
        ("every days=2", (), ["s-1", "s-2"]),
        ("every total=25", (), ["s-1", "s-2"]),
        ("every keep=1 days=1 total=1", (), ["s-1", "s-2", "s-3"]),
        ("off", (), []),
    ],
)
def test_the_policy_says_which_checkpoints_may_go(policy: str, needed: tuple[str, ...], gone: list[str]) -> None:
    found = [snapshot("s-1", 4, 10), snapshot("s-2", 3, 10), snapshot("s-3", 2, 10), snapshot("s-4", 1, 10)]
    going = removable(found, needed, CheckpointPolicy.parse(policy), 1000 * DAY)
    assert [each.id for each in going] == gone


@pytest.mark.parametrize(
    "text",
    ["", "always", "off keep=2", "every keep", "every keep=0", "every keep=2G", "every keep=1 keep=2", "every x=1"],
)
def test_a_policy_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        CheckpointPolicy.parse(text)


@pytest.mark.parametrize(
    ("title", "forked"),
    [
        ("Fix it", "Fix it (fork at turn 3)"),
        ("Fix it (fork at turn 12)", "Fix it (fork at turn 3)"),
        (None, "t-1 (fork at turn 3)"),
        ("x" * 500, "x" * 400 + " (fork at turn 3)"),
    ],
)
def test_a_fork_is_named_after_its_source(title: str | None, forked: str) -> None:
    assert fork_title("t-1", title, 3) == forked


def test_a_policy_is_read_from_its_text() -> None:
    assert CheckpointPolicy.parse("off") == CheckpointPolicy(every=False)
    few = CheckpointPolicy(keep=3, size=4)
    assert CheckpointPolicy.parse("every size=9", few) == CheckpointPolicy(keep=3, size=9), "the rest is as usual"
    assert CheckpointPolicy.parse("every keep=3 size=2M total=1g seconds=5 days=9") == CheckpointPolicy(
        keep=3, size=2 << 20, total=1 << 30, seconds=5, days=9
    )


async def test_old_checkpoints_are_removed_but_not_those_of_forks(world: World) -> None:
    runner = await begin(world, "one", checkpoints="every keep=1")
    thread = runner.thread
    await finish(world, runner, "done")
    await saved(world, thread)
    fork = (await world.runs.forks.fork(thread)).row.id
    for number in range(2, 5):
        world.clock.advance(1000)
        await turn(world, f"turn {number}", thread)
    world.clock.advance(DAY)
    first, *between, last = await snapshots(world)
    assert await world.runs.collect() == len(between) == 2
    assert [each.id for each in await snapshots(world)] == [first.id, last.id]
    await world.threads.delete(fork)
    assert await world.runs.collect() == 1
    assert [each.id for each in await snapshots(world)] == [last.id]


async def test_the_checkpoints_of_a_deleted_thread_go_with_it(world: World) -> None:
    thread = await turn(world, "one")
    fork = (await world.runs.forks.fork(thread)).row.id
    await turn(world, "two", thread)
    await world.threads.delete(thread)
    await world.runs.collect()
    [left] = await snapshots(world)
    assert left.labels[CHECKPOINT] == (await world.latest(fork)).run, "the fork needs it"
    assert (await world.runs.forks.fork(fork)).row.lineage.fork_of is not None


async def test_a_snapshot_without_an_entry_is_removed_in_time(world: World) -> None:
    thread = await turn(world, "one")
    await world.boxes.snapshot(await box_of(world, thread), checkpoint="rewound-w-lost")
    assert await world.runs.collect() == 0, "its entry may be about to come"
    world.clock.advance(DAY)
    assert await world.runs.collect() == 1
    assert len(await snapshots(world)) == 1


async def test_who_moves_a_box_waits_for_the_checkpoint_of_its_last_turn(world: World) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        started.set()
        await go_on.wait()

    runner = await begin(world, "one")
    box = await box_of(world, runner.thread)
    await write(world, runner.thread, a="1")
    world.provider.at["snapshot"] = slowly
    await finish(world, runner, "done")
    world.runs.checkpoints.begin(runner.thread)
    async with asyncio.timeout(PATIENCE):
        await started.wait()
    settling = asyncio.create_task(world.runs.settle_box(await world.boxes.get(box)))
    with pytest.raises(BoxConflict, match="is in use"):
        await world.boxes.move(box, lambda spec: replace(spec, provider="other"))
    assert not settling.done()
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        await settling
    moved = await world.boxes.move(box, lambda spec: replace(spec, provider="other"))
    assert moved.row.provider == "other"
    assert await read(world, runner.thread) == {"a": "1"}
    assert [each["type"] for each in await signals(world, runner.thread)] == ["signal.thread.checkpoint"]


async def test_boxes_without_a_turn_are_not_waited_for(world: World) -> None:
    alone = await world.boxes.create(SPEC)
    await world.runs.settle_box(alone)
    orphan = await world.boxes.acquire(key_of("t-gone"), SPEC, owner=Owner(thread="t-gone"))
    await world.runs.settle_box(orphan.row)
