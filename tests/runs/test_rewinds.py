"""A rewind takes a thread back to a turn, in place, with its files, and can be undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.turns import begin, box_of, read, snapshots, told, turn, write
from tests.runs.world import World, a_world

from holdfast.api.errors.boxes import BoxUnreachable, WrongSnapshot
from holdfast.api.errors.runs import NoCheckpoint, NothingToUndo, ThreadBusy
from holdfast.runs.launch.plan import Prompt

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path) as world:
        world.provider.takes_checkpoints = True
        yield world


async def three_turns(world: World) -> str:
    thread = await turn(world, "one", a="1")
    await turn(world, "two", thread, a="2", b="2")
    return await turn(world, "three", thread, a="3", c="3")


async def test_files_and_conversation_go_back_to_the_turn(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "1")
    assert await read(world, thread) == {"a": "1"}
    launched = await world.runs.resume(thread, Prompt("differently"))
    assert await told(world, launched) == ["answer to one"]
    run = await world.latest(thread)
    assert (run.turn, run.files, run.session) == (4, "checkpoint", "rebuilt")
    assert world.agents.scripted.tasks[-1].prompt == "differently"


async def test_what_was_rewound_stays_on_the_thread(world: World) -> None:
    thread = await three_turns(world)
    before = await world.entries(thread)
    await world.runs.rewinds.rewind(thread, "1")
    assert (await world.entries(thread))[: len(before)] == before


async def test_turns_after_a_rewind_follow_the_turn_rewound_to(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "1")
    await turn(world, "four", thread, d="4")
    launched = await world.runs.resume(thread, Prompt("five"), agent="other")
    await world.settled(launched)
    prompt = world.agents.other.tasks[-1].prompt
    assert "answer to one" in prompt
    assert "answer to four" in prompt
    assert "answer to two" not in prompt
    assert "answer to three" not in prompt
    assert await read(world, thread) == {"a": "1", "d": "4"}


async def test_a_rewind_can_be_undone(world: World) -> None:
    thread = await three_turns(world)
    await write(world, thread, by_hand="x")
    await world.runs.rewinds.rewind(thread, "1")
    await world.runs.rewinds.undo(thread)
    assert await read(world, thread) == {"a": "3", "b": "2", "c": "3", "by_hand": "x"}
    launched = await world.runs.resume(thread, Prompt("go on"))
    assert await told(world, launched) == ["answer to one", "answer to two", "answer to three"]


async def test_an_undo_can_be_undone(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "1")
    await turn(world, "four", thread, d="4")
    await world.runs.rewinds.undo(thread)
    assert await read(world, thread) == {"a": "3", "b": "2", "c": "3"}
    await world.runs.rewinds.undo(thread)
    assert await read(world, thread) == {"a": "1", "d": "4"}
    launched = await world.runs.resume(thread, Prompt("go on"))
    assert await told(world, launched) == ["answer to one", "answer to four"]


async def test_a_turn_that_was_rewound_can_be_rewound_to_and_forked(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "1")
    fork = (await world.runs.forks.fork(thread, "3")).row.id
    assert await read(world, fork) == {"a": "3", "b": "2", "c": "3"}
    await world.runs.rewinds.rewind(thread, "2")
    assert await read(world, thread) == {"a": "2", "b": "2"}
    launched = await world.runs.resume(thread, Prompt("go on"))
    assert await told(world, launched) == ["answer to one", "answer to two"]


async def test_a_fork_of_a_rewound_thread_has_its_conversation(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "1")
    await turn(world, "four", thread, d="4")
    fork = (await world.runs.forks.fork(thread)).row.id
    assert await read(world, fork) == {"a": "1", "d": "4"}
    launched = await world.runs.resume(fork, Prompt("go on"))
    assert await told(world, launched) == ["answer to one", "answer to four"]


async def test_no_second_checkpoint_is_taken_of_the_turn_rewound_to(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "1")
    count = len(await snapshots(world))
    await world.runs.checkpoints.settle(thread)
    assert len(await snapshots(world)) == count


async def test_the_size_of_a_checkpoint_stays_known(world: World) -> None:
    thread = await three_turns(world)
    sizes = [each.run.checkpoint and each.run.checkpoint.size for each in await world.runs.turns.of(thread)]
    assert None not in sizes
    await world.runs.rewinds.rewind(thread, "2")
    after = [each.run.checkpoint and each.run.checkpoint.size for each in await world.runs.turns.of(thread)]
    assert after == sizes


async def test_waiting_prompts_of_the_rewound_part_are_not_launched(world: World) -> None:
    thread = await turn(world, "one")
    await begin(world, "two", thread)
    await world.runs.steer(thread, Prompt("queued"))
    await world.runs.cancel(thread)
    world.clock.advance(60_000)
    await world.runs.reconcile(thread, force=True)
    await world.runs.rewinds.rewind(thread, "1")
    assert (await world.threads.get(thread)).runs.waiting == ()


# --- once ---


async def rewound(world: World, thread: str) -> int:
    """How many rewinds there are on a thread."""
    return sum(each["payload"]["type"] == "signal.thread.rewound" for each in await world.entries(thread))


async def test_a_rewind_that_is_asked_for_twice_with_one_key_is_done_once(world: World) -> None:
    thread = await three_turns(world)
    first = await world.runs.rewinds.rewind(thread, "1", key="mine")
    again = await world.runs.rewinds.rewind(thread, "1", key="mine")
    assert await rewound(world, thread) == 1
    assert first.box is not None
    assert again.box is not None
    assert first.box.id == again.box.id
    await world.runs.rewinds.undo(thread)
    assert await read(world, thread) == {"a": "3", "b": "2", "c": "3"}, "it is the first one that is undone"


async def test_an_undo_that_is_asked_for_twice_with_one_key_is_done_once(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "1")
    await world.runs.rewinds.undo(thread, key="mine")
    await world.runs.rewinds.undo(thread, key="mine")
    assert await read(world, thread) == {"a": "3", "b": "2", "c": "3"}
    assert await rewound(world, thread) == 2


async def test_requests_with_one_key_at_the_same_time_are_one_rewind(world: World) -> None:
    thread = await three_turns(world)
    await asyncio.gather(*(world.runs.rewinds.rewind(thread, "1", key="mine") for _ in range(3)))
    assert await rewound(world, thread) == 1
    assert await read(world, thread) == {"a": "1"}


async def test_a_repeated_rewind_leaves_alone_what_came_since(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "1", key="mine")
    await turn(world, "four", thread, d="4")
    await world.runs.rewinds.rewind(thread, "1", key="mine")
    assert await read(world, thread) == {"a": "1", "d": "4"}
    await begin(world, "five", thread)
    await world.runs.rewinds.rewind(thread, "1", key="mine")
    assert (await world.latest(thread)).live, "nor is it refused because of a run"
    assert await rewound(world, thread) == 1


async def test_a_fork_does_not_take_a_key_of_its_source_for_its_own(world: World) -> None:
    thread = await three_turns(world)
    await world.runs.rewinds.rewind(thread, "2", key="mine")
    await turn(world, "four", thread, d="4")
    fork = (await world.runs.forks.fork(thread)).row.id
    await world.runs.rewinds.rewind(fork, "1", key="mine")
    assert await read(world, fork) == {"a": "1"}


# --- refused ---


async def test_a_thread_with_a_run_in_progress_is_refused(world: World) -> None:
    thread = await turn(world, "one")
    await begin(world, "two", thread)
    with pytest.raises(ThreadBusy):
        await world.runs.rewinds.rewind(thread, "1")
    with pytest.raises(ThreadBusy):
        await world.runs.rewinds.undo(thread)


async def test_there_is_nothing_to_undo_without_a_rewind(world: World) -> None:
    thread = await turn(world, "one")
    with pytest.raises(NothingToUndo):
        await world.runs.rewinds.undo(thread)


async def test_a_damaged_snapshot_is_refused_and_changes_nothing(world: World) -> None:
    import shutil

    thread = await three_turns(world)
    entries, files, box = await world.entries(thread), await read(world, thread), await box_of(world, thread)
    first = (await snapshots(world))[0]
    shutil.rmtree(world.provider.folder / "snapshots" / first.id / "files")
    with pytest.raises(WrongSnapshot):
        await world.runs.rewinds.rewind(thread, "1")
    assert await world.entries(thread) == entries
    assert (await read(world, thread), await box_of(world, thread)) == (files, box)


async def test_without_a_snapshot_of_now_nothing_is_rewound(world: World) -> None:
    thread = await three_turns(world)
    entries = await world.entries(thread)
    world.provider.fail_next("snapshot", BoxUnreachable("no"))
    with pytest.raises(BoxUnreachable):
        await world.runs.rewinds.rewind(thread, "1")
    assert await world.entries(thread) == entries


async def test_a_turn_without_a_checkpoint_is_refused(world: World) -> None:
    thread = await three_turns(world)
    await world.boxes.delete_snapshot((await snapshots(world))[0].id)
    with pytest.raises(NoCheckpoint):
        await world.runs.rewinds.rewind(thread, "1")


# --- deaths of the server ---


@pytest.mark.parametrize("step", ["restore", "snapshot", "entry", "remove", "restore again"])
async def test_a_killed_server_leaves_a_thread_rewound_or_not_at_all(world: World, step: str) -> None:
    thread = await three_turns(world)

    class Killed(BaseException):
        pass

    restores = 0

    def die() -> None:
        nonlocal restores
        restores += 1
        if step != "restore again" or restores == 2:
            world.kill()
            raise Killed

    if step == "entry":
        world.log.die_at = world.log.appends + 1
    else:
        point = {"restore": "restore", "restore again": "restore", "snapshot": "snapshot", "remove": "remove"}[step]
        if step == "remove":
            restores = -1  # the first removal is of the trial
        world.provider.at[point] = _at_second(die) if step == "remove" else die
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the server is gone, however that shows
        await world.runs.rewinds.rewind(thread, "1")
    await world.restart()
    await world.boxes.sweep()
    is_rewound = any(each["payload"]["type"] == "signal.thread.rewound" for each in await world.entries(thread))
    assert is_rewound == (step in ("remove", "restore again"))
    launched = await world.runs.resume(thread, Prompt("go on"))
    expected = ["answer to one"] if is_rewound else []
    run = await world.settled(launched)
    assert run.live, run.error
    if is_rewound:
        assert world.agents.scripted.rebuilt_from[-1] == expected
    assert await read(world, thread) == ({"a": "1"} if is_rewound else {"a": "3", "b": "2", "c": "3"})
    live = [row for row in await world.rows.live("default", "here") if row.key is not None]
    assert len(live) == 1, "one box, and no second one"


@pytest.mark.parametrize("step", ["restore", "snapshot", "entry", "remove", "restore again"])
async def test_a_rewind_repeated_after_a_kill_is_done_once(world: World, step: str) -> None:
    thread = await three_turns(world)

    class Killed(BaseException):
        pass

    restores = 0

    def die() -> None:
        nonlocal restores
        restores += 1
        if step != "restore again" or restores == 2:
            world.kill()
            raise Killed

    if step == "entry":
        world.log.die_at = world.log.appends + 1
    else:
        world.provider.at[step.split()[0]] = _at_second(die) if step == "remove" else die
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the server is gone, however that shows
        await world.runs.rewinds.rewind(thread, "1", key="mine")
    await world.restart()
    await world.boxes.sweep()
    done = await world.runs.rewinds.rewind(thread, "1", key="mine")
    assert await rewound(world, thread) == 1
    assert done.box is not None
    assert done.box.id == await box_of(world, thread)
    assert await read(world, thread) == {"a": "1"}
    await world.runs.rewinds.undo(thread)
    assert await read(world, thread) == {"a": "3", "b": "2", "c": "3"}


def _at_second(die: Any) -> Any:
    count = 0

    def hook() -> None:
        nonlocal count
        count += 1
        if count == 2:
            die()

    return hook
