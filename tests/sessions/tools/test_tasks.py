"""The list of tasks of a tree: dependencies, who sees it, and what it refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sessions.tools.world import ToolWorld

from holdfast.api.errors import Conflict, InvalidRequest, NotFound
from holdfast.api.thread.entries import Entry
from holdfast.api.tools.tasks import MOST_TASKS
from holdfast.sessions.tools.board import Board, BoardTask, fold, with_task
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.store import AppendRequest

pytestmark = pytest.mark.anyio


async def add(world: ToolWorld, session: str, title: str, **more: Any) -> str:
    return str((await world.call(session, "create_task", title=title, **more))["task"]["id"])


async def test_the_sessions_of_a_tree_share_one_list(world: ToolWorld) -> None:
    parent, stranger = await world.session(), await world.session()
    child = (await world.call(parent, "spawn_child", task="t", workspace="w"))["childSessionId"]
    first = await add(world, parent, "first", description="more")
    second = await add(world, child, "second", sessionId=child, parent_task_id=first)
    await world.restart()
    for each in (parent, child):
        tasks = (await world.call(each, "list_tasks"))["tasks"]
        assert [(task["id"], task["parentTaskId"]) for task in tasks] == [(first, None), (second, first)]
    assert [task["id"] for task in (await world.call(child, "my_tasks"))["tasks"]] == [second]
    assert (await world.call(parent, "my_tasks"))["tasks"] == []
    assert (await world.call(stranger, "list_tasks"))["tasks"] == []
    with pytest.raises(NotFound):
        await world.call(stranger, "update_task", id=first, status="completed")
    with pytest.raises(NotFound):
        await add(world, stranger, "x", sessionId=child)


async def test_a_task_waits_for_those_that_block_it(world: ToolWorld) -> None:
    session = await world.session()
    first = await add(world, session, "first")
    second = await add(world, session, "second", blockedBy=[first])
    for status in ("in_progress", "completed"):
        with pytest.raises(Conflict, match="waits for"):
            await world.call(session, "update_task", id=second, status=status)
    await world.call(session, "update_task", taskId=first, status="completed", result="done")
    done = (await world.call(session, "update_task", id=second, status="in_progress"))["task"]
    assert (done["status"], done["blocked"]) == ("in_progress", False)
    found = (await world.call(session, "list_tasks", status="completed"))["tasks"]
    assert [(task["id"], task["result"]) for task in found] == [(first, "done")]


async def test_tasks_that_would_wait_for_each_other_are_refused(world: ToolWorld) -> None:
    session = await world.session()
    first = await add(world, session, "first")
    second = await add(world, session, "second", blockedBy=[first])
    third = await add(world, session, "third", blockedBy=[second])
    for blockers in ([first], [second], [third]):
        with pytest.raises(Conflict, match="wait for itself"):
            await world.call(session, "update_task", id=first, blockedBy=blockers)
    with pytest.raises(NotFound):
        await world.call(session, "update_task", id=first, blockedBy=["k-nothing"])
    with pytest.raises(InvalidRequest):
        await world.call(session, "update_task", id=first, blockedBy=["k"] * 33)


async def test_of_two_changes_at_once_that_make_a_circle_one_is_refused(world: ToolWorld) -> None:
    session = await world.session()
    first, second = await add(world, session, "first"), await add(world, session, "second")
    done = await asyncio.gather(
        world.call(session, "update_task", id=first, blockedBy=[second]),
        world.call(session, "update_task", id=second, blockedBy=[first]),
        return_exceptions=True,
    )
    assert sum(isinstance(each, Conflict) for each in done) == 1


async def test_a_repeated_call_adds_one_task_and_writes_nothing_more(world: ToolWorld) -> None:
    session = await world.session()
    ids = {await add(world, session, "once", key="k") for _ in range(3)}
    for _ in range(3):
        await world.call(session, "update_task", id=min(ids), status="in_progress")
    assert len(ids) == 1
    kinds = [each for each in await world.base.types(session) if each.startswith("signal.board.")]
    assert kinds == ["signal.board.created", "signal.board.changed"]


async def test_an_entry_without_the_servers_seal_is_no_task(world: ToolWorld) -> None:
    session = await world.session()
    forged = Entry("e-forged", 1, {"type": "signal.board.created", "task": "k-x", "title": "t", "by": "me"})
    await world.base.base.store.append(THREADS + session, AppendRequest(keyed=(keyed(forged),)))
    assert (await world.call(session, "list_tasks"))["tasks"] == []


async def test_a_list_has_no_more_than_the_limit() -> None:
    tasks = {f"k-{number}": BoardTask(f"k-{number}", "t", "me", 1, 1) for number in range(MOST_TASKS)}
    with pytest.raises(Conflict, match="limit"):
        with_task(Board(tasks), BoardTask("k-new", "t", "me", 1, 1))


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "signal.board.created"},
        {"type": "signal.board.created", "task": "k", "title": "t", "by": "me", "status": "odd"},
        {"type": "signal.board.created", "task": "k", "title": "t", "by": "me", "blockedBy": ["k"]},
        {"type": "signal.board.changed", "task": "k"},
        {"type": "signal.board.later"},
    ],
)
async def test_an_entry_of_another_version_changes_nothing(payload: dict[str, Any]) -> None:
    assert fold(Board(), {"id": "e", "ts": 1, "payload": payload}) == Board()
