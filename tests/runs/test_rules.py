"""What is done about a run, by what is known of it: every row of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.api.box.box import LimitHit, Liveness
from holdfast.api.run.info import CancelKind, RunStatus, Stage
from holdfast.runs.reconcile.rules import (
    End,
    Known,
    LaunchWaiting,
    Nothing,
    ProbeBox,
    ProbeResult,
    RunnerState,
    Thresholds,
    decide,
)
from holdfast.threads.access.seals import Origin
from holdfast.threads.run_events import Run, ThreadRuns, Waiting

LIMITS = Thresholds()
RUN = Run("r-1", 2, "pi", "m/x", "local", 0, Origin.HERE, box="b-1", process="p-1", stage=Stage.EVENT)
LIVE = ProbeResult(Liveness.LIVE, RunnerState.RUNNING)
ENDED = ProbeResult(Liveness.LIVE, RunnerState.ENDED, 137)
STOPPED = ProbeResult(Liveness.LIVE, RunnerState.STOPPED)
GONE = ProbeResult(Liveness.GONE, RunnerState.ENDED)
UNKNOWN = ProbeResult(Liveness.UNKNOWN, RunnerState.UNKNOWN)


def after(silence: int, look: ProbeResult | None = None, run: Run = RUN, **known: object) -> object:
    told = Known(silence, 0, look=look)
    return decide(ThreadRuns(latest=run), replace(told, **known), LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize("look", [LIVE, UNKNOWN])
def test_a_network_blip_kills_no_run(look: ProbeResult) -> None:
    for silence in (0, LIMITS.look, LIMITS.soft, LIMITS.hard - 1):
        assert after(silence, look) == Nothing()


@pytest.mark.parametrize("look", [LIVE, UNKNOWN])
def test_only_silence_past_the_hard_threshold_orphans(look: ProbeResult) -> None:
    end = after(LIMITS.hard, look)
    assert isinstance(end, End)
    assert (end.status, end.code) == (RunStatus.ORPHANED, "silent")


def test_a_missed_beat_is_a_reason_to_look_and_no_more() -> None:
    assert after(LIMITS.look - 1) == Nothing()
    assert after(LIMITS.look) == ProbeBox()


DISK = LimitHit("disk", "it holds 9 MB")
MEMORY = LimitHit("memory", "it ran out")
_BY = "what ran in box b-1 was ended by its"
DEAD = [
    (
        GONE,
        "box_gone",
        "box b-1 is gone",
        "holdfast resume THREAD continues from the entries of the thread, in a new box",
    ),
    (STOPPED, "box_stopped", "box b-1 was stopped or killed", "holdfast resume THREAD starts its box again"),
    (ENDED, "runner_lost", "its runner exited without reporting an end (exit code 137)", "holdfast resume THREAD"),
    (
        replace(ENDED, exit_code=None),
        "runner_lost",
        "its runner exited without reporting an end",
        "holdfast resume THREAD",
    ),
    (replace(ENDED, limits=(DISK,)), "disk_limit", f"{_BY} disk limit: it holds 9", "resume THREAD --disk SIZE"),
    (replace(STOPPED, limits=(DISK,)), "disk_limit", f"{_BY} disk limit: it holds 9", "resume THREAD --disk SIZE"),
    (replace(ENDED, limits=(MEMORY,)), "memory_limit", f"{_BY} memory limit: it ran", "resume THREAD --memory SIZE"),
    # A tool that was killed for memory before the runner failed for another reason.
    (replace(ENDED, exit_code=70, limits=(MEMORY,)), "runner_lost", "its runner exited", "holdfast resume THREAD"),
]


@pytest.mark.parametrize(("look", "code", "message", "hint"), DEAD)
def test_who_is_known_to_be_dead_is_not_waited_for(look: ProbeResult, code: str, message: str, hint: str) -> None:
    end = after(LIMITS.look, look)
    assert isinstance(end, End)
    assert (end.status, end.code, end.exit_code) == (RunStatus.ORPHANED, code, look.exit_code)
    assert end.message.startswith(message)
    assert hint in (end.hint or "")
    assert look.is_over


@pytest.mark.parametrize(("look", "code", "message", "hint"), DEAD)
def test_a_run_that_was_to_be_cancelled_and_died_is_cancelled(
    look: ProbeResult, code: str, message: str, hint: str
) -> None:
    end = after(LIMITS.look, look, replace(RUN, cancel=CancelKind.CANCEL))
    assert isinstance(end, End)
    assert (end.status, end.code, end.hint) == (RunStatus.CANCELLED, code, None)
    assert message in end.message


def test_a_cancel_that_nobody_heeds_is_carried_out() -> None:
    run = replace(RUN, cancel=CancelKind.CANCEL)
    assert after(1000, run=run, last_sign_at=900, cancelled_at=900) == Nothing()
    late = LIMITS.soft + 1
    assert after(late, run=run, last_sign_at=late, cancelled_at=0) == ProbeBox()
    end = after(late, LIVE, run, last_sign_at=late, cancelled_at=0)
    assert isinstance(end, End)
    assert end.status is RunStatus.CANCELLED


@pytest.mark.parametrize("stage", [Stage.CLAIM, Stage.BOX, Stage.PROVISION])
def test_a_launch_that_nobody_is_at_is_given_up(stage: Stage) -> None:
    run = replace(RUN, stage=stage)
    assert after(LIMITS.soft - 1, run=run) == Nothing()
    assert after(LIMITS.hard, run=run, launching=True) == Nothing()
    end = after(LIMITS.soft, run=run)
    assert isinstance(end, End)
    assert (end.status, end.code) == (RunStatus.ORPHANED, "launch_lost")
    cancelled = after(0, run=replace(run, cancel=CancelKind.CANCEL))
    assert isinstance(cancelled, End)
    assert cancelled.status is RunStatus.CANCELLED


WOKEN = replace(RUN, prompts=("child-result-r-7", "child-result-r-8"))
MIXED = replace(RUN, prompts=("child-result-r-7", "e-1"))


@pytest.mark.parametrize(
    ("run", "again"),
    [
        (WOKEN, True),
        (replace(WOKEN, repeats=True), False),
        (MIXED, False),
        (replace(RUN, prompts=("e-1",)), False),
        (replace(RUN, prompts=()), False),
    ],
)
def test_a_lost_run_is_repeated_once_if_only_results_of_tasks_called_for_it(run: Run, again: bool) -> None:
    for stage in (Stage.CLAIM, Stage.BOX, Stage.PROVISION):
        end = after(LIMITS.launch, run=replace(run, stage=stage))
        assert isinstance(end, End)
        assert (end.again, end.hint is None, "it is launched again" in end.message) == (again, again, again)
    for look in (GONE, STOPPED, ENDED):
        end = after(LIMITS.look, look, replace(run, stage=Stage.RUNNER))
        assert isinstance(end, End)
        assert (end.status, end.again, end.hint is None) == (RunStatus.ORPHANED, again, again)
        for stage in (Stage.AGENT, Stage.EVENT):  # its agent may have done something
            end = after(LIMITS.look, look, replace(run, stage=stage))
            assert isinstance(end, End)
            assert not end.again
    cancelled = after(LIMITS.look, GONE, replace(run, stage=Stage.RUNNER, cancel=CancelKind.CANCEL))
    assert isinstance(cancelled, End)
    assert not cancelled.again


def test_a_runner_that_never_came_to_life_is_given_up() -> None:
    run = replace(RUN, stage=Stage.RUNNER)
    assert after(LIMITS.start - 1, LIVE, run) == Nothing()
    end = after(LIMITS.start, LIVE, run)
    assert isinstance(end, End)
    assert end.code == "runner_silent"


@pytest.mark.parametrize(
    ("status", "cancel", "due"),
    [
        (RunStatus.COMPLETED, None, True),
        (RunStatus.FAILED, None, True),
        (RunStatus.ORPHANED, None, True),
        (RunStatus.CANCELLED, CancelKind.INTERRUPT, True),
        (RunStatus.CANCELLED, CancelKind.CANCEL, False),
    ],
)
def test_prompts_that_wait_are_launched_when_the_run_has_ended(
    status: RunStatus, cancel: CancelKind | None, due: bool
) -> None:
    runs = ThreadRuns(latest=replace(RUN, status=status, cancel=cancel), waiting=(Waiting("e-1"),))
    assert decide(runs, Known(0, 0), LIMITS) == (LaunchWaiting() if due else Nothing())
    assert decide(replace(runs, waiting=()), Known(0, 0), LIMITS) == Nothing()
    assert decide(ThreadRuns(waiting=(Waiting("e-1"),)), Known(0, 0), LIMITS) == Nothing()


def test_a_run_that_its_runner_does_not_end_in_time_is_ended() -> None:
    run = replace(RUN, options={"timeout": 60})
    assert after(0, LIVE, run) == Nothing()
    assert after(0, run=run, overdue=True) == ProbeBox()
    end = after(0, LIVE, run, overdue=True)
    assert isinstance(end, End)
    assert (end.status, end.code, end.message) == (
        RunStatus.FAILED,
        "timed_out",
        "the run took longer than its timeout of 60 s",
    )
    dead = after(0, ENDED, run, overdue=True)
    assert isinstance(dead, End)
    assert dead.code == "runner_lost"
