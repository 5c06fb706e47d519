"""Workflows in sessions: their steps, approvals and triggers, and who may change what."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.sessions.tools.world import ToolWorld

from holdfast.api.errors import Conflict, Forbidden, HoldfastError, InvalidRequest, NotFound, Unauthorized
from holdfast.sessions.workflows.execution import Execution, ExecutionStatus
from holdfast.sessions.workflows.rows import WorkflowKind
from holdfast.sessions.workflows.signatures import sign

pytestmark = pytest.mark.anyio
EXECUTION = WorkflowKind.EXECUTION


def command(id: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "command", "command": text, **more}


async def sync(world: ToolWorld, session: str, *steps: dict[str, Any], **variables: str) -> str:
    data = {"steps": list(steps), "variables": variables}
    done = await world.call(session, "sync_workflow", name="A flow", data=data)
    return str(done["workflow"]["id"])


async def run(world: ToolWorld, session: str, workflow: str, **more: Any) -> str:
    done = await world.call(session, "run_workflow", workflowId=workflow, **more)
    return str(done["execution"]["executionId"])


async def settled(world: ToolWorld, id: str) -> Execution:
    async with asyncio.timeout(240):
        return await world.executions.settle(id)


async def answered(world: ToolWorld, session: str, id: str) -> Execution:
    """Let the agent answer prompts until the execution has ended."""
    while True:
        task = asyncio.create_task(settled(world, id))
        while not task.done() and not (await world.base.session(session)).queue:
            await asyncio.wait((task,), timeout=0.005)
        if task.done():
            return await task
        await world.base.answer(session)


def outputs(execution: Execution) -> dict[str, str]:
    return {id: each.output.strip() for id, each in execution.steps.items()}


async def test_steps_are_carried_out_in_order_with_what_came_before(world: ToolWorld) -> None:
    session = await world.session()
    note = {"category": "fact", "content": "got {{steps.first.output}}"}
    workflow = await sync(
        world,
        session,
        command("first", "echo one $VAR_name"),
        {"id": "ask", "type": "agent", "prompt": "say {{steps.first.output}}"},
        {"id": "keep", "type": "tool", "tool": "memory_write", "input": note},
        command("last", 'echo "$STEP_first" two'),
        name="nobody",
    )  # fmt: skip
    id = await run(world, session, workflow, variables={"name": "$(id) ada"})
    done = await answered(world, session, id)
    assert done.status is ExecutionStatus.OK, done
    assert outputs(done)["first"] == "one $(id) ada"
    assert outputs(done)["last"].split() == ["one", "$(id)", "ada", "two"]
    prompts = [
        each["payload"]["text"] for each in await world.base.base.entries(session) if each["id"].startswith("workflow-")
    ]
    assert [each.strip() for each in prompts] == ["say one $(id) ada"]
    [kept] = (await world.call(session, "memory_read"))["memories"]
    assert kept["content"].strip() == "got one $(id) ada"
    shown = (await world.call(session, "get_execution", id=id))["execution"]
    assert (shown["status"], shown["ok"]) == ("ok", True)
    steps = (await world.call(session, "execution_steps", executionId=id))["steps"]
    assert [each["status"] for each in steps] == ["ok"] * 4


async def test_a_step_that_fails_ends_the_execution(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, command("a", "echo no >&2; exit 3"), command("b", "touch never"))
    done = await settled(world, await run(world, session, workflow))
    assert (done.status, done.error) == (ExecutionStatus.FAILED, "step a failed: exit code 3")
    assert outputs(done) == {"a": "no"}
    slow = await sync(world, session, command("a", "sleep 60", timeoutSeconds=1))
    done = await settled(world, await run(world, session, slow))
    assert done.error == "step a failed: it took longer than 1 s"
    tool = await sync(world, session, {"id": "t", "type": "tool", "tool": "memory_write", "input": {"content": "x"}})
    done = await settled(world, await run(world, session, tool))
    assert "needs category" in str(done.error)


@pytest.mark.parametrize(
    "step",
    [
        {"type": "agent", "prompt": "{{variables.v}}" * 80},
        {"type": "approval", "prompt": "{{variables.v}}" * 10, "notify": "@ada"},
        {"type": "tool", "tool": "memory_write", "input": {"category": "fact", "content": "{{variables.v}}" * 80}},
    ],
    ids=["agent", "approval", "tool"],
)
async def test_a_step_whose_values_are_too_long_together_fails(world: ToolWorld, step: dict[str, Any]) -> None:
    """A definition has room for thousands of references, each of which may stand for a long text."""
    session = await world.session()
    workflow = await sync(world, session, {"id": "long", **step}, command("b", "touch never"), v="x" * 16_000)
    done = await settled(world, await run(world, session, workflow))
    assert done.status is ExecutionStatus.FAILED
    assert "step long failed: with the values of its references it has more than" in str(done.error)
    assert not await world.mailbox.inbox("ada", after=None, unread=True, limit=10)


async def test_a_tool_of_a_workflow_has_no_more_rights_than_its_session(world: ToolWorld) -> None:
    session = await world.session(tools=("workflows",))
    workflow = await sync(world, session, {"id": "t", "type": "tool", "tool": "memory_read"})
    done = await settled(world, await run(world, session, workflow))
    assert "may not use memory_read" in str(done.error)


async def test_an_approval_waits_for_its_token_which_works_once(world: ToolWorld) -> None:
    session = await world.session()
    gate = {"id": "gate", "type": "approval", "prompt": "go?", "items": ["x"], "notify": "@ada"}
    workflow = await sync(world, session, gate, command("b", "echo went"))
    id = await run(world, session, workflow)
    waiting = await settled(world, id)
    assert waiting.status is ExecutionStatus.NEEDS_APPROVAL
    [told] = await world.mailbox.inbox("ada", after=None, unread=True, limit=10)
    shown = (await world.call(session, "get_execution", id=id))["execution"]
    assert shown["requiresApproval"] == {"stepId": "gate", "prompt": "go?", "items": ["x"]}
    person = (await world.tools.call(session, "get_execution", {"id": id}, person="ada"))["execution"]
    token = person["requiresApproval"]["resumeToken"]
    everything = json.dumps([await world.base.base.entries(id), await world.base.base.entries(session), told.content])
    assert token not in everything
    for wrong in ("", "x" * 64, token[:-1] + ("0" if token[-1] != "0" else "1"), token.upper() + " "):
        with pytest.raises((Forbidden, InvalidRequest)):
            await world.call(session, "approve_execution", id=id, approve=True, resumeToken=wrong)
    await world.restart()
    await world.call(session, "approve_execution", id=id, approve=True, resumeToken=token)
    done = await settled(world, id)
    assert (done.status, outputs(done)) == (ExecutionStatus.OK, {"gate": "approved", "b": "went"})
    with pytest.raises(Conflict, match="used already"):
        await world.call(session, "approve_execution", id=id, approve=False, resumeToken=token)


async def test_a_denied_approval_ends_the_execution_and_of_two_decisions_one_counts(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, {"id": "gate", "type": "approval", "prompt": "go?"})
    id = await run(world, session, workflow)
    await settled(world, id)
    token = world.keys.resume_token(id, "gate")
    done = await asyncio.gather(
        world.call(session, "approve_execution", id=id, approve=False, resumeToken=token, reason="too soon"),
        world.call(session, "approve_execution", id=id, approve=True, resumeToken=token),
        return_exceptions=True,
    )
    assert [isinstance(each, Conflict) for each in done] == [False, True]
    ended = await settled(world, id)
    assert (ended.status, ended.error) == (ExecutionStatus.FAILED, "step gate failed: denied: too soon")
    other = await run(world, session, workflow)
    await settled(world, other)
    with pytest.raises(Forbidden):
        await world.call(session, "approve_execution", id=other, approve=True, resumeToken=token)


async def test_a_workflow_that_is_rewritten_while_it_runs_goes_on_as_it_was(world: ToolWorld) -> None:
    session = await world.session()
    gate = {"id": "gate", "type": "approval", "prompt": "run the tests?"}
    workflow = await sync(world, session, gate, command("b", "echo harmless"))
    id = await run(world, session, workflow)
    await settled(world, id)
    assert await sync(world, session, gate, command("b", "echo harmful")) == workflow
    await world.call(session, "update_workflow", id=workflow, data={"steps": [command("b", "echo harmful")]})
    await world.restart()
    token = world.keys.resume_token(id, "gate")
    await world.call(session, "approve_execution", id=id, approve=True, resumeToken=token)
    assert outputs(await settled(world, id))["b"] == "harmless"
    await world.call(session, "delete_workflow", id=workflow)
    assert (await world.executions.find(id)).status is ExecutionStatus.OK


async def test_a_session_called_people_is_a_session_like_any_other(world: ToolWorld) -> None:
    session = await world.session(id="people")
    data = {"steps": [command("a", "true")]}
    made = await world.tools.call(session, "sync_workflow", {"name": "Deploy", "data": data}, person="ada")
    with pytest.raises(Conflict, match="made by people"):
        await world.call(session, "update_workflow", id=made["workflow"]["id"], data=data)
    with pytest.raises(HoldfastError):
        await world.session(id="@people")


async def test_a_tree_changes_its_own_workflows_and_runs_those_of_people(world: ToolWorld) -> None:
    session, stranger = await world.session(), await world.session()
    mine = await sync(world, session, command("a", "echo mine"))
    data = {"steps": [command("a", "echo theirs")]}
    theirs = (await world.tools.call(session, "sync_workflow", {"name": "Deploy", "data": data}, person="ada"))[
        "workflow"
    ]
    for tool, more in (
        ("get_workflow", {}),
        ("update_workflow", {"name": "x"}),
        ("delete_workflow", {}),
        ("run_workflow", {}),
    ):
        with pytest.raises(NotFound):
            await world.call(stranger, tool, id=mine, **more)
    with pytest.raises(NotFound):
        await world.call(stranger, "create_trigger", name="t", workflowId=mine, config={"type": "manual"})
    for tool, change in (("update_workflow", {"data": data}), ("delete_workflow", {})):
        with pytest.raises(Conflict, match="made by people"):
            await world.call(session, tool, id=theirs["id"], **change)
    with pytest.raises(Conflict, match="made by people"):
        await world.call(session, "sync_workflow", id=theirs["id"], name="Deploy", data=data)
    copy = await world.call(session, "sync_workflow", name="Deploy", data={"steps": [command("a", "echo copy")]})
    assert copy["workflow"]["id"] != theirs["id"]
    assert outputs(await settled(world, await run(world, stranger, theirs["id"]))) == {"a": "theirs"}
    id = await run(world, session, mine)
    await settled(world, id)
    for tool in ("get_execution", "execution_steps", "cancel_execution"):
        with pytest.raises(NotFound):
            await world.call(stranger, tool, id=id)
    assert [each["executionId"] for each in (await world.call(session, "list_executions"))["executions"]] == [id]
    assert len((await world.call(stranger, "list_executions"))["executions"]) == 1


async def test_a_repeated_run_with_the_same_key_is_one_execution(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, command("a", "echo x >> times; cat times"))
    ids = {await run(world, session, workflow, key="once") for _ in range(3)}
    assert len(ids) == 1
    await settled(world, min(ids))
    await world.restart()
    assert await run(world, session, workflow, key="once") in ids
    assert outputs(await settled(world, min(ids))) == {"a": "x"}


async def test_a_cancelled_execution_stays_cancelled(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, {"id": "a", "type": "agent", "prompt": "x"}, command("b", "echo y"))
    id = await run(world, session, workflow)
    done = (await world.call(session, "cancel_execution", id=id, reason="enough"))["execution"]
    assert (done["status"], done["error"]) == ("cancelled", f"cancelled by {session}: enough")
    await world.restart()
    await world.executions.take_up()
    assert (await settled(world, id)).status is ExecutionStatus.CANCELLED
    assert await world.rows.list(EXECUTION, only_open=True, limit=10) == []


async def test_the_end_of_a_session_ends_its_executions(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, {"id": "a", "type": "agent", "prompt": "x"})
    id = await run(world, session, workflow)
    await world.base.sessions.terminate(session)
    done = await settled(world, id)
    assert done.status is ExecutionStatus.FAILED
    with pytest.raises(Conflict):
        await run(world, session, workflow)


async def test_a_schedule_fires_once_for_each_time_and_once_for_all_that_were_missed(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, command("a", "echo x"))
    config = {"type": "schedule", "cron": "*/10 * * * *"}
    trigger = (await world.call(session, "create_trigger", name="t", workflowId=workflow, config=config))["trigger"]
    await world.executions.sweep()
    assert await world.rows.list(EXECUTION, limit=10) == []
    world.base.base.clock.advance(trigger["nextAt"] - world.base.base.clock.now())
    await asyncio.gather(*(world.executions.sweep() for _ in range(3)))
    for each in await world.rows.list(EXECUTION, limit=10):
        await settled(world, each.id)
    await world.restart()
    await world.executions.sweep()
    [row] = await world.rows.list(EXECUTION, limit=10)
    await settled(world, row.id)
    world.base.base.clock.advance(3_600_000)
    await world.executions.sweep()
    assert len([await settled(world, row.id) for row in await world.rows.list(EXECUTION, limit=10)]) == 2
    await world.call(session, "update_trigger", id=trigger["id"], enabled=False)
    world.base.base.clock.advance(3_600_000)
    await world.executions.sweep()
    assert len(await world.rows.list(EXECUTION, limit=10)) == 2


async def test_a_schedule_of_a_session_that_has_ended_is_disabled(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, command("a", "echo x"))
    config = {"type": "schedule", "cron": "* * * * *"}
    await world.call(session, "create_trigger", name="t", workflowId=workflow, config=config)
    await world.base.sessions.terminate(session)
    world.base.base.clock.advance(120_000)
    await world.executions.sweep()
    [trigger] = (await world.tools.call(session, "list_triggers", {}, person="ada"))["triggers"]
    assert (trigger["enabled"], "terminated" in trigger["why"]) == (False, True)


async def test_a_trigger_that_is_made_again_has_another_secret(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, command("a", "true"))
    hook = {"name": "t", "workflowId": workflow, "config": {"type": "webhook"}, "key": "ci"}
    first = (await world.call(session, "create_trigger", **hook))["trigger"]
    assert (await world.call(session, "create_trigger", **hook))["trigger"]["secret"] == first["secret"]
    await world.call(session, "delete_trigger", id=first["id"])
    second = (await world.call(session, "create_trigger", **hook))["trigger"]
    assert (second["id"], second["secret"] != first["secret"]) == (first["id"], True)


async def test_a_signed_webhook_fires_once_however_often_it_is_sent(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, command("a", "echo $VAR_ref"), ref="none")
    hook = {"name": "t", "workflowId": workflow, "config": {"type": "webhook"}, "variableMapping": {"ref": "body.ref"}}
    made = await world.call(session, "create_trigger", **hook)
    trigger, now = made["trigger"], world.base.base.clock.now()
    stamp, body = str(now // 1000), b'{"ref": "main"}'
    signature = sign(trigger["secret"], stamp, body)
    ids = {(await world.workflows.webhook(trigger["id"], stamp, signature, body, now))["executionId"] for _ in range(3)}
    [id] = ids
    assert outputs(await settled(world, id)) == {"a": "main"}
    wrong = (
        (trigger["id"], sign("whsec_x", stamp, body), body),
        (trigger["id"], signature, b"{}"),
        ("g-no", signature, body),
    )
    for where, given, sent in wrong:
        with pytest.raises(Unauthorized) as refused:
            await world.workflows.webhook(where, stamp, given, sent, now)
        assert refused.value.message == "there is no such webhook, or its signature is wrong or too old"
    with pytest.raises(Unauthorized):
        await world.workflows.webhook(trigger["id"], stamp, signature, body, now + 400_000)
    listed = json.dumps((await world.call(session, "list_triggers"))["triggers"])
    assert trigger["secret"] not in listed
    await world.call(session, "update_trigger", id=trigger["id"], enabled=False)
    with pytest.raises(Unauthorized):
        await world.workflows.webhook(trigger["id"], stamp, signature, body, now)


async def test_a_session_has_no_more_executions_at_once_than_the_limit(world: ToolWorld) -> None:
    session = await world.session()
    workflow = await sync(world, session, {"id": "gate", "type": "approval", "prompt": "go?"})
    failures: list[str] = []
    for number in range(22):
        world.base.base.clock.advance(10_000)
        try:
            await run(world, session, workflow, key=str(number))
        except HoldfastError as error:
            failures.append(error.code)
    assert failures == ["too_many_requests"] * 2
