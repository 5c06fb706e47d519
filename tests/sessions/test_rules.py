"""What is decided about a session, its queue and what people are shown of it: tables, without effects."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.box.records import BoxState
from holdfast.api.run.info import CancelKind, RunStatus, Stage
from holdfast.api.session.sessions import AgentState, JointState, PromptMode, SandboxState, SessionState
from holdfast.sessions.queue import COLLECT_MS, LONGEST_COLLECT_MS, Later, Next, in_order, next_prompts
from holdfast.sessions.rules import (
    Boot,
    CheckRun,
    EndRun,
    Hibernate,
    Interrupt,
    Known,
    Launch,
    Move,
    Nothing,
    Prepare,
    Release,
    ReportSlow,
    Wait,
    decide,
    watch,
)
from holdfast.sessions.views import agent_state, joint_state, sandbox_state
from holdfast.threads.access.seals import Origin
from holdfast.threads.run_events import Run, ThreadRuns, Waiting
from holdfast.threads.session_events import QueuedPrompt, Session

NOW = 1_000_000
S = SessionState


def prompt(id: str = "p", mode: str = "followup", priority: int = 0, at: int = NOW, **more: Any) -> QueuedPrompt:
    return QueuedPrompt(id, PromptMode(mode), priority, at, **more)


def a_run(**more: Any) -> Run:
    return Run("r-1", 1, "pi", "m", "local", NOW - 1000, origin=Origin.HERE, **more)


def of(state: SessionState, *queue: QueuedPrompt, **more: Any) -> ThreadRuns:
    latest, waiting = more.pop("latest", None), more.pop("waiting", ())
    session = Session(state, 3, NOW, "pi", "m", queue=queue, **more)
    return ThreadRuns(1, 1, latest, waiting, session=session)


# --- the queue ---


@pytest.mark.parametrize(
    ("queued", "expected"),
    [
        ([], None),
        ([prompt("a")], Next(("a",))),
        ([prompt("a"), prompt("b")], Next(("a",))),
        ([prompt("a"), prompt("b", priority=1)], Next(("b",))),
        ([prompt("a", priority=-1), prompt("b")], Next(("b",))),
        ([prompt("a", priority=9), prompt("b", "steer")], Next(("b",))),
        # The order is that of the entries, whatever their times are.
        ([prompt("a", at=NOW + 9), prompt("b", at=NOW - 9)], Next(("a",))),
        ([prompt("a", "collect")], Later(COLLECT_MS)),
        ([prompt("a", "collect", at=NOW - COLLECT_MS + 1)], Later(1)),
        ([prompt("a", "collect", at=NOW - COLLECT_MS)], Next(("a",))),
        # Another one makes all of them wait again, but not for ever.
        ([prompt("a", "collect", at=NOW - 2000), prompt("b", "collect", at=NOW - 1000)], Later(COLLECT_MS - 1000)),
        ([prompt("a", "collect", at=NOW - LONGEST_COLLECT_MS), prompt("b", "collect")], Next(("a", "b"))),
        ([prompt("a", "collect", at=0), prompt("b", "collect", at=1), prompt("c")], Next(("a", "b"))),
        # What was asked for otherwise comes alone, in its order.
        ([prompt("a", "collect", at=0), prompt("c"), prompt("b", "collect", at=1)], Next(("a",))),
        ([prompt("c"), prompt("a", "collect")], Next(("c",))),
        # Each channel has its own conversation, so its own runs.
        (
            [
                prompt("a", "collect", at=0),
                prompt("b", "collect", at=1, channel="slack:C1"),
                prompt("c", "collect", at=2),
            ],
            Next(("a", "c")),
        ),
        # The clock was set back by an hour: it does not wait for an hour.
        ([prompt("a", "collect", at=NOW + 3_600_000)], Next(("a",))),
    ],
)
def test_which_prompts_come_next(queued: list[QueuedPrompt], expected: object) -> None:
    assert next_prompts(queued, NOW) == expected


def test_all_prompts_are_in_order() -> None:
    queued = [prompt("a"), prompt("b", priority=5), prompt("c", "steer"), prompt("d"), prompt("e", "steer", 1)]
    assert [each.id for each in in_order(queued)] == ["e", "c", "b", "a", "d"]


# --- what to do ---


@pytest.mark.parametrize(
    ("runs", "known", "expected"),
    [
        (ThreadRuns(), Known(NOW), Nothing()),
        (of(S.INITIALIZING), Known(NOW), Prepare()),
        (of(S.INITIALIZING), Known(NOW, working=True), Nothing()),
        (of(S.RESTORING), Known(NOW), Prepare()),
        (of(S.HIBERNATING), Known(NOW), Hibernate()),
        (of(S.HIBERNATED), Known(NOW, box=BoxState.HIBERNATED), Nothing()),
        (of(S.HIBERNATED), Known(NOW, box=BoxState.RUNNING), Move(S.RESTORING, "its box was woken")),
        (of(S.HIBERNATED, prompt()), Known(NOW), Move(S.RESTORING, "a prompt waits")),
        (of(S.HIBERNATED, prompt()), Known(NOW, room=False), Nothing()),
        (of(S.HIBERNATED, waiting=(Waiting("e"),)), Known(NOW), Move(S.RESTORING, "a prompt waits")),
        (of(S.HIBERNATED, waiting=(Waiting("e", quiet=True),)), Known(NOW), Nothing()),
        (of(S.TERMINATED), Known(NOW), Release()),
        (of(S.TERMINATED, released=True), Known(NOW), Nothing()),
        (of(S.ERROR), Known(NOW), Nothing()),
        (of(S.ERROR, latest=a_run()), Known(NOW), EndRun()),
        (of(S.ERROR, latest=a_run(cancel=CancelKind.CANCEL)), Known(NOW), Nothing()),
        (of(S.RUNNING), Known(NOW, box=BoxState.RUNNING), Nothing()),
        (of(S.RUNNING), Known(NOW, booted=False), Boot()),
        (of(S.RUNNING, prompt("a")), Known(NOW, booted=False), Boot()),
        (of(S.RUNNING, latest=a_run()), Known(NOW, booted=False), Boot()),
        (of(S.RUNNING), Known(NOW, booted=False, working=True), Nothing()),
        (of(S.HIBERNATED), Known(NOW, booted=False), Nothing()),
        # By work, never by a clock against work.
        (of(S.RUNNING), Known(NOW, box=BoxState.HIBERNATED), Move(S.HIBERNATING, "its box fell asleep")),
        (of(S.RUNNING), Known(NOW, box=BoxState.STOPPED), Move(S.HIBERNATING, "its box fell asleep")),
        (of(S.RUNNING), Known(NOW, box=BoxState.PAUSED), Nothing()),
        (of(S.RUNNING), Known(NOW, box=None), Nothing()),
        (of(S.RUNNING, latest=a_run()), Known(NOW, box=BoxState.STOPPED), Nothing()),
        (of(S.RUNNING, prompt("a")), Known(NOW, box=BoxState.HIBERNATED), Launch(("a",))),
        (of(S.RUNNING, prompt("a")), Known(NOW, launching=True), Nothing()),
        (of(S.RUNNING, prompt("a", "collect")), Known(NOW), Wait(COLLECT_MS)),
        (of(S.RUNNING, waiting=(Waiting("e"),)), Known(NOW), Launch(())),
        (of(S.RUNNING, prompt("a", run="r-1"), latest=a_run()), Known(NOW), Nothing()),
        (of(S.RUNNING, prompt("a"), latest=a_run()), Known(NOW), Nothing()),
        (of(S.RUNNING, prompt("a", "steer"), latest=a_run()), Known(NOW), Interrupt()),
        (of(S.RUNNING, prompt("a", "steer"), latest=a_run()), Known(NOW, launching=True), Interrupt()),
        # It interrupts the conversation of its own channel.
        (of(S.RUNNING, prompt("a", "steer", channel="slack:C1"), latest=a_run()), Known(NOW), Nothing()),
        (of(S.RUNNING, prompt("a", "steer", run="r-1"), latest=a_run()), Known(NOW), Nothing()),
        (of(S.RUNNING, prompt("a", "steer"), latest=a_run(cancel=CancelKind.INTERRUPT)), Known(NOW), Nothing()),
        (of(S.RUNNING, prompt("a", "steer"), latest=a_run(status=RunStatus.COMPLETED)), Known(NOW), Launch(("a",))),
    ],
)
def test_what_is_done_about_a_session(runs: ThreadRuns, known: Known, expected: object) -> None:
    assert decide(runs, known) == expected


@pytest.mark.parametrize(
    ("runs", "known", "expected"),
    [
        (of(S.RUNNING), Known(NOW), Nothing()),
        (of(S.HIBERNATED, prompt(at=0)), Known(NOW), Nothing()),
        (of(S.RUNNING, prompt(run="r-1"), latest=a_run()), Known(NOW, silent_ms=299_999), Nothing()),
        (of(S.RUNNING, prompt(run="r-1"), latest=a_run()), Known(NOW, silent_ms=300_000), CheckRun()),
        (of(S.RUNNING, prompt(run="r-1"), latest=a_run()), Known(NOW, silent_ms=300_000, working=True), Nothing()),
        (of(S.RUNNING, prompt(at=NOW - 60_000)), Known(NOW), Nothing()),
        (of(S.RUNNING, prompt(at=NOW - 60_001)), Known(NOW), CheckRun()),
        (of(S.RUNNING, prompt(at=NOW - 60_001)), Known(NOW, launching=True), Nothing()),
        (of(S.RUNNING, latest=a_run()), Known(NOW + 118_000), Nothing()),
        (of(S.RUNNING, latest=a_run()), Known(NOW + 120_000), ReportSlow()),
        (of(S.RUNNING, latest=a_run(stage=Stage.EVENT)), Known(NOW + 120_000), Nothing()),
        # A clock that was set back is no reason to do anything.
        (of(S.RUNNING, prompt(at=NOW + 3_600_000)), Known(NOW), Nothing()),
    ],
)
def test_what_the_watchdogs_do(runs: ThreadRuns, known: Known, expected: object) -> None:
    assert watch(runs, known) == expected


# --- what people are shown ---


@pytest.mark.parametrize(
    ("runs", "sandbox", "agent", "joint"),
    [
        (of(S.INITIALIZING), "starting", "starting", "starting"),
        (of(S.INITIALIZING, prompt()), "starting", "starting", "starting"),
        (of(S.RUNNING), "running", "standby", "standby"),
        (of(S.RUNNING, ended_count=1), "running", "idle", "running_idle"),
        (of(S.RUNNING, prompt()), "running", "queued", "queued"),
        (of(S.RUNNING, prompt(run="r-1")), "running", "busy", "running_busy"),
        (of(S.RUNNING, latest=a_run()), "running", "busy", "running_busy"),
        (of(S.HIBERNATING), "hibernating", "sleeping", "sleeping"),
        (of(S.HIBERNATED), "hibernated", "sleeping", "sleeping"),
        (of(S.HIBERNATED, prompt()), "hibernated", "queued", "queued"),
        (of(S.RESTORING), "restoring", "starting", "waking"),
        (of(S.RESTORING, prompt()), "restoring", "starting", "waking"),
        (of(S.TERMINATED), "stopped", "stopped", "stopped"),
        (of(S.ERROR), "error", "error", "error"),
    ],
)
def test_what_people_are_shown(runs: ThreadRuns, sandbox: str, agent: str, joint: str) -> None:
    session = runs.session
    assert session is not None
    busy = runs.live is not None
    assert sandbox_state(session) is SandboxState(sandbox)
    assert agent_state(session, busy=busy) is AgentState(agent)
    assert joint_state(session, busy=busy) is JointState(joint)
