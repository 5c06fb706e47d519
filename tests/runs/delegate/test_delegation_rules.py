"""The decisions of delegation, by table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.api.errors import InvalidRequest
from holdfast.api.run.info import CancelKind, RunStatus
from holdfast.api.run.tasks import BoxMode, DelegationLimits
from holdfast.runs.delegate.rules import MAX_RESULT, report_text, status_of, task_id, title_of, why_not
from holdfast.runs.reconcile.rules import (
    CancelTask,
    Known,
    LaunchWaiting,
    Nothing,
    ReportTask,
    Thresholds,
    decide,
)
from holdfast.threads.access.seals import Origin
from holdfast.threads.delegation import Delegation, delegated, fold_delegation, reported
from holdfast.threads.run_events import Run, ThreadRuns, Waiting

TASK = Delegation("t-p", "t-root", 2, "pi", "m", BoxMode.OWN, run="r-p")
RUN = Run("r-1", 1, "pi", "m", "local", 0, Origin.HERE)
ENDED = replace(RUN, status=RunStatus.COMPLETED, ended_at=5)
LIMITS = DelegationLimits(depth=3, breadth=2, boxes=3, threads=5)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", DelegationLimits()),
        ("depth=3 breadth=2 boxes=3 threads=5", LIMITS),
        (" boxes=4  depth=0 ", DelegationLimits(depth=0, boxes=4)),
    ],
)
def test_limits_are_read_from_the_settings_of_the_server(text: str, limits: DelegationLimits) -> None:
    assert DelegationLimits.parse(text) == limits


@pytest.mark.parametrize(
    "text", ["depth", "depth=", "depth=-1", "depth=x", "depth=33", "tasks=5", "depth=1 depth=2", "boxes=٣"]
)
def test_limits_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid limit of delegation") as refused:
        DelegationLimits.parse(text)
    assert "depth up to 32" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("tasks", "depth", "box", "why"),
    [
        ([], 3, BoxMode.OWN, None),
        ([], 4, BoxMode.OWN, "3 levels below the root"),
        ([TASK], 1, BoxMode.OWN, None),
        ([TASK, TASK], 1, BoxMode.OWN, "2 tasks that have not ended"),
        ([TASK, replace(TASK, told="r-1")], 1, BoxMode.OWN, None),
        ([replace(TASK, parent="t-x")] * 3, 1, BoxMode.OWN, "3 tasks of this tree have a box of their own"),
        ([replace(TASK, parent="t-x")] * 3, 1, BoxMode.SAME, None),
        ([replace(TASK, parent="t-x", box=BoxMode.SAME)] * 3, 1, BoxMode.OWN, None),
        ([replace(TASK, told="r-1")] * 5, 1, BoxMode.SAME, "this tree has had 5 tasks"),
    ],
)
def test_a_tree_has_limits(tasks: list[Delegation], depth: int, box: BoxMode, why: str | None) -> None:
    found = why_not(tasks, "t-p", depth, box, LIMITS)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("runs", "action"),
    [
        (ThreadRuns(delegation=TASK, waiting=(Waiting("task-t-1"),)), LaunchWaiting()),
        (ThreadRuns(waiting=(Waiting("e-1"),)), Nothing()),
        (ThreadRuns(delegation=TASK), Nothing()),
        (ThreadRuns(delegation=TASK, latest=ENDED), ReportTask()),
        (ThreadRuns(delegation=TASK, latest=ENDED, waiting=(Waiting("e-1"),)), LaunchWaiting()),
        (ThreadRuns(delegation=TASK, latest=ENDED, waiting=(Waiting("e-1", quiet=True),)), ReportTask()),
        (ThreadRuns(delegation=replace(TASK, told="r-1"), latest=ENDED), Nothing()),
        (ThreadRuns(latest=ENDED, waiting=(Waiting("e-1", quiet=True),)), Nothing()),
        (ThreadRuns(latest=ENDED, waiting=(Waiting("e-1", quiet=True), Waiting("e-2"))), LaunchWaiting()),
    ],
)
def test_a_task_is_started_and_then_reported(runs: ThreadRuns, action: object) -> None:
    assert decide(runs, Known(0, 0), Thresholds()) == action
    assert runs.is_unsettled == (action != Nothing() or bool(runs.waiting and not runs.waiting[0].quiet) or _open(runs))


def _open(runs: ThreadRuns) -> bool:
    return runs.delegation is not None and runs.delegation.is_open


@pytest.mark.parametrize("launching", [True, False])
def test_a_task_whose_parent_was_cancelled_is_cancelled_once(launching: bool) -> None:
    known = Known(0, 0, launching=launching, parent_cancelled=True)
    assert decide(ThreadRuns(delegation=TASK, latest=RUN), known, Thresholds()) == CancelTask()
    asked = replace(RUN, cancel=CancelKind.CANCEL)
    assert decide(ThreadRuns(delegation=TASK, latest=asked), known, Thresholds()) != CancelTask()
    of_another = replace(RUN, origin=Origin.FORK)
    assert decide(ThreadRuns(delegation=TASK, latest=of_another), known, Thresholds()) != CancelTask()


def test_what_is_kept_of_a_task_is_what_was_written() -> None:
    kept = fold_delegation(None, delegated(TASK))
    assert kept == TASK
    assert Delegation.from_json(TASK.to_json()) == TASK
    assert fold_delegation(TASK, delegated(replace(TASK, parent="t-other"))) == TASK
    told = fold_delegation(TASK, reported("t-p", "r-1"))
    assert told == replace(TASK, told="r-1")
    assert fold_delegation(told, reported("t-p", "r-2")) == told
    assert fold_delegation(None, reported("t-p", "r-1")) is None


@pytest.mark.parametrize("name", ["parent", "root", "depth", "agent", "model", "box"])
@pytest.mark.parametrize("value", [None, 7.5, [], "nonsense"])
def test_a_malformed_signal_makes_no_task(name: str, value: object) -> None:
    payload = {**delegated(TASK), name: value}
    found = fold_delegation(None, payload)
    assert found is None or (isinstance(value, str) and name != "depth" and name != "box")


def test_the_report_says_how_the_task_ended() -> None:
    assert report_text("t-1", "look", ENDED, "Found it.") == (
        '[Task t-1 ("look") has completed. The last message of its agent:]\n\nFound it.'
    )
    failed = replace(ENDED, status=RunStatus.FAILED, error={"code": "x", "message": "no key"})
    assert report_text("t-1", None, failed, "") == "[Task t-1 has failed: no key. Its agent left no message.]"
    assert "was cut off" in report_text("t-1", None, replace(ENDED, status=RunStatus.ORPHANED), "so far")
    long = report_text("t-1", None, ENDED, "x" * (MAX_RESULT + 7))
    assert long.endswith("[… 7 more characters are on thread t-1 …]")


def test_a_task_runs_until_its_parent_knows_its_end() -> None:
    assert status_of(ThreadRuns(delegation=TASK)) == "starting"
    assert status_of(ThreadRuns(delegation=TASK, latest=RUN)) == "running"
    assert status_of(ThreadRuns(delegation=TASK, latest=ENDED)) == "running"
    assert status_of(ThreadRuns(delegation=replace(TASK, told="r-1"), latest=ENDED)) == "completed"


def test_the_id_of_a_task_follows_from_its_parent_and_key() -> None:
    assert task_id("t-1", "k") == task_id("t-1", "k")
    assert len({task_id("t-1", "k"), task_id("t-2", "k"), task_id("t-1", "l"), task_id("t-1k", "")}) == 4
    assert title_of("\n  a line \nmore") == "a line"
    assert len(title_of("x" * 200)) == 80
