"""A server that dies before any of its writes: the next one brings the execution to its end, each step once."""

from __future__ import annotations

import asyncio

import pytest
from tests.sessions.tools.world import ToolWorld
from tests.sessions.workflows.test_workflows import answered, command, outputs, sync

from holdfast.api.errors import HoldfastError
from holdfast.sessions.workflows.execution import Execution, ExecutionStatus
from holdfast.sessions.workflows.rows import WorkflowKind
from holdfast.threads.protocol.surface import THREADS

pytestmark = pytest.mark.anyio
MOST_WRITES = 16


async def carry_out(world: ToolWorld, session: str, workflow: str) -> None:
    """Start the execution, answer its prompt and its approval, as far as the server lives."""
    done = await world.call(session, "run_workflow", workflowId=workflow, key="k")
    id = done["execution"]["executionId"]
    log = world.base.base.log

    async def answer() -> None:
        execution = await answered(world, session, id)
        if execution.status is ExecutionStatus.NEEDS_APPROVAL:
            token = world.keys.resume_token(id, "gate")
            await world.call(session, "approve_execution", id=id, approve=True, resumeToken=token)
            await answered(world, session, id)

    work = asyncio.create_task(answer())
    while not work.done() and not log.dead:
        await asyncio.wait((work,), timeout=0.01)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@pytest.mark.parametrize("writes", range(MOST_WRITES))
async def test_each_step_is_carried_out_once_whenever_the_server_dies(world: ToolWorld, writes: int) -> None:
    session = await world.session()
    workflow = await sync(
        world,
        session,
        command("count", "echo x >> times; cat times"),
        {"id": "ask", "type": "agent", "prompt": "hello"},
        {"id": "note", "type": "tool", "tool": "memory_write", "input": {"content": "once", "category": "fact"}},
        {"id": "gate", "type": "approval", "prompt": "go?"},
        command("last", "echo y >> ends; cat ends", repeat=False),
    )
    log = world.base.base.log
    log.die_at = log.appends + writes + 1
    try:
        async with asyncio.timeout(240):
            await carry_out(world, session, workflow)
    except (HoldfastError, asyncio.CancelledError):
        pass
    died = log.dead
    await world.executions.close()
    if died:
        await world.restart()
        await world.base.base.runs.sweep()
        await world.executions.take_up()
        async with asyncio.timeout(240):
            await carry_out(world, session, workflow)
    [row] = await world.rows.list(WorkflowKind.EXECUTION, limit=10)
    execution = await world.executions.find(row.id)
    last = execution.steps.get("last")
    unknown = last is not None and last.error is not None and "nobody knows" in last.error
    assert execution.status is ExecutionStatus.OK or unknown, execution
    # A server that dies between the start of a command and the note about it leaves a command that is repeated.
    assert outputs(execution)["count"] in ("x", "x\nx")
    assert outputs(execution)["count"] == "x" or execution.steps["count"].attempt == 2
    if not unknown:
        assert outputs(execution)["last"] == "y"
    prompts = [each for each in await world.base.base.entries(session) if each["id"].startswith("workflow-")]
    assert len(prompts) == 1
    assert len((await world.call(session, "memory_read"))["memories"]) == 1
    assert not row.is_open
    kinds = [each["payload"]["type"] for each in await world.base.base.entries(row.id)]
    assert kinds.count("signal.workflow.finished") == 1


async def test_a_command_outlives_the_server_and_is_found_again(world: ToolWorld) -> None:
    session = await world.session()
    waits = "echo y >> ends; while [ ! -e go ]; do sleep 0.02; done; cat ends"
    workflow = await sync(world, session, command("a", waits, repeat=False))
    id = (await world.call(session, "run_workflow", workflowId=workflow))["execution"]["executionId"]
    changed = asyncio.Event()
    stop = world.base.base.store.watch(THREADS + id, lambda _: changed.set())
    async with asyncio.timeout(240):
        while not _process(await world.executions.find(id)):
            await changed.wait()
            changed.clear()
    stop()
    await world.executions.close()
    await world.restart()
    await world.executions.take_up()
    box_row = await world.base.sessions.box_of(session)
    assert box_row is not None
    async with await world.base.base.boxes.open(box_row.id) as box:
        await box.exec(["touch", "go"], cwd=box.spec.workdir)
    async with asyncio.timeout(240):
        done = await world.executions.settle(id)
    assert (done.status, outputs(done), done.steps["a"].attempt) == (ExecutionStatus.OK, {"a": "y"}, 1)


def _process(execution: Execution) -> str | None:
    record = execution.steps.get("a")
    return None if record is None else record.process
