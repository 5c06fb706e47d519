"""Sessions as their threads tell them: which changes count, and how each prompt comes to its one end."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from holdfast.api.run.info import RunStatus
from holdfast.api.session.sessions import MOST_PROMPTS, PromptMode, PromptStatus, SessionState
from holdfast.api.thread.entries import Entry
from holdfast.threads.access.seals import Origin, Seals
from holdfast.threads.rows import ThreadRow, fold
from holdfast.threads.run_events import ThreadRuns, end_id, finished, fold_run, start_id, started
from holdfast.threads.session_events import (
    MOST_ATTEMPTS,
    MOST_ENDED,
    TRANSITIONS,
    Session,
    changed,
    created,
    fold_session,
    prompted,
    released,
    workspace_deleted,
)

S = SessionState
FACTS = {
    S.INITIALIZING: {S.RUNNING, S.ERROR},
    S.RUNNING: {S.HIBERNATING, S.TERMINATED, S.ERROR},
    S.HIBERNATING: {S.HIBERNATED, S.TERMINATED, S.ERROR},
    S.HIBERNATED: {S.RESTORING, S.TERMINATED},
    S.RESTORING: {S.RUNNING, S.ERROR},
    S.ERROR: {S.TERMINATED},
    S.TERMINATED: set(),
}
"""The table as it was asked for, written down a second time."""


class Told:
    """A thread that is folded entry by entry."""

    def __init__(self) -> None:
        self.runs = ThreadRuns()
        self.count = 0
        self.say(created(agent="pi", model="m", options={"workspace": "d", "spec": {}}, parent=None, by=None))

    def say(self, payload: dict[str, Any], id: str = "", origin: Origin = Origin.HERE) -> None:
        self.count += 1
        entry = {"id": id or f"e-{self.count}", "ts": 1000 + self.count, "payload": payload}
        self.runs = fold_run(self.runs, entry, origin, self.count)

    def move(self, to: SessionState, version: int | None = None, **more: Any) -> None:
        now = self.session
        self.say(changed(to, now.version + 1 if version is None else version, before=now.state, **more))

    def to(self, state: SessionState) -> Told:
        ways = {
            S.INITIALIZING: (),
            S.RUNNING: (S.RUNNING,),
            S.HIBERNATING: (S.RUNNING, S.HIBERNATING),
            S.HIBERNATED: (S.RUNNING, S.HIBERNATING, S.HIBERNATED),
            S.RESTORING: (S.RUNNING, S.HIBERNATING, S.HIBERNATED, S.RESTORING),
            S.ERROR: (S.ERROR,),
            S.TERMINATED: (S.RUNNING, S.TERMINATED),
        }
        for each in ways[state]:
            self.move(each)
        return self

    def prompt(self, id: str, mode: str = "followup", priority: int = 0, **more: Any) -> None:
        self.say(prompted("do it", PromptMode(mode), priority), id, **more)

    def start(self, run: str, *prompts: str, origin: Origin = Origin.HERE) -> None:
        claim = started(
            run=run, epoch=self.runs.epoch + 1, agent="pi", model="m", provider="local", prompts=prompts, resumes=None,
            options={},
        )  # fmt: skip
        self.say(claim, start_id(run), origin)

    def finish(self, run: str, status: RunStatus = RunStatus.COMPLETED, code: str | None = None) -> None:
        error = None if code is None else {"code": code, "message": "…"}
        self.say(finished(run=run, epoch=self.runs.epoch, status=status, ms=1, by="runner", error=error), end_id(run))

    @property
    def session(self) -> Session:
        assert self.runs.session is not None
        return self.runs.session

    def ended(self) -> dict[str, str]:
        return {each.id: each.status.value for each in self.session.ended}

    def waiting(self) -> list[str]:
        return [each.id for each in self.session.queued]


def test_the_table_of_states_is_the_one_that_was_asked_for() -> None:
    assert {state: set(after) for state, after in TRANSITIONS.items()} == FACTS


@pytest.mark.parametrize(("state", "to"), list(product(SessionState, SessionState)))
def test_a_change_counts_only_if_the_table_allows_it(state: SessionState, to: SessionState) -> None:
    told = Told().to(state)
    assert told.session.state is state
    told.move(to)
    assert told.session.state is (to if to in FACTS[state] else state)


def test_a_change_counts_once_and_only_with_the_next_number() -> None:
    told = Told().to(S.RUNNING)
    for version in (1, 2, 4, -1, 2**60):
        told.move(S.HIBERNATING, version)
        assert told.session.state is S.RUNNING
    told.move(S.HIBERNATING, 3)
    assert (told.session.state, told.session.version) == (S.HIBERNATING, 3)


@pytest.mark.parametrize("origin", [Origin.UNPROVEN, Origin.FORK])
def test_only_what_the_server_wrote_for_this_thread_counts(origin: Origin) -> None:
    told = Told().to(S.RUNNING)
    before = told.session
    told.say(changed(S.TERMINATED, 3, before=S.RUNNING), origin=origin)
    told.prompt("p", origin=origin)
    told.say(released(children=0, tasks=0, box=None), origin=origin)
    assert told.session == before
    other = ThreadRuns()
    made = {"id": "e", "ts": 1, "payload": created(agent="pi", model="m", options={}, parent=None, by=None)}
    assert fold_run(other, made, origin).session is None


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "signal.session.created"},
        {"type": "signal.session.created", "version": 1, "agent": "pi", "model": 3, "options": {}},
        {"type": "signal.session.created", "version": 1, "agent": "pi", "model": "m", "options": {"a": "x" * 70_000}},
        {"type": "signal.session.created", "version": 2, "agent": "pi", "model": "m", "options": {}},
        {"type": "signal.session.running", "version": 1},
        {"type": "signal.session."},
        {"type": "signal.session.nonsense", "version": 1},
    ],
)
def test_what_is_malformed_makes_no_session(payload: dict[str, Any]) -> None:
    assert fold_session(None, {"id": "e", "ts": 1, "payload": payload}, 0) is None


@pytest.mark.parametrize(
    "about",
    [{}, [], "x", {"mode": "steer"}, {"mode": "loud", "priority": 0}, {"mode": ["steer"], "priority": 0}, {"mode": 1}],
)
def test_a_malformed_prompt_is_not_queued(about: Any) -> None:
    told = Told().to(S.RUNNING)
    told.say({"type": "chat", "role": "user", "text": "x", "prompt": about})
    told.say({"type": "chat", "role": "user", "prompt": {"mode": "steer", "priority": 0}})
    assert told.session.queue == ()


def test_a_prompt_ends_with_its_run() -> None:
    told = Told().to(S.RUNNING)
    for id in ("a", "b", "c", "d"):
        told.prompt(id)
    for id, status in (
        ("a", RunStatus.COMPLETED), ("b", RunStatus.FAILED), ("c", RunStatus.CANCELLED), ("d", RunStatus.COMPLETED),
    ):  # fmt: skip
        told.start(f"r-{id}", id)
        assert [each.id for each in told.session.processing] == [id]
        told.finish(f"r-{id}", status)
        told.finish(f"r-{id}", RunStatus.COMPLETED)
    assert told.ended() == {"a": "completed", "b": "failed", "c": "cancelled", "d": "completed"}
    assert told.session.ended_count == 4
    assert told.session.queue == ()


@pytest.mark.parametrize(
    ("status", "code"),
    [(RunStatus.ORPHANED, "runner_lost"), (RunStatus.ORPHANED, "launch_lost"), (RunStatus.FAILED, "server_stopped")],
)
def test_a_prompt_whose_run_was_lost_waits_again_in_its_place_but_not_for_ever(status: RunStatus, code: str) -> None:
    told = Told().to(S.RUNNING)
    told.prompt("a")
    told.prompt("b")
    for attempt in range(1, MOST_ATTEMPTS + 1):
        assert told.waiting() == ["a", "b"]
        told.start(f"r-{attempt}", "a")
        assert told.waiting() == ["b"]
        told.finish(f"r-{attempt}", status, code)
    assert told.waiting() == ["b"]
    assert told.ended() == {"a": "failed"}


def test_a_run_that_the_server_did_not_claim_takes_no_prompt() -> None:
    told = Told().to(S.RUNNING)
    told.prompt("a")
    told.start("r-forged", "a", origin=Origin.UNPROVEN)
    assert told.waiting() == ["a"]


def test_prompts_end_with_their_session_and_later_ones_at_once() -> None:
    told = Told().to(S.RUNNING)
    told.prompt("a")
    told.prompt("b")
    told.start("r-1", "a")
    told.move(S.TERMINATED)
    assert told.ended() == {"b": "cancelled"}
    told.prompt("late")
    # Its run is lost with the session: it does not wait again.
    told.finish("r-1", RunStatus.ORPHANED)
    assert told.ended() == {"b": "cancelled", "late": "cancelled", "a": "failed"}
    assert told.session.queue == ()


def test_prompts_of_a_session_that_fails_have_failed() -> None:
    told = Told()
    told.prompt("a")
    told.move(S.ERROR, error={"code": "create_failed", "message": "no room"})
    assert told.ended() == {"a": "failed"}
    assert told.session.error == {"code": "create_failed", "message": "no room"}


def test_a_queue_has_a_bound_and_forgets_its_oldest_ends() -> None:
    told = Told().to(S.RUNNING)
    for number in range(MOST_PROMPTS + 1):
        told.prompt(f"p-{number}")
    assert len(told.session.queue) == MOST_PROMPTS
    assert told.ended() == {f"p-{MOST_PROMPTS}": "failed"}
    told.move(S.TERMINATED)
    assert told.session.queue == ()
    assert len(told.session.ended) == MOST_ENDED
    assert told.session.ended_count == MOST_PROMPTS + 1


def test_a_prompt_counts_once() -> None:
    told = Told().to(S.RUNNING)
    told.prompt("a")
    told.prompt("a")
    assert told.waiting() == ["a"]


def test_a_terminated_session_is_released_and_loses_its_files() -> None:
    told = Told().to(S.RUNNING)
    told.say(released(children=0, tasks=0, box=None))
    told.say(workspace_deleted(1))
    assert (told.session.released, told.session.workspace) == (False, True)
    told.move(S.TERMINATED)
    assert told.session.is_due
    told.say(released(children=0, tasks=0, box=None))
    told.say(workspace_deleted(1))
    assert (told.session.released, told.session.workspace, told.session.is_due) == (True, False, False)


def test_the_files_that_a_session_starts_with_are_those_of_its_thread() -> None:
    assert Told().runs.workspace == "d"


def test_a_session_comes_back_from_its_row_as_it_was() -> None:
    told = Told().to(S.RUNNING)
    told.prompt("a", "steer", 3)
    told.prompt("b", "collect")
    told.start("r-1", "a")
    told.finish("r-1")
    told.start("r-2", "b")
    again = ThreadRuns.from_json(told.runs.to_json())
    assert again.session == told.session
    assert again.session is not None
    assert again.session.ended[0].status is PromptStatus.COMPLETED


def test_the_seal_makes_the_difference_in_a_row() -> None:
    seals = Seals(b"of this test")
    made = Entry("e-1", 1, created(agent="pi", model="m", options={}, parent=None, by=None))
    empty = ThreadRow("t-1", 1)
    assert fold(empty, [made.to_json()], seals).runs.session is None
    assert fold(empty, [seals.seal("t-1", made).to_json()], seals).runs.session is not None
    assert fold(empty, [seals.seal("t-2", made).to_json()], seals).runs.session is None
