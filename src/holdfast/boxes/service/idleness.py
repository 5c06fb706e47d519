"""When a box has nothing to do. Decisions only: the sweep takes the samples, writes down when there was work last, and
carries out what follows.

Work is what somebody waits for: processes that use the processor, ports that are listened on, connections, in or out.
A process that merely sleeps is no work, and neither is looking at a box.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.boxes.box import Metrics
from holdfast.boxes.lifecycle import BoxState
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.spec import Lifetime, OnIdle

IDLE_SECONDS: Final = 900
"""For boxes that name no idle time."""
LEAST_SHARE: Final = 0.01
"""Of one core: a process that uses less is asleep, and looks up now and then."""
LEAST_SECONDS: Final = 0.03
"""Of processor time: the kernel counts in hundredths, and one or two of them say nothing."""
LEAST_BETWEEN: Final = 200
"""Milliseconds between two samples that can be compared."""
SAMPLES_PER_TIME: Final = 4
"""How often a box is looked at in its idle time."""
SHORTEST_PAUSE: Final = 0.25


class Doing(StrEnum):
    WORK = "work"
    NOTHING = "nothing"
    UNKNOWN = "unknown"
    """Nobody can say yet, or now: nothing is concluded of it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a box did at one moment."""

    at: int
    """UTC milliseconds."""
    metrics: Metrics | None
    """None where nobody could tell."""
    held: bool = False
    """Somebody in this process holds a stream, a channel or a port of it open."""


def doing(before: Sample | None, now: Sample) -> Doing:
    """Whether there is work in a box that runs."""
    metrics = now.metrics
    if now.held:
        return Doing.WORK
    if metrics is None:
        return Doing.UNKNOWN
    if metrics.connections or metrics.listening or metrics.outgoing:
        return Doing.WORK
    if not metrics.processes:
        return Doing.NOTHING
    used = _used(metrics)
    if used is None:
        return Doing.WORK  # something runs, and nobody can say that it sleeps
    if before is None or before.metrics is None or (used_before := _used(before.metrics)) is None:
        return Doing.UNKNOWN
    if used < used_before:
        return Doing.UNKNOWN  # it was started anew in between: this is the first sample of another life
    if now.at - before.at < LEAST_BETWEEN:
        return Doing.UNKNOWN
    share = LEAST_SHARE * (now.at - before.at) / 1000
    return Doing.WORK if used - used_before >= max(share, LEAST_SECONDS) else Doing.NOTHING


def _used(metrics: Metrics) -> float | None:
    return metrics.cpu_seconds if metrics.work_seconds is None else metrics.work_seconds


def comparable(before: Sample | None, now: Sample) -> bool:
    """Whether a sample may take the place of the one before. Samples in haste would never add up to anything."""
    return before is None or now.at - before.at >= LEAST_BETWEEN


def last_work(row: BoxRow, now: Sample, what: Doing) -> int:
    """When there was work last: never earlier than the row says."""
    if what is Doing.WORK:
        return max(row.last_active_at, now.at)
    if what is Doing.NOTHING and now.metrics is not None and not now.metrics.processes:
        # The box itself knows when its last process ended.
        return max(row.last_active_at, min(now.at, now.at - int(now.metrics.idle_seconds * 1000)))
    return row.last_active_at


def idle_time(row: BoxRow) -> int:
    """Seconds that a box may do nothing."""
    return IDLE_SECONDS if row.spec.idle_seconds is None else row.spec.idle_seconds


def is_due(row: BoxRow, last_work: int, now: int) -> bool:
    """Whether a box has done nothing for its idle time."""
    return now - max(row.last_active_at, last_work) >= idle_time(row) * 1000


_FOLLOWS: Final = {
    BoxState.RUNNING: frozenset({OnIdle.PAUSE, OnIdle.HIBERNATE, OnIdle.DELETE}),
    BoxState.PAUSED: frozenset({OnIdle.HIBERNATE, OnIdle.DELETE}),
    BoxState.STOPPED: frozenset({OnIdle.DELETE}),
    BoxState.HIBERNATED: frozenset({OnIdle.DELETE}),
}


def follows(row: BoxRow) -> OnIdle:
    """What happens to a box that has been idle for its time, as it is now."""
    if row.lifetime is Lifetime.ONE_SHOT:
        return OnIdle.DELETE
    wanted = row.spec.when_idle
    return wanted if wanted in _FOLLOWS.get(row.state, frozenset()) else OnIdle.KEEP


def is_watched(row: BoxRow) -> bool:
    """Whether anything ever happens to it for being idle."""
    return follows(row) is not OnIdle.KEEP


def pause(rows: Iterable[BoxRow], longest: float) -> float:
    """Seconds until boxes should be looked at again, so that the shortest idle time among them is kept."""
    shortest = min((idle_time(row) / SAMPLES_PER_TIME for row in rows if is_watched(row)), default=longest)
    return min(longest, max(SHORTEST_PAUSE, shortest))
