"""What checkpoints, forks and rewinds do to the row of a thread, and whose entries are believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.api.run.info import RunStatus
from holdfast.api.thread.entries import Entry
from holdfast.threads.access.seals import Seals
from holdfast.threads.checkpoints import Base, Files, ForkOf, Undo
from holdfast.threads.lineage import checkpoint_id, checkpoint_skipped, checkpointed, forked, rewound
from holdfast.threads.rows import ThreadRow, fold
from holdfast.threads.run_events import Run, end_id, finished, start_id, started

SEALS = Seals(b"of these tests")
FILES = Files("s-1", "local")


class Thread:
    """A thread, and the row of its entries."""

    def __init__(self, id: str = "t-1") -> None:
        self.row = ThreadRow(id, 1)
        self.position = 0

    def take(self, payload: dict[str, Any], id: str = "e", *, sealed_for: str | None = None, ts: int = 1) -> ThreadRow:
        entry = Entry(id, ts, payload)
        if sealed_for is not None:
            entry = SEALS.seal(sealed_for, entry)
        self.row = fold(self.row, [entry.to_json()], SEALS, self.position)
        self.position += 10
        return self.row

    def turn(self, run: str, *, agent: str = "pi", sealed_for: str | None = None) -> Run:
        """A whole run."""
        by = sealed_for or self.row.id
        start = started(
            run=run,
            epoch=self.row.runs.epoch + 1,
            agent=agent,
            model="m",
            provider="local",
            prompts=(),
            resumes=None,
            options={},
        )
        self.take(start, start_id(run), sealed_for=by)
        self.take({"type": f"{agent}.session", "session": f"session of {run}"})
        end = finished(run=run, epoch=self.row.runs.epoch, status=RunStatus.COMPLETED, ms=1, by="runner")
        self.take(end, end_id(run), sealed_for=by)
        return self.latest

    @property
    def latest(self) -> Run:
        assert self.row.runs.latest is not None
        return self.row.runs.latest


def test_turns_are_counted() -> None:
    thread = Thread()
    assert [thread.turn(f"r-{number}").turn for number in (1, 2, 3)] == [1, 2, 3]


def test_a_checkpoint_belongs_to_the_run_that_ended() -> None:
    thread = Thread()
    run = thread.turn("r-1")
    row = thread.take(checkpointed(run, 30, FILES, size=5, ms=1), checkpoint_id("r-1"), sealed_for="t-1")
    checkpoint = thread.latest.checkpoint
    assert checkpoint is not None
    assert (checkpoint.files, checkpoint.offset, checkpoint.size) == (FILES, 30, 5)
    assert row.touched["r-1"].checkpoint == checkpoint, "the run's own row has it too"


def test_a_skipped_checkpoint_tells_why() -> None:
    thread = Thread()
    run = thread.turn("r-1")
    thread.take(checkpoint_skipped(run, 30, "the disk is full"), checkpoint_id("r-1"), sealed_for="t-1")
    checkpoint = thread.latest.checkpoint
    assert checkpoint is not None
    assert (checkpoint.files, checkpoint.why) == (None, "the disk is full")


@pytest.mark.parametrize(
    ("change", "sealed_for"),
    [
        ({}, None),
        ({}, "t-2"),
        ({"run": "r-2"}, "t-1"),
        ({"snapshot": 7}, "t-1"),
        ({"snapshot": None}, "t-1"),
        ({"offset": -1}, "t-1"),
        ({"offset": "30"}, "t-1"),
        ({"size": None}, "t-1"),
    ],
)
def test_forged_and_malformed_checkpoints_are_ignored(change: dict[str, Any], sealed_for: str | None) -> None:
    thread = Thread()
    run = thread.turn("r-1")
    payload = {**checkpointed(run, 30, FILES, size=5, ms=1), **change}
    thread.take(payload, checkpoint_id("r-1"), sealed_for=sealed_for)
    assert thread.latest.checkpoint is None


def test_a_run_in_progress_has_no_checkpoint() -> None:
    thread = Thread()
    run = thread.turn("r-1")
    thread.take(
        started(run="r-2", epoch=2, agent="pi", model="", provider="", prompts=(), resumes=None, options={}),
        start_id("r-2"),
        sealed_for="t-1",
    )
    live = thread.latest
    thread.take(checkpointed(run, 30, FILES, size=5, ms=1), checkpoint_id("r-1"), sealed_for="t-1")
    thread.take(checkpointed(live, 30, FILES, size=5, ms=1), checkpoint_id("r-2"), sealed_for="t-1")
    assert thread.latest == live


def test_a_fork_knows_its_source_and_is_nobodys_child() -> None:
    thread = Thread("t-2")
    thread.take({"type": "signal.thread.created", "title": "task", "parent": "t-0", "labels": {}})
    thread.turn("r-1", sealed_for="t-1")
    row = thread.take(forked(ForkOf("t-1", 1, 30), FILES), "forked-t-2", sealed_for="t-2")
    assert row.lineage.fork_of == ForkOf("t-1", 1, 30)
    assert row.lineage.base == Base("forked-t-2", FILES, "r-1")
    assert (row.parent, row.title) == (None, "task")


@pytest.mark.parametrize("sealed_for", [None, "t-1"])
def test_a_forged_fork_is_ignored(sealed_for: str | None) -> None:
    thread = Thread("t-2")
    row = thread.take(forked(ForkOf("t-1", 1, 30), FILES), "forked-t-2", sealed_for=sealed_for)
    assert row.lineage.fork_of is None
    assert row.lineage.base is None


def rewind_to(thread: Thread, then: ThreadRow, offset: int, until: int, undo: Undo | None = None) -> dict[str, Any]:
    return rewound(turn=1, offset=offset, until=until, files=FILES, runs=then.runs, undo=undo, undoes=False)


def test_a_rewind_brings_back_the_state_of_its_turn() -> None:
    thread = Thread()
    thread.turn("r-1")
    then = thread.row
    thread.turn("r-2", agent="codex")
    thread.take({"type": "chat", "text": "later", "queued": True}, "c", sealed_for="t-1")
    assert thread.row.runs.waiting
    undo = Undo(2, 60, Files("s-9", "local"))
    row = thread.take(rewind_to(thread, then, 30, 60, undo), "rewound-w-1", sealed_for="t-1")
    assert thread.latest.run == "r-1"
    assert row.runs.waiting == ()
    assert list(row.runs.sessions) == ["pi"]
    assert not row.runs.sessions["pi"].whole, "its own files may tell of what was rewound"
    assert row.runs.dropped == ((30, 60),)
    assert (row.lineage.base, row.lineage.undo) == (Base("rewound-w-1", FILES, "r-1"), undo)
    assert row.runs.epoch == 2, "epochs never go back"
    assert thread.turn("r-3").turn == 3, "nor do the numbers of turns"


def test_a_rewind_of_a_rewind_keeps_what_the_first_one_dropped() -> None:
    thread = Thread()
    thread.turn("r-1")
    first = thread.row
    thread.turn("r-2")
    thread.take(rewind_to(thread, first, 30, 60), "rewound-w-1", sealed_for="t-1")
    thread.turn("r-3")
    third = thread.row
    thread.turn("r-4")
    row = thread.take(rewind_to(thread, third, 100, 130), "rewound-w-2", sealed_for="t-1")
    assert row.runs.dropped == ((30, 60), (100, 130))
    row = thread.take(rewind_to(thread, first, 30, 140), "rewound-w-3", sealed_for="t-1")
    assert row.runs.dropped == ((30, 140),)


@pytest.mark.parametrize("change", [{"runs": {}}, {"until": None}, {"offset": "x"}, {"snapshot": None}, {"undo": {}}])
def test_a_malformed_rewind_is_ignored(change: dict[str, Any]) -> None:
    thread = Thread()
    thread.turn("r-1")
    then = thread.row
    thread.turn("r-2")
    before = thread.row
    payload = {**rewind_to(thread, then, 30, 60), **change}
    row = thread.take(payload, "rewound-w-1", sealed_for="t-1")
    assert (row.runs, row.lineage) == (before.runs, before.lineage)


def test_a_forged_rewind_is_ignored() -> None:
    thread = Thread()
    thread.turn("r-1")
    then = thread.row
    thread.turn("r-2")
    row = thread.take(rewind_to(thread, then, 30, 60), "rewound-w-1")
    assert row.runs.dropped == ()
    assert thread.latest.run == "r-2"


def test_a_fork_has_the_conversation_of_its_rewound_source_but_not_its_files() -> None:
    source = Thread("t-1")
    source.turn("r-1")
    then = source.row
    fork = Thread("t-2")
    for run in ("r-1", "r-2"):
        fork.turn(run, sealed_for="t-1")
    row = fork.take(rewind_to(source, then, 30, 60), "rewound-w-1", sealed_for="t-1")
    assert row.runs.dropped == ((30, 60),)
    assert fork.latest.run == "r-1"
    assert not fork.latest.is_ours
    assert row.lineage.base is None


def test_the_state_in_a_rewind_survives_json() -> None:
    thread = Thread()
    run = thread.turn("r-1")
    thread.take(checkpointed(run, 30, FILES, size=5, ms=1), checkpoint_id("r-1"), sealed_for="t-1")
    then = thread.row
    thread.turn("r-2")
    payload = rewind_to(thread, then, 30, 60)
    thread.take(payload, "rewound-w-1", sealed_for="t-1")
    assert thread.latest == replace(then.runs.latest or thread.latest)
