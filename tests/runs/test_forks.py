"""A fork has the entries and the files of its source up to a turn, and nothing of what came later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.turns import begin, box_of, finish, read, saved, snapshots, told, turn, write
from tests.runs.world import SEALS, World, a_world

from holdfast.api.errors import Conflict, HoldfastError
from holdfast.api.errors.boxes import WrongSnapshot
from holdfast.api.errors.runs import NoCheckpoint, NoFiles, ThreadBusy, TurnNotFound
from holdfast.api.thread.entries import Entry
from holdfast.runs.launch.plan import Prompt, key_of
from holdfast.threads.checkpoints import Files, ForkOf
from holdfast.threads.entries import keyed
from holdfast.threads.lineage import checkpoint_id, checkpointed
from holdfast.threads.run_events import BOX
from holdfast.threads.store import AppendRequest

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


async def fork(world: World, thread: str, at: str | None = None, **options: Any) -> str:
    return (await world.runs.forks.fork(thread, at, **options)).row.id


async def texts(world: World, thread: str) -> list[str]:
    return [
        str(each["payload"]["text"])
        for each in await world.entries(thread)
        if each["payload"]["type"] in ("chat", "scripted.assistant")
    ]


async def test_a_fork_has_the_files_and_entries_up_to_its_turn(world: World) -> None:
    thread = await three_turns(world)
    new = await fork(world, thread, "2")
    assert await read(world, new) == {"a": "2", "b": "2"}
    assert await texts(world, new) == ["one", "answer to one", "two", "answer to two"]
    row = await world.threads.get(new)
    assert row.lineage.fork_of is not None
    assert (row.lineage.fork_of.thread, row.lineage.fork_of.turn) == (thread, 2)
    assert await read(world, thread) == {"a": "3", "b": "2", "c": "3"}, "its source is as it was"


async def test_without_a_turn_the_latest_is_forked(world: World) -> None:
    thread = await three_turns(world)
    assert await read(world, await fork(world, thread)) == {"a": "3", "b": "2", "c": "3"}


async def test_a_fork_works_in_a_box_of_its_own(world: World) -> None:
    thread = await three_turns(world)
    new = await fork(world, thread, "1")
    await turn(world, "another", new, a="other")
    assert await read(world, new) == {"a": "other"}
    assert await read(world, thread) == {"a": "3", "b": "2", "c": "3"}
    assert await box_of(world, new) != await box_of(world, thread)


async def test_the_agent_of_a_fork_knows_the_turns_up_to_there_and_is_told_nothing_else(world: World) -> None:
    thread = await three_turns(world)
    new = await fork(world, thread, "2")
    launched = await world.runs.resume(new, Prompt("differently"))
    assert await told(world, launched) == ["answer to one", "answer to two"]
    run = await world.latest(new)
    assert (run.session, run.files, run.turn) == ("rebuilt", "checkpoint", 3)
    assert world.agents.scripted.tasks[-1].prompt == "differently", "without a note about a lost machine"


async def test_another_agent_is_handed_over_the_turns_up_to_there(world: World) -> None:
    thread = await three_turns(world)
    new = await fork(world, thread, "1")
    launched = await world.runs.resume(new, Prompt("differently"), agent="other")
    run = await world.settled(launched)
    assert run.session == "handed-over"
    prompt = world.agents.other.tasks[-1].prompt
    assert "answer to one" in prompt
    assert "answer to two" not in prompt
    assert "machine" not in prompt


async def test_the_workspace_that_a_thread_began_with_is_not_unpacked_over_a_fork(world: World) -> None:
    import io
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("a")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"0"))

    async def pieces() -> AsyncIterator[bytes]:
        yield packed.getvalue()

    digest = await world.runs.workspaces.keep(pieces())
    runner = await begin(world, "one", workspace=digest)
    assert await read(world, runner.thread) == {"a": "0"}
    await write(world, runner.thread, a="1")
    await finish(world, runner, "done")
    await saved(world, runner.thread)
    new = await fork(world, runner.thread)
    await turn(world, "two", new, b="2")
    assert await read(world, new) == {"a": "1", "b": "2"}


async def test_turns_of_the_source_can_be_forked_from_the_fork(world: World) -> None:
    thread = await three_turns(world)
    new = await fork(world, thread, "2")
    await turn(world, "another", new, a="4")
    assert await read(world, await fork(world, new, "1")) == {"a": "1"}
    assert await read(world, await fork(world, new, "2")) == {"a": "2", "b": "2"}
    assert await read(world, await fork(world, new, "3")) == {"a": "4", "b": "2"}
    with pytest.raises(TurnNotFound):
        await fork(world, new, "4")


async def test_a_fork_outlives_its_source(world: World) -> None:
    thread = await three_turns(world)
    new = await fork(world, thread, "2")
    await world.runs.forget(thread)
    await world.threads.delete(thread)
    await world.runs.collect()
    assert await read(world, await fork(world, new)) == {"a": "2", "b": "2"}
    await turn(world, "another", new, b="4")


async def test_a_fork_whose_box_was_lost_starts_again_from_its_files(world: World) -> None:
    thread = await three_turns(world)
    new = await fork(world, thread, "1")
    await world.boxes.delete(await box_of(world, new))
    launched = await world.runs.resume(new, Prompt("differently"))
    await world.settled(launched)
    assert await read(world, new) == {"a": "1"}


# --- without the checkpoint, as after a backup was restored ---


async def lose(world: World, thread: str) -> None:
    """The box and the checkpoint that the thread has to start from are gone. Those of other turns are still there."""
    base = (await world.threads.get(thread)).lineage.base
    assert base is not None
    await world.boxes.delete(await box_of(world, thread))
    await world.boxes.delete_snapshot(base.files.snapshot)


@pytest.mark.parametrize("rewinds", [False, True])
async def test_without_its_checkpoint_a_thread_goes_on_and_says_that_its_files_are_lost(
    world: World, rewinds: bool
) -> None:
    thread = await three_turns(world)
    if rewinds:
        await world.runs.rewinds.rewind(thread, "2")
    else:
        thread = await fork(world, thread, "2")
    await lose(world, thread)
    with pytest.raises(NoFiles, match="no run is in progress") as refused:
        async with world.runs.compared(thread):
            pass
    assert "holdfast resume" in str(refused.value.hint) + str(refused.value)
    runner = await begin(world, "differently", thread)
    assert world.agents.scripted.rebuilt_from[-1] == ["answer to one", "answer to two"]
    assert runner.run.files == "empty"
    assert await read(world, thread) == {}, "no other snapshot takes its place"
    assert "files that were made before are lost" in world.agents.scripted.tasks[-1].prompt
    [*_, found] = [each["payload"] for each in await world.entries(thread) if each["payload"]["type"] == BOX]
    assert found["files"] == "empty"
    assert "is gone, so they are lost" in found["why"]
    await write(world, thread, a="4")
    await finish(world, runner, "done")
    await saved(world, thread)
    await begin(world, "again", thread)
    assert world.agents.scripted.tasks[-1].prompt == "again"
    assert await read(world, thread) == {"a": "4"}, "the next run keeps the box"


async def test_a_damaged_checkpoint_is_refused_where_a_lost_one_is_not(world: World) -> None:
    import shutil

    new = await fork(world, await three_turns(world), "2")
    base = (await world.threads.get(new)).lineage.base
    assert base is not None
    await world.boxes.delete(await box_of(world, new))
    shutil.rmtree(world.provider.folder / "snapshots" / base.files.snapshot / "files")
    run = await world.settled(await world.runs.resume(new, Prompt("differently")))
    assert not run.live
    assert run.error is not None
    assert run.error["code"] == WrongSnapshot.code
    assert await world.boxes.of_key(key_of(new)) is None


# --- by entry ---


async def test_an_entry_stands_for_the_last_turn_that_had_ended(world: World) -> None:
    thread = await three_turns(world)
    entries = await world.entries(thread)
    prompts = [each["id"] for each in entries if each["payload"]["type"] == "chat"]
    ends = [each["id"] for each in entries if each["payload"]["type"] == "signal.run.finished"]
    assert await read(world, await fork(world, thread, prompts[1])) == {"a": "1"}, "before the prompt of turn 2"
    assert await read(world, await fork(world, thread, ends[1])) == {"a": "2", "b": "2"}
    with pytest.raises(TurnNotFound, match="before the end of the first turn"):
        await fork(world, thread, prompts[0])
    with pytest.raises(TurnNotFound, match="no turn and no entry"):
        await fork(world, thread, "e-unknown")


# --- refused ---


async def test_a_turn_that_is_not_there_is_refused(world: World) -> None:
    thread = await turn(world, "one")
    for at in ("0", "2", "99999999"):
        with pytest.raises(TurnNotFound):
            await fork(world, thread, at)


async def test_a_turn_in_progress_is_refused_but_not_those_before(world: World) -> None:
    thread = await turn(world, "one", a="1")
    await begin(world, "two", thread)
    with pytest.raises(ThreadBusy):
        await fork(world, thread)
    assert await read(world, await fork(world, thread, "1")) == {"a": "1"}


async def test_a_turn_without_a_checkpoint_is_refused_with_what_to_do(world: World) -> None:
    runner = await begin(world, "one", checkpoints="off")
    await finish(world, runner, "done")
    with pytest.raises(NoCheckpoint, match=r"turn 1 of thread .* checkpoints were off") as refused:
        await fork(world, runner.thread)
    assert refused.value.hint is not None
    assert "holdfast thread turns" in refused.value.hint


async def test_a_checkpoint_that_was_removed_is_refused(world: World) -> None:
    thread = await turn(world, "one")
    [snapshot] = await snapshots(world)
    await world.boxes.delete_snapshot(snapshot.id)
    with pytest.raises(NoCheckpoint, match="was removed"):
        await fork(world, thread)


async def test_a_damaged_snapshot_is_refused_and_leaves_no_thread(world: World) -> None:
    import shutil

    thread = await turn(world, "one")
    [snapshot] = await snapshots(world)
    shutil.rmtree(world.provider.folder / "snapshots" / snapshot.id / "files")
    with pytest.raises(WrongSnapshot):
        await fork(world, thread, id="t-new")
    with pytest.raises(HoldfastError):
        await world.threads.get("t-new")


@pytest.mark.parametrize("sealed_for", [None, "another"])
async def test_a_checkpoint_that_a_client_wrote_is_never_restored(world: World, sealed_for: str | None) -> None:
    """It names a snapshot of another thread, to read its files."""
    victim = await turn(world, "secret", secret="42")
    [theirs] = await snapshots(world)
    runner = await begin(world, "one", checkpoints="off")
    await finish(world, runner, "done")
    run = await world.latest(runner.thread)
    entry = Entry(checkpoint_id(run.run), 1, checkpointed(run, 5, Files(theirs.id, "dummy"), size=1, ms=1))
    if sealed_for is not None:
        entry = SEALS.seal(victim, entry)
    await world.store.append(f"threads/{runner.thread}", AppendRequest(keyed=(keyed(entry),)))
    with pytest.raises(NoCheckpoint):
        await fork(world, runner.thread)


async def test_a_snapshot_of_another_thread_is_refused_even_under_our_seal(world: World) -> None:
    await turn(world, "secret", secret="42")
    [theirs] = await snapshots(world)
    runner = await begin(world, "one", checkpoints="off")
    await finish(world, runner, "done")
    run = await world.latest(runner.thread)
    payload = checkpointed(run, 5, Files(theirs.id, "dummy"), size=1, ms=1)
    await world.log.append(runner.thread, world.log.entry(payload, id=checkpoint_id(run.run)))
    with pytest.raises(NoCheckpoint, match="is not of this turn"):
        await fork(world, runner.thread)


# --- once ---


async def test_the_same_fork_twice_is_one(world: World) -> None:
    thread = await three_turns(world)
    first = await world.runs.forks.fork(thread, "2", id="t-mine")
    second = await world.runs.forks.fork(thread, "2", id="t-mine")
    assert (first.row.id, first.box.id) == (second.row.id, second.box.id)
    with pytest.raises(Conflict):
        await world.runs.forks.fork(thread, "1", id="t-mine")
    with pytest.raises(Conflict):
        await world.runs.forks.fork(thread, "1", id=thread)


async def test_a_fork_goes_on_with_a_chain_of_models(world: World) -> None:
    thread = await turn(world, "one")
    _, launched = await world.runs.fork(thread, None, Prompt("two"), model="a", fallbacks=("b", "c"))
    assert launched is not None
    run = await world.settled(launched)
    assert (run.model, run.options["fallbacks"]) == ("a/x", ["b/x", "c/x"])


async def test_a_fork_is_found_again_when_its_source_has_gone_on(world: World) -> None:
    thread = await turn(world, "one", a="1")
    first = await world.runs.forks.fork(thread, id="t-mine")
    await turn(world, "two", thread, a="2")
    again = await world.runs.forks.fork(thread, id="t-mine")
    assert again.box.id == first.box.id
    runner = await begin(world, "three", thread)
    await world.runs.forks.fork(thread, id="t-mine")
    await finish(world, runner, "done")
    await world.runs.forget(thread)
    await world.threads.delete(thread)
    await world.runs.forks.fork(thread, id="t-mine")
    assert await read(world, "t-mine") == {"a": "1"}


async def test_the_prompt_of_a_fork_that_is_asked_for_again_is_not_repeated(world: World) -> None:
    thread = await turn(world, "one", a="1")
    prompt = Prompt("differently", "e-mine")
    _, launched = await world.runs.fork(thread, None, prompt, new_id="t-mine")
    assert launched is not None
    await finish(world, await world.runner(launched), "done")
    await saved(world, "t-mine")
    await turn(world, "and on", "t-mine")
    await turn(world, "two", thread)
    _, again = await world.runs.fork(thread, None, prompt, new_id="t-mine")
    assert again == launched
    assert (await texts(world, "t-mine")).count("differently") == 1
    assert (await world.latest("t-mine")).turn == 3, "and no run was launched"


class Killed(BaseException):
    """The end of a server."""


@pytest.mark.parametrize("step", ["thread", "box"])
async def test_a_fork_whose_server_died_is_whole(world: World, step: str) -> None:
    thread = await three_turns(world)

    async def die(*_: Any, **__: Any) -> Any:
        raise Killed

    if step == "thread":
        world.runs.forks._box = die  # type: ignore[method-assign]
    else:
        world.provider.fail_next("restore", Killed())
    with pytest.raises(Killed):
        await world.runs.forks.fork(thread, "2", id="t-mine")
    await world.runs.close()
    world.servers.remove(world.runs)
    await world.restart()
    await world.boxes.sweep()
    row = await world.threads.get("t-mine")
    assert row.lineage.fork_of == ForkOf(thread, 2, row.lineage.fork_of.offset if row.lineage.fork_of else 0)
    launched = await world.runs.resume("t-mine", Prompt("go on"))
    assert await told(world, launched) == ["answer to one", "answer to two"]
    assert await read(world, "t-mine") == {"a": "2", "b": "2"}
    assert (await world.runs.forks.fork(thread, "2", id="t-mine")).row.id == "t-mine"
