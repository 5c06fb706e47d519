"""When a box has nothing to do, by table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.boxes.conftest import SPEC
from tests.boxes.test_decisions import S

from holdfast.api.box.box import Metrics
from holdfast.api.box.spec import BoxSpec, Lifetime, OnIdle
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.idleness import Doing, Sample, comparable, doing, follows, last_work, pause
from holdfast.testing.store_suites.box_rows import NOW
from holdfast.testing.store_suites.box_rows import box_row as row

EMPTY = Metrics(0, 0, 12.0, listening=0, outgoing=0, work_seconds=3.0)
SLEEPER = replace(EMPTY, processes=1, idle_seconds=0)


def sample(metrics: Metrics | None, seconds: float = 0, *, held: bool = False) -> Sample:
    return Sample(NOW + int(seconds * 1000), metrics, held)


def burned(seconds: float) -> Metrics:
    return replace(SLEEPER, work_seconds=3.0 + seconds)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (None, sample(EMPTY), Doing.NOTHING),
        (None, sample(None), Doing.UNKNOWN),
        (None, sample(None, held=True), Doing.WORK),
        (None, sample(EMPTY, held=True), Doing.WORK),
        (None, sample(replace(EMPTY, connections=1)), Doing.WORK),
        (None, sample(replace(SLEEPER, listening=1)), Doing.WORK),
        (None, sample(replace(EMPTY, outgoing=1)), Doing.WORK),
        # A process says nothing by itself: what it used since the last look does.
        (None, sample(SLEEPER), Doing.UNKNOWN),
        (sample(None), sample(SLEEPER, 10), Doing.UNKNOWN),
        (sample(SLEEPER), sample(SLEEPER, 10), Doing.NOTHING),
        (sample(SLEEPER), sample(burned(0.09), 10), Doing.NOTHING),
        (sample(SLEEPER), sample(burned(0.11), 10), Doing.WORK),
        (sample(SLEEPER), sample(burned(10), 10), Doing.WORK),
        # The kernel counts in hundredths: one of them in a short time is no share of anything.
        (sample(SLEEPER), sample(burned(0.01), 0.5), Doing.NOTHING),
        (sample(SLEEPER), sample(burned(0.05), 0.5), Doing.WORK),
        (sample(SLEEPER), sample(SLEEPER, 0.1), Doing.UNKNOWN),
        # Less than before: the box was started anew in between.
        (sample(burned(100)), sample(SLEEPER, 10), Doing.UNKNOWN),
        # It ended what it did since the last look.
        (sample(burned(100)), sample(EMPTY, 10), Doing.NOTHING),
        # By the whole box, where nobody counts what runs in it; and where nobody counts at all, it works.
        (
            sample(Metrics(1, 0, 0, cpu_seconds=1.0)),
            sample(Metrics(1, 0, 0, cpu_seconds=1.01), 10),
            Doing.NOTHING,
        ),
        (sample(Metrics(1, 0, 0, cpu_seconds=1.0)), sample(Metrics(1, 0, 0, cpu_seconds=3.0), 10), Doing.WORK),
        (sample(Metrics(1, 0, 0)), sample(Metrics(1, 0, 0), 10), Doing.WORK),
    ],
)
def test_what_a_box_does(before: Sample | None, now: Sample, what: Doing) -> None:
    assert doing(before, now) is what


@pytest.mark.parametrize(
    ("now", "what", "when"),
    [
        (sample(SLEEPER, 20), Doing.WORK, 20),
        (sample(SLEEPER, 20), Doing.NOTHING, 0),
        (sample(SLEEPER, 20), Doing.UNKNOWN, 0),
        (sample(None, 20), Doing.UNKNOWN, 0),
        (sample(EMPTY, 20), Doing.NOTHING, 8),  # it says itself that it has been idle for 12 s
        (sample(EMPTY, 5), Doing.NOTHING, 0),  # idle since before it was last given out
        (sample(replace(EMPTY, idle_seconds=-5), 20), Doing.NOTHING, 20),  # what a box says is not believed beyond now
    ],
)
def test_when_there_was_work_last(now: Sample, what: Doing, when: int) -> None:
    assert last_work(row(), now, what) == NOW + when * 1000


def test_samples_in_haste_do_not_push_out_the_one_that_counts() -> None:
    assert comparable(None, sample(SLEEPER))
    assert not comparable(sample(SLEEPER), sample(SLEEPER, 0.1))
    assert comparable(sample(SLEEPER), sample(SLEEPER, 0.2))


def idle(what: OnIdle | None, seconds: int | None = 60, lifetime: Lifetime = Lifetime.SHARED) -> BoxSpec:
    return replace(SPEC, on_idle=what, idle_seconds=seconds, lifetime=lifetime)


@pytest.mark.parametrize(
    ("the_row", "what"),
    [
        (row(spec=SPEC), OnIdle.KEEP),
        (row(spec=idle(None, lifetime=Lifetime.EPHEMERAL)), OnIdle.DELETE),
        (row(spec=idle(OnIdle.HIBERNATE)), OnIdle.HIBERNATE),
        (row(S.HIBERNATED, idle(OnIdle.HIBERNATE)), OnIdle.KEEP),
        (row(S.STOPPED, idle(OnIdle.PAUSE)), OnIdle.KEEP),
        (row(S.PAUSED, idle(OnIdle.HIBERNATE)), OnIdle.HIBERNATE),
        (row(S.WAKING, idle(OnIdle.HIBERNATE)), OnIdle.KEEP),
        (row(spec=idle(OnIdle.HIBERNATE, lifetime=Lifetime.ONE_SHOT)), OnIdle.DELETE),
    ],
)
def test_what_follows_idleness(the_row: BoxRow, what: OnIdle) -> None:
    assert follows(the_row) is what


@pytest.mark.parametrize(
    ("specs", "seconds"),
    [
        ([], 30),
        ([SPEC], 30),
        ([idle(OnIdle.HIBERNATE, 900)], 30),
        ([idle(OnIdle.HIBERNATE, 900), idle(OnIdle.PAUSE, 8)], 2),
        ([idle(OnIdle.DELETE, 0)], 0.25),
    ],
)
def test_boxes_are_looked_at_as_often_as_the_shortest_idle_time_asks(specs: list[BoxSpec], seconds: float) -> None:
    assert pause([row(spec=spec) for spec in specs], 30) == seconds
