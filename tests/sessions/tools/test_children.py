"""Sessions that sessions start: what they get, who sees them, and the limits of a tree."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.runs.world import SPEC
from tests.sessions.tools.world import ToolWorld

from holdfast.api.errors import Forbidden, HoldfastError, InvalidRequest, NotFound, TooManyRequests
from holdfast.api.errors.boxes import CreateFailed
from holdfast.api.errors.sessions import SessionConflict
from holdfast.api.errors.tasks import DelegationLimit
from holdfast.api.model.budgets import Budget
from holdfast.api.session.sessions import PromptMode, SessionState
from holdfast.sessions.session_log import session_of

pytestmark = pytest.mark.anyio


async def spawn(world: ToolWorld, parent: str, **more: object) -> str:
    return str((await world.call(parent, "spawn_child", task="look", workspace="w", **more))["childSessionId"])


async def test_a_child_works_on_its_task_with_the_settings_of_its_parent(world: ToolWorld) -> None:
    parent = await world.session(timeout=99, spec=replace(SPEC, env={"A": "b"}))
    child = await spawn(world, parent, title="a look", source_type="issue", sourceIssueNumber=7)
    await world.base.answer(child)
    row = await world.base.row(child)
    session, above = session_of(row), await world.base.session(parent)
    assert (row.title, row.labels["sourceIssueNumber"], session.parent) == ("a look", "7", parent)
    assert session.options == above.options
    assert (session.agent, session.model) == (above.agent, above.model)
    assert [each.status for each in session.ended] == ["completed"]


async def test_what_a_child_uses_counts_for_the_run_that_started_it(world: ToolWorld) -> None:
    budget = Budget(tokens=1000)
    parent = await world.session(budget=budget)
    await world.base.prompt(parent)
    working = await world.base.at_work(parent)
    child = await spawn(world, parent)
    middle = await world.base.at_work(child)
    grandchild = await spawn(world, child)
    await world.restart()
    last = await world.base.at_work(grandchild)
    terms = await world.base.base.runs.model_terms(grandchild, last.run.run)
    assert terms.above == ((middle.run.run, budget), (working.run.run, budget))
    assert terms.budget == budget


async def test_the_first_prompt_is_on_disk_together_with_the_child(world: ToolWorld) -> None:
    parent = await world.session()
    child = await spawn(world, parent)
    kinds = [each["payload"]["type"] for each in (await world.base.base.entries(child))[:3]]
    assert kinds == ["signal.thread.created", "signal.session.created", "chat"]


async def test_a_repeated_call_with_the_same_key_starts_one_child(world: ToolWorld) -> None:
    parent, other = await world.session(), await world.session()
    made = await asyncio.gather(*(spawn(world, parent, key="once") for _ in range(4)))
    await world.restart()
    assert {*made, await spawn(world, parent, key="once")} == {made[0]}
    assert len((await world.base.session(made[0])).queue) == 1
    assert await spawn(world, other, key="once") != made[0]


async def test_a_session_sees_only_what_is_below_it(world: ToolWorld) -> None:
    parent, stranger = await world.session(), await world.session()
    child = await spawn(world, parent)
    grandchild = await spawn(world, child)
    sibling = await spawn(world, parent)
    await world.base.settled(child)
    for session in (grandchild, child):
        assert (await world.call(parent, "session_status", sessionId=session))["sessionStatus"]["id"] == session
    hidden = (
        (stranger, child),
        (child, parent),
        (child, sibling),
        (grandchild, child),
        (child, child),
        (child, "t-no"),
    )
    for session, target in hidden:
        for tool in ("session_status", "session_messages", "forward_messages", "terminate_child"):
            with pytest.raises(NotFound):
                await world.call(session, tool, sessionId=target)
        if target != (await world.base.session(session)).parent:
            with pytest.raises(NotFound):
                await world.call(session, "session_message", sessionId=target, content="hello")
    assert [each["id"] for each in (await world.call(child, "child_sessions"))["children"]] == [grandchild]
    assert (await world.base.session(child)).state is SessionState.RUNNING


async def test_messages_go_down_and_up_and_only_those_above_interrupt(world: ToolWorld) -> None:
    parent = await world.session()
    child = await spawn(world, parent)
    await world.call(child, "session_message", sessionId=parent, content="I am done", key="k")
    await world.call(child, "session_message", sessionId=parent, content="I am done", key="k")
    await world.call(parent, "session_message", targetSessionId=child, content="stop", interrupt=True)
    told = await world.base.session(parent)
    assert [each.mode for each in told.queue] == [PromptMode.FOLLOWUP]
    assert PromptMode.STEER in {each.mode for each in (await world.base.session(child)).queue}
    with pytest.raises(NotFound):
        await world.call(child, "session_message", sessionId=parent, content="stop", interrupt=True)


async def test_what_was_said_is_read_by_position_and_forwarded_once(world: ToolWorld) -> None:
    parent = await world.session()
    child = await spawn(world, parent)
    for text in ("one", "two", "three"):
        await world.call(parent, "session_message", sessionId=child, content=text)
    messages = (await world.call(parent, "session_messages", sessionId=child))["messages"]
    assert [each["content"] for each in messages] == ["look", "one", "two", "three"]
    later = await world.call(parent, "session_messages", sessionId=child, after=messages[1]["id"], limit=1)
    assert [each["content"] for each in later["messages"]] == ["two"]
    for _ in range(2):
        done = await world.call(parent, "forward_messages", sessionId=child, after=messages[1]["id"])
        assert done == {"count": 2, "sourceSessionId": child}
    forwarded = [each for each in await world.base.base.entries(parent) if each["payload"].get("forwarded") == child]
    assert [each["payload"]["text"] for each in forwarded] == ["two", "three"]
    assert (await world.base.session(parent)).queue == ()
    with pytest.raises(InvalidRequest):
        await world.call(parent, "session_messages", sessionId=child, after="e-nothing")


async def test_a_session_ends_its_children_and_itself(world: ToolWorld) -> None:
    parent = await world.session()
    first, second = await spawn(world, parent), await spawn(world, parent)
    assert await world.call(parent, "terminate_child", childSessionId=first) == {"success": True}
    assert await world.base.settled(first) is SessionState.TERMINATED
    assert await world.call(parent, "complete_session") == {"success": True}
    for each in (parent, second):
        assert await world.base.settled(each) is SessionState.TERMINATED
    with pytest.raises(SessionConflict):
        await spawn(world, parent)


async def told(world: ToolWorld, id: str) -> list[str]:
    """What the server has said to the agent of a session."""
    entries = await world.base.base.entries(id)
    return [each["payload"]["text"] for each in entries if each["payload"].get("child") and "text" in each["payload"]]


async def test_the_agent_of_a_parent_learns_of_the_end_of_a_child_and_starts_to_work_on_it(world: ToolWorld) -> None:
    parent = await world.session()
    child = await spawn(world, parent, title="a look")
    runner = await world.base.at_work(child)
    await runner.say("All is well.")
    await world.call(child, "complete_session")
    await runner.end()
    await world.base.settled(child)
    name = f'Session {child} ("a look"), which belongs to this one,'
    assert await told(world, parent) == [
        f"[{name} has completed its work. The last message of its agent:]\n\nAll is well."
    ]
    await world.base.answer(parent)
    assert world.base.base.agents.scripted.tasks[-1].prompt == (await told(world, parent))[0]
    await world.restart()
    await world.base.sessions.sweep()
    assert len(await told(world, parent)) == 1


async def test_an_agent_is_not_told_of_an_end_that_it_asked_for_nor_after_its_own(world: ToolWorld) -> None:
    parent = await world.session()
    one, other = await spawn(world, parent), await spawn(world, parent)
    await world.call(parent, "terminate_child", childSessionId=one)
    assert await world.base.settled(one) is SessionState.TERMINATED
    assert await told(world, parent) == []
    await world.base.settled(other)
    await world.base.sessions.terminate(other, by="ada")
    await world.base.settled(other)
    assert await told(world, parent) == [
        f'[Session {other} ("w"), which belongs to this one, was terminated. Its agent left no message.]'
    ]
    third = await spawn(world, parent)
    await world.base.sessions.terminate(parent)
    await world.base.settled(parent)
    assert await world.base.settled(third) is SessionState.TERMINATED
    assert len(await told(world, parent)) == 1


async def test_an_agent_learns_that_a_child_could_not_be_started(world: ToolWorld) -> None:
    parent = await world.session()
    world.base.base.provider.fail_next("create", CreateFailed("there is no room"))
    child = await spawn(world, parent)
    assert await world.base.settled(child) is SessionState.ERROR
    [text] = await told(world, parent)
    assert f'[Session {child} ("w"), which belongs to this one, could not be started: there is no room' in text


async def test_a_tree_has_limits(world: ToolWorld) -> None:
    parent = await world.session()
    children = [await spawn(world, parent, key=f"k{number}") for number in range(3)]
    with pytest.raises(DelegationLimit, match="3 sessions of its own"):
        await spawn(world, parent)
    assert await spawn(world, parent, key="k0") == children[0]
    below = children[0]
    for _ in range(2):
        below = await spawn(world, below)
    with pytest.raises(DelegationLimit, match="levels below"):
        await spawn(world, below)
    assert len(await world.tree.all_below(parent)) == 5


async def test_a_child_gets_no_other_model_and_no_other_files(world: ToolWorld) -> None:
    parent = await world.session()
    for wrong in ({"model": "other/large"}, {"repoUrl": "https://example.com/a/b"}, {"branch": "main"}, {"ref": "x"}):
        with pytest.raises(InvalidRequest):
            await spawn(world, parent, **wrong)
    assert await world.tree.all_below(parent) == []


async def test_a_session_uses_only_the_groups_that_it_was_given(world: ToolWorld) -> None:
    session = await world.session(tools=("memory",))
    plain = await world.session(tools=())
    for each in (session, plain):
        with pytest.raises(Forbidden, match="may not use child_sessions"):
            await world.call(each, "child_sessions")
    assert await world.tools.call(plain, "child_sessions", {}, person="ada") == {"children": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"task": "t"}, {"task": "", "workspace": "w"}, {"task": " \n", "workspace": "w"},
        {"task": 7, "workspace": "w"}, {"task": "t\0", "workspace": "w"}, {"task": "\ud800", "workspace": "w"},
        {"task": "t" * (1 << 20) + "t", "workspace": "w"}, {"task": "t", "workspace": "w", "parent": "t-1"},
        {"task": "t", "workspace": "w", "box": "same"}, {"task": "t", "workspace": "w", "sourcePrNumber": True},
        {"task": "t", "workspace": "w", "key": "with space"}, {"task": "t", "workspace": "w", "key": "k\n"},
    ],
)  # fmt: skip
async def test_input_that_is_not_as_defined_is_refused(world: ToolWorld, wrong: dict[str, object]) -> None:
    parent = await world.session()
    with pytest.raises(InvalidRequest):
        await world.tools.call(parent, "spawn_child", wrong)
    assert await world.tree.children_of(parent) == []


async def test_an_agent_that_calls_without_end_is_slowed_down(world: ToolWorld) -> None:
    parent = await world.session()
    failures: list[HoldfastError] = []
    for _ in range(100):
        try:
            await world.call(parent, "terminate_child", sessionId="t-none")
        except HoldfastError as error:
            failures.append(error)
    assert sum(isinstance(each, TooManyRequests) for each in failures) == 40
    await world.call(parent, "child_sessions")
