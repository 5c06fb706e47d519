"""A session goes back to where it was before a prompt, and forward again: the conversation, the files, the prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.runs.turns import finish, read, write
from tests.sessions.world import SessionWorld, a_world

from holdfast.api.box.records import TOMBSTONES, BoxState
from holdfast.api.errors import Conflict
from holdfast.api.errors.runs import NothingToUndo
from holdfast.api.errors.sessions import SessionBusy, SessionConflict

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SessionWorld]:
    async with a_world(tmp_path) as world:
        world.base.provider.takes_checkpoints = True
        yield world


async def answered(world: SessionWorld, id: str, prompt: str, **files: str) -> None:
    """A prompt that its agent has answered, after it wrote files."""
    await world.prompt(id, f"the {prompt}", prompt_id=prompt)
    runner = await world.at_work(id)
    await write(world.base, id, **files)
    await finish(world.base, runner, f"answer to {prompt}")
    await world.base.runs.reconcile(id)
    await world.base.runs.checkpoints.settle(id)


async def statuses(world: SessionWorld, id: str) -> dict[str, str]:
    return {each.id: each.status.value for each in (await world.session(id)).ended}


async def test_what_is_reverted_says_so_and_an_undo_brings_it_back(world: SessionWorld) -> None:
    id = await world.running()
    for number in ("1", "2", "3"):
        await answered(world, id, f"p-{number}", **{f"f{number}": number})
    await world.sessions.revert(id, "p-2")
    assert await read(world.base, id) == {"f1": "1"}
    assert await statuses(world, id) == {"p-1": "completed", "p-2": "reverted", "p-3": "reverted"}
    with pytest.raises(Conflict, match="was reverted"):
        await world.sessions.revert(id, "p-3")
    await world.sessions.undo_revert(id)
    assert await read(world.base, id) == {"f1": "1", "f2": "2", "f3": "3"}
    assert await statuses(world, id) == {"p-1": "completed", "p-2": "completed", "p-3": "completed"}
    assert await world.sessions.get(id) == await world.row(id)
    await answered(world, id, "p-4", f4="4")
    assert world.base.agents.scripted.tasks[-1].prompt == "the p-4"


async def test_a_revert_goes_to_the_turn_before_it_in_the_conversation_of_now(world: SessionWorld) -> None:
    """Numbers of turns go on after a revert. The turn with the number before may be one that was reverted."""
    id = await world.running()
    for number in ("1", "2", "3"):
        await answered(world, id, f"p-{number}", **{f"f{number}": number})
    await world.sessions.revert(id, "p-2")
    await answered(world, id, "p-4", f4="4")
    await world.sessions.revert(id, "p-4")
    assert await read(world.base, id) == {"f1": "1"}
    assert (await statuses(world, id))["p-4"] == "reverted"


async def test_a_prompt_whose_first_run_was_lost_is_reverted_with_it(world: SessionWorld) -> None:
    id = await world.running()
    await answered(world, id, "p-1", f1="1")
    await world.prompt(id, "again", prompt_id="p-2")
    await world.at_work(id)
    box = await world.sessions.box_of(id)
    assert box is not None
    await world.base.boxes.delete(box.id)
    await world.base.runs.reconcile(id, force=True)
    runner = await world.at_work(id)
    await write(world.base, id, f2="2")
    await finish(world.base, runner, "answer to p-2")
    await world.base.runs.reconcile(id)
    await world.base.runs.checkpoints.settle(id)
    found = await world.found(id, "p-2")
    assert (found.attempts, await statuses(world, id)) == (2, {"p-1": "completed", "p-2": "completed"})
    await world.sessions.revert(id, "p-2")
    assert await read(world.base, id) == {"f1": "1"}


async def test_a_session_that_is_over_has_no_box_afterwards_and_is_not_reverted(world: SessionWorld) -> None:
    id = await world.running()
    for number in ("1", "2"):
        await answered(world, id, f"p-{number}", **{f"f{number}": number})
    await world.sessions.terminate(id)
    await world.settled(id)
    for attempt in (world.sessions.revert(id, "p-2"), world.sessions.undo_revert(id), world.sessions.rewind(id, "1")):
        with pytest.raises(SessionConflict, match="terminated"):
            await attempt
    boxes = [row for row in await world.base.rows.live("default", "here") if row.state not in TOMBSTONES]
    assert [each.state for each in boxes] == [BoxState.STOPPED]


async def test_a_session_that_works_or_was_not_reverted_says_so(world: SessionWorld) -> None:
    id = await world.running()
    await answered(world, id, "p-1", f1="1")
    with pytest.raises(NothingToUndo):
        await world.sessions.undo_revert(id)
    with pytest.raises(Conflict, match="first"):
        await world.sessions.revert(id, "p-1")
    await world.prompt(id, "long", prompt_id="p-2")
    await world.at_work(id)
    for attempt in (world.sessions.revert(id, "p-1"), world.sessions.undo_revert(id)):
        with pytest.raises(SessionBusy):
            await attempt
    await world.answer(id)
