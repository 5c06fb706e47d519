"""One budget for a tree of tasks, and the limits that its server has: real boxes and pi. Only the model is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from tests.agents import InstalledAgents
from tests.runs.delegate.real import Delegating, a_delegating_server, task_in

from holdfast.api.model.budgets import Budget, BudgetScope
from holdfast.api.run.info import RunInfo
from holdfast.testing.model import FOR_EVER, Gate, Usage, bash, held, text
from holdfast.testing.model.requests import Request
from holdfast.testing.model.steps import Step, tool

EACH: Final = Usage(100, 100)
"""Of every call: less than what a request of pi holds until its answer has come, so calls at once cannot pass a limit
together."""
TOKENS: Final = 200


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[Delegating]:
    with a_delegating_server(tmp_path_factory.mktemp("tree"), installed_agents, delegation="depth=1") as world:
        yield world


def set_budget(world: Delegating, thread: str, calls: int) -> None:
    world.client.costs.set_budget(BudgetScope.TREE, thread, Budget(tokens=calls * TOKENS))


def check_over(run: RunInfo) -> None:
    """Its agent was refused, and said so."""
    assert (run.status, run.error and run.error.code) == ("failed", "over_budget")
    assert run.error is not None
    assert "this tree of threads is out of budget" in run.error.message


def calls_of(world: Delegating, *threads: str) -> list[dict[str, Any]]:
    found = [each for thread in threads for each in world.entries(thread, "signal.model.call")]
    return [each for each in found if each["status"] == 200]


def test_the_limits_of_a_tree_are_those_of_the_server(world: Delegating) -> None:
    world.model.script(
        [tool("delegate_task", {"prompt": "Do the lower thing."}), lambda request: text(request.results[-1].text)],
        when="upper thing",
    )
    thread = world.launch(
        "top thing", [tool("delegate_task", {"prompt": "Do the upper thing."}), text("Done.")], delegate=True
    )
    assert world.client.runs.wait(thread).status == "completed"
    [task] = world.client.tasks.list(thread)
    world.until_reported(task.id)
    assert world.client.tasks.list(task.id) == []
    said = world.entries(task.id, "pi.assistant")[-1]["text"]
    assert "1 levels below the root of its tree, and the limit is 1" in said


def waits_for_result(request: Request) -> Step:
    return tool("task_result", {"task": task_in(request), "wait": 45}, usage=EACH)


def test_parallel_tasks_and_their_parent_stop_exactly_at_the_budget_of_their_tree(world: Delegating) -> None:
    """Two tasks work at the same time, and their parent waits for one of them. Together they may make nine calls."""
    left, right = Gate("start"), Gate("start")
    for name, gate in (("left half", left), ("right half", right)):
        work = bash("echo work", usage=EACH)
        world.model.script([held(work, gate), replace(work, times=FOR_EVER)], when=name)
    thread = world.launch(
        "shared purse",
        [
            tool("delegate_task", {"prompt": "Do the left half."}, usage=EACH),
            tool("delegate_task", {"prompt": "Do the right half."}, usage=EACH),
            *[waits_for_result] * 6,
        ],
        delegate=True,
    )
    left.wait_reached()
    right.wait_reached()
    set_budget(world, thread, 9)  # three calls of the parent and one of each task are made or in progress
    left.release()
    right.release()
    check_over(world.client.runs.wait(thread))
    tasks = [each.id for each in world.client.tasks.list(thread)]
    assert len(tasks) == 2
    for task in tasks:
        check_over(world.client.runs.wait(task))
        world.until_reported(task)
        [told] = [each for each in world.entries(thread, "signal.thread.child_finished") if each["child"] == task]
        assert (told["status"], told["error"]["code"]) == ("failed", "over_budget")
    assert len(calls_of(world, thread, *tasks)) == 9  # not one more, whoever asked
    [record] = [each for each in world.client.costs.budgets() if each.subject == thread]
    report = world.client.costs.report(tree=thread, by="thread")
    assert (record.tokens, report.total.tokens, report.total.calls) == (9 * TOKENS, 9 * TOKENS, 9)
    assert {each.key for each in report.by} == {thread, *tasks}
    # With more budget the parent goes on, and its model reads why its tasks have failed.
    set_budget(world, thread, 10)
    world.model.script([text("Now I know.", usage=EACH)], when="shared purse")
    done = world.client.runs.wait(world.client.runs.resume(thread).run)
    assert done.status == "completed", done.error
    last = world.requests("shared purse")[-1]
    heard = [*last.user_texts, *(each.text for each in last.results)]
    for task in tasks:
        assert [each for each in heard if task in each and "out of budget" in each], heard
    world.client.costs.remove_budget(BudgetScope.TREE, thread)


def test_a_run_and_the_tasks_that_it_delegates_spend_the_budget_of_the_run_once(world: Delegating) -> None:
    """Each task has the options of its parent, with that budget for its own run: nine calls of all of them together."""
    work = bash("echo work", usage=EACH)
    for name in ("first errand", "second errand"):
        world.model.script([replace(work, times=FOR_EVER)], when=name)
    thread = world.launch(
        "thrifty house",
        [
            tool("delegate_task", {"prompt": "Do the first errand."}, usage=EACH),
            tool("delegate_task", {"prompt": "Do the second errand."}, usage=EACH),
            *[waits_for_result] * 6,
        ],
        delegate=True,
        budget=Budget(tokens=9 * TOKENS),
    )
    run = world.client.runs.wait(thread)
    assert (run.status, run.error and run.error.code) == ("failed", "over_budget")
    tasks = [each.id for each in world.client.tasks.list(thread)]
    assert len(tasks) == 2
    for task in tasks:
        ended = world.client.runs.wait(task)
        assert ended.error is not None
        assert ended.error.code == "over_budget"
        assert "the run that delegated this task is out of budget" in ended.error.message
        assert "--budget" in (ended.error.hint or "")
    assert len(calls_of(world, thread, *tasks)) == 9
