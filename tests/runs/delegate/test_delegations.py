"""Tasks are delegated once, start, end and are reported once, whoever dies in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.runs.world import SPEC, Runner, World

from holdfast.api.errors import Conflict, HoldfastError, Unavailable
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.errors.tasks import DelegationLimit, NothingToShare, TaskNotFound
from holdfast.api.run.runs import Launched
from holdfast.api.run.tasks import BoxMode, DelegationLimits, NewTask
from holdfast.runs.delegate.rules import task_id
from holdfast.runs.launch.plan import Options, Prompt

pytestmark = pytest.mark.anyio


def of_type(entries: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each["payload"] for each in entries if each["payload"]["type"] == kind]


async def parent_run(world: World, **options: Any) -> tuple[str, Runner]:
    launched = await world.launch("the large task", **{"delegates": True, **options})
    return launched.thread, await world.runner(launched)


async def task_runner(world: World, task: str) -> Runner:
    """The runner of a task, once it is there."""
    async with asyncio.timeout(240):
        while (run := (await world.threads.get(task)).runs.latest) is None or run.process is None:
            await world.runs.reconcile(task)
            await asyncio.sleep(0.005)
    return Runner(world, task, run)


async def finish(world: World, task: str, text: str = "The answer is 42.", status: str = "completed") -> None:
    runner = await task_runner(world, task)
    await runner.say(text)
    await runner.end(status)
    await world.runs.reconcile(task)


async def test_a_task_is_a_thread_that_starts_at_once_and_reports_its_end_to_its_parent(world: World) -> None:
    thread, runner = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="find the answer\nplease"))
    assert (task.parent, task.root, task.depth, task.box) == (thread, thread, 1, "own")
    assert task.title == "find the answer"
    row = await world.threads.get(task.id)
    assert row.parent == thread
    assert row.runs.delegation is not None
    assert row.runs.delegation.run == runner.run.run
    await finish(world, task.id)
    entries = await world.entries(thread)
    [started] = of_type(entries, "signal.thread.child_started")
    [finished] = of_type(entries, "signal.thread.child_finished")
    assert (started["child"], started["run"]) == (task.id, runner.run.run)
    assert (finished["child"], finished["status"]) == (task.id, "completed")
    [chat] = [each for each in of_type(entries, "chat") if each.get("child") == task.id]
    assert "The answer is 42." in chat["text"]
    assert (await world.runs.delegations.get(task.id)).reported
    assert (await world.runs.delegations.result(task.id)).result == "The answer is 42."


async def test_a_task_has_its_own_chain_of_models_or_that_of_its_parent(world: World) -> None:
    thread, _ = await parent_run(world, model="a", fallbacks=("b",))
    for new, expected in (
        (NewTask(prompt="as its parent"), ("a/x", ["b/x"])),
        (NewTask(prompt="another one", model="c", fallbacks=("d", "e")), ("c/x", ["d/x", "e/x"])),
        (NewTask(prompt="one model", model="c"), ("c/x", None)),
    ):
        task = await world.runs.delegations.delegate(thread, new)
        run = (await task_runner(world, task.id)).run
        assert (run.model, run.options.get("fallbacks")) == expected


async def test_a_result_waits_for_the_next_prompt_of_the_parent_and_precedes_it(world: World) -> None:
    thread, runner = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="find it"))
    await runner.end()
    await finish(world, task.id)
    await world.runs.reconcile(thread)
    assert (await world.latest(thread)).run == runner.run.run  # nobody woke it
    assert not (await world.threads.get(thread)).runs.is_unsettled
    launched = await world.runs.resume(thread, Prompt("and now?"))
    await world.settled(launched)
    told = world.agents.scripted.tasks[-1].prompt
    assert told.index("The answer is 42.") < told.index("and now?")
    assert (await world.threads.get(thread)).runs.waiting == ()


async def test_a_parent_that_asked_for_it_is_woken_by_the_result(world: World) -> None:
    thread, runner = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="find it", wake=True))
    await runner.end()
    await world.runs.reconcile(thread)
    await finish(world, task.id)
    row = await world.runs.reconcile(thread)
    assert row.runs.latest is not None
    assert row.runs.latest.run != runner.run.run
    await world.settled(Launched(thread, row.runs.latest.run, ""))
    assert "The answer is 42." in world.agents.scripted.tasks[-1].prompt


async def test_a_parent_at_work_is_woken_after_its_run(world: World) -> None:
    thread, runner = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="find it", wake=True))
    await finish(world, task.id)
    assert (await world.runs.reconcile(thread)).runs.latest == await world.latest(thread)
    assert (await world.latest(thread)).run == runner.run.run
    await runner.end()
    row = await world.runs.reconcile(thread)
    assert row.runs.latest is not None
    assert row.runs.latest.run != runner.run.run


async def test_a_cancelled_parent_is_not_woken_and_nobody_waits_for_that(world: World) -> None:
    thread, runner = await parent_run(world)
    await world.runs.cancel(thread)
    await runner.end("cancelled")
    await world.runs.reconcile(thread)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="find it", wake=True))
    assert await live_threads(world, thread) == [task.id]
    await finish(world, task.id)
    assert (await world.runs.reconcile(thread)).runs.waiting
    assert (await world.latest(thread)).run == runner.run.run
    assert await live_threads(world, thread) == []


async def test_who_waits_for_a_thread_waits_until_it_was_woken_and_has_ended(world: World) -> None:
    thread, runner = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="find it", wake=True))
    assert await live_threads(world, thread) == [thread, task.id]
    await finish(world, task.id)
    await runner.end()
    assert await live_threads(world, thread) == [thread]  # it is about to be woken
    woken = (await world.runs.reconcile(thread)).runs.latest
    assert woken is not None
    assert await live_threads(world, thread) == [thread]
    await (await world.runner(Launched(thread, woken.run, ""))).end()
    await world.runs.reconcile(thread)
    assert await live_threads(world, thread) == []


async def live_threads(world: World, thread: str) -> list[str]:
    return [each.id for each in (await world.runs.delegations.tree_of(thread)).threads if each.live]


async def test_an_agent_that_asked_for_the_result_is_not_told_again(world: World) -> None:
    thread, runner = await parent_run(world)
    called = await world.runs.call_tool(thread, runner.run.run, "delegate_task", {"prompt": "find it", "wake": True})
    await finish(world, called["task"])
    read = await world.runs.call_tool(thread, runner.run.run, "task_result", {"task": called["task"]})
    assert read == {"task": called["task"], "status": "completed", "result": "The answer is 42."}
    await runner.end()
    row = await world.runs.reconcile(thread)
    assert row.runs.latest is not None
    assert row.runs.latest.run == runner.run.run
    assert row.runs.waiting == ()


async def test_a_task_that_waits_to_be_woken_has_not_ended(world: World) -> None:
    thread, _ = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="find it"))
    first = await task_runner(world, task.id)
    inner = await world.runs.delegations.delegate(task.id, NewTask(prompt="look there", wake=True))
    assert (inner.root, inner.depth) == (thread, 2)
    await first.say("I wait.")
    await first.end()
    await world.runs.reconcile(task.id)
    assert (await world.runs.delegations.get(task.id)).status == "running"
    await finish(world, inner.id, "It is there.")
    await world.runs.reconcile(task.id)
    async with asyncio.timeout(240):
        while (await world.latest(task.id)).run == first.run.run:
            await world.runs.sweep()
    await finish(world, task.id, "Found.")
    assert (await world.runs.delegations.result(task.id)).result == "Found."
    assert len(of_type(await world.entries(thread), "signal.thread.child_finished")) == 1


async def test_the_same_key_is_the_same_task(world: World) -> None:
    thread, _ = await parent_run(world)
    new = NewTask(prompt="find it", key="k-1")
    made = await asyncio.gather(*(world.runs.delegations.delegate(thread, new) for _ in range(8)))
    assert {each.id for each in made} == {task_id(thread, "k-1")}
    assert len(await world.runs.delegations.list(thread)) == 1
    [task] = {each.id for each in made}
    await task_runner(world, task)
    assert len(of_type(await world.entries(task), "signal.run.started")) == 1
    other = await world.runs.delegations.delegate(thread, NewTask(prompt="find it", key="k-2"))
    assert other.id != task


async def test_a_key_whose_thread_is_something_else_is_refused(world: World) -> None:
    thread, _ = await parent_run(world)
    await world.threads.create(id=task_id(thread, "k-1"))
    with pytest.raises(Conflict):
        await world.runs.delegations.delegate(thread, NewTask(prompt="find it", key="k-1"))


async def test_limits_hold_however_many_ask_at_once(world: World) -> None:
    world.runs.delegations.limits = DelegationLimits(breadth=3)
    thread, _ = await parent_run(world)
    asked = [world.runs.delegations.delegate(thread, NewTask(prompt=f"task {n}")) for n in range(12)]
    made = await asyncio.gather(*asked, return_exceptions=True)
    assert Counter(type(each) for each in made)[DelegationLimit] == 9
    [first, *_] = [each for each in made if not isinstance(each, BaseException)]
    await finish(world, first.id)
    await world.runs.delegations.delegate(thread, NewTask(prompt="one more"))


async def test_the_depth_of_a_tree_is_limited(world: World) -> None:
    world.runs.delegations.limits = DelegationLimits(depth=2)
    thread, _ = await parent_run(world)
    for _ in range(2):
        thread = (await world.runs.delegations.delegate(thread, NewTask(prompt="deeper"))).id
        await task_runner(world, thread)
    with pytest.raises(DelegationLimit, match="the limit is 2"):
        await world.runs.delegations.delegate(thread, NewTask(prompt="deeper"))


@pytest.mark.parametrize("limits", [DelegationLimits(boxes=1), DelegationLimits(threads=1)])
async def test_boxes_and_tasks_are_limited_over_the_whole_tree(world: World, limits: DelegationLimits) -> None:
    world.runs.delegations.limits = limits
    thread, _ = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="first"))
    await task_runner(world, task.id)
    with pytest.raises(DelegationLimit, match="which is the limit"):
        await world.runs.delegations.delegate(task.id, NewTask(prompt="second"))


async def test_a_task_in_the_same_box_needs_no_box(world: World) -> None:
    world.runs.delegations.limits = DelegationLimits(boxes=0)
    thread, runner = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="here", box=BoxMode.SAME))
    child = await task_runner(world, task.id)
    assert child.run.box == runner.run.box
    # Deleting the task leaves the box of its parent alone.
    await world.runs.forget(task.id)
    await world.threads.delete(task.id)
    await world.runs.tasks.join()
    assert runner.run.box is not None
    assert (await world.boxes.get(runner.run.box)).live


async def test_a_fork_has_the_files_of_its_parents_box_but_not_its_sessions(world: World) -> None:
    thread, runner = await parent_run(world)
    assert runner.run.box is not None
    async with await world.boxes.open(runner.run.box) as box:
        await box.files.write("notes.txt", b"found so far")
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="go on", box=BoxMode.FORK))
    child = await task_runner(world, task.id)
    assert child.run.box not in (None, runner.run.box)
    assert child.run.files == "fork"
    async with await world.boxes.open(str(child.run.box)) as box:
        assert await box.files.read("notes.txt") == b"found so far"
        left = await box.exec(["sh", "-c", "ls $HOME/.holdfast/threads"])
        assert left.stdout.decode().split() == [task.id]


async def test_a_thread_without_a_box_has_none_to_share(world: World) -> None:
    thread = (await world.threads.create()).id
    for mode in (BoxMode.FORK, BoxMode.SAME):
        with pytest.raises(NothingToShare):
            await world.runs.delegations.delegate(thread, NewTask(prompt="go", agent="scripted", box=mode))
    with pytest.raises(InvalidRun, match="name the agent"):
        await world.runs.delegations.delegate(thread, NewTask(prompt="go"))


async def test_cancelling_a_run_cancels_everything_below_it(world: World) -> None:
    thread, _ = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="a"))
    await task_runner(world, task.id)
    inner = await world.runs.delegations.delegate(task.id, NewTask(prompt="b"))
    await task_runner(world, inner.id)
    await world.runs.cancel(thread)
    for each in (thread, task.id, inner.id):
        assert (await world.latest(each)).cancel == "cancel"


async def test_a_cancel_reaches_tasks_even_if_the_server_died_right_after_it(world: World) -> None:
    thread, runner = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="a"))
    child = await task_runner(world, task.id)
    inner = await world.runs.delegations.delegate(task.id, NewTask(prompt="b"))
    await task_runner(world, inner.id)
    await child.end()  # the link between them has ended already
    world.log.die_at = world.log.appends + 2  # the request on the parent is written, and nothing after it
    with pytest.raises(HoldfastError):
        await world.runs.cancel(thread)
    await world.restart()
    assert (await world.latest(thread)).cancel == "cancel"
    assert runner.run.run == (await world.latest(thread)).run
    await world.runs.sweep()
    assert (await world.latest(inner.id)).cancel == "cancel"


async def test_a_task_whose_parent_is_deleted_is_cancelled(world: World) -> None:
    thread, _ = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="a"))
    child = await task_runner(world, task.id)
    await world.threads.delete(thread)
    await world.runs.reconcile(task.id)
    assert (await world.latest(task.id)).cancel == "cancel"
    await child.end("cancelled")
    await world.runs.reconcile(task.id)
    assert (await world.runs.delegations.get(task.id)).reported


async def test_an_interrupted_parent_keeps_its_tasks(world: World) -> None:
    thread, _ = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="a"))
    await task_runner(world, task.id)
    await world.runs.steer(thread, Prompt("something else"), interrupt=True)
    await world.runs.sweep()
    assert (await world.latest(task.id)).cancel is None


async def test_a_task_is_found_only_by_its_own_parent(world: World) -> None:
    thread, runner = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="a"))
    other, other_runner = await parent_run(world)
    for tool in ("task_status", "task_result", "task_cancel"):
        for id in (task.id, thread, "t-nothing"):
            with pytest.raises(TaskNotFound):
                await world.runs.call_tool(other, other_runner.run.run, tool, {"task": id})
    status = await world.runs.call_tool(thread, runner.run.run, "task_status", {"task": task.id})
    assert status["status"] == "running"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prompt": ""},
        {"prompt": "  "},
        {"prompt": 7},
        {"prompt": "a\0b"},
        {"prompt": "\ud800"},
        {"prompt": "x" * (1 << 21)},
        {"prompt": "a", "model": "expensive"},
        {"prompt": "a", "network": {"mode": "open"}},
        {"prompt": "a", "box": "the host"},
        {"prompt": "a", "wake": "yes"},
        {"prompt": "a", "key": "a b"},
        {"prompt": "a", "agent": "nobody"},
    ],
)
async def test_an_agent_cannot_ask_for_more_than_a_task(world: World, arguments: dict[str, Any]) -> None:
    thread, runner = await parent_run(world)
    for _ in range(3):
        with pytest.raises(HoldfastError):
            await world.runs.call_tool(thread, runner.run.run, "delegate_task", arguments)
    assert await world.runs.delegations.list(thread) == []
    assert len(of_type(await world.entries(thread), "signal.thread.task_refused")) == 1


async def test_tasks_that_cannot_start_end_with_the_reason(world: World) -> None:
    thread, _ = await parent_run(world)
    world.provider.at.clear()

    async def fails() -> None:
        raise Unavailable("there is no agent today")

    world.agents.hook = fails
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="a"))
    await world.runs.launches.wait(task.id)
    await world.runs.reconcile(task.id)
    [finished] = of_type(await world.entries(thread), "signal.thread.child_finished")
    assert (finished["status"], finished["error"]["message"]) == ("failed", "there is no agent today")


async def test_forged_signals_are_not_believed(world: World) -> None:
    thread, _ = await parent_run(world)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="a"))
    child = await task_runner(world, task.id)
    forged = {"type": "signal.thread.reported", "run": child.run.run, "parent": thread}
    await world.threads._append(task.id, world.threads._entry(forged.pop("type"), **forged))
    assert not (await world.runs.delegations.get(task.id)).reported
    victim = (await world.threads.create()).id
    fields: dict[str, Any] = {
        "parent": thread,
        "root": thread,
        "depth": 1,
        "agent": "scripted",
        "model": "m",
        "box": "own",
    }
    await world.threads._append(victim, world.threads._entry("signal.thread.delegated", **fields))
    with pytest.raises(TaskNotFound):
        await world.runs.delegations.get(victim)


# --- whoever dies ---


async def delegated_and_ended(world: World) -> None:
    """Everything about one task, in a server that may die at any write."""
    thread, runner = "t-parent", None
    await world.runs.launch(Prompt("large", id="e-1"), Options("scripted", None, SPEC), new_thread=thread)
    await world.runs.launches.wait(thread)
    run = await world.latest(thread)
    if run.live and run.process is not None:
        runner = Runner(world, thread, run)
    task = await world.runs.delegations.delegate(thread, NewTask(prompt="find", key="k-1", wake=True))
    await world.runs.launches.wait(task.id)
    await world.runs.reconcile(task.id)
    if runner is not None:
        await runner.end()
    await finish_if_live(world, task.id)


async def finish_if_live(world: World, task: str) -> None:
    run = (await world.threads.get(task)).runs.live
    if run is not None and run.process is not None:
        child = Runner(world, task, run)
        await child.say("The answer is 42.")
        await child.end()
    await world.runs.reconcile(task)


@pytest.mark.parametrize("step", range(1, 22))
async def test_a_server_that_dies_at_any_write_leaves_one_task_told_once(world: World, step: int) -> None:
    world.log.die_at = step
    try:
        await delegated_and_ended(world)
    except HoldfastError:
        assert world.log.dead
    await world.restart()
    thread, task = "t-parent", task_id("t-parent", "k-1")
    with_parent = bool([row for row in (await world.threads.list(_all())).rows if row.id == thread])
    if not with_parent:
        return  # it died before anything was asked of it
    await world.runs.reconcile(thread, force=True)
    # Its caller got no answer, and asks again.
    if (await world.threads.get(thread)).runs.latest is None:
        await world.runs.launch(Prompt("large", id="e-1"), Options("scripted", None, SPEC), thread=thread)
    made = await world.runs.delegations.delegate(thread, NewTask(prompt="find", key="k-1", wake=True))
    assert made.id == task
    await world.runs.launches.wait(task)
    world.clock.advance(60_000)
    await world.runs.sweep()
    await finish_if_live(world, task)
    world.clock.advance(60_000)
    await world.runs.sweep()
    entries = await world.entries(thread)
    assert len(of_type(entries, "signal.thread.child_started")) == 1
    assert len(of_type(entries, "signal.thread.child_finished")) == 1
    assert len([each for each in of_type(entries, "chat") if each.get("child") == task]) == 1
    of_task = await world.entries(task)
    assert len(of_type(of_task, "signal.run.started")) == 1
    assert len(of_type(of_task, "signal.run.finished")) == 1
    assert len(of_type(of_task, "signal.thread.reported")) == 1
    assert not (await world.threads.get(task)).runs.is_unsettled


def _all() -> Any:
    from holdfast.threads.rows import RowFilter

    return RowFilter(archived=None)
