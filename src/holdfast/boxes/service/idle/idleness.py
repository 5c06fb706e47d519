"""Decides when a box is idle, and how often boxes are sampled. The sweep takes samples and carries out the result.

Processes that use the CPU, listening ports and open connections in either direction are work. A sleeping process is
not, and neither is inspecting a box.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.api.box.box import Metrics
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import Lifetime, OnIdle
from holdfast.boxes.rows import BoxRow
from holdfast.time_limit import time_limit

IDLE_SECONDS: Final = 900
"""The default idle time."""
LEAST_SHARE: Final = 0.01
"""Share of one core. A process that uses less counts as asleep."""
LEAST_SECONDS: Final = 0.03
"""CPU time that counts as work. The kernel counts in hundredths, so one or two of them mean nothing."""
LEAST_BETWEEN: Final = 200
"""Minimum milliseconds between two samples that can be compared."""
SAMPLES_PER_TIME: Final = 4
"""Samples taken of a box during its idle time."""
SHORTEST_PAUSE: Final = 0.25


class Doing(StrEnum):
    WORK = "work"
    NOTHING = "nothing"
    UNKNOWN = "unknown"
    """It cannot be determined yet, or now. Nothing follows from it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a box did at one moment."""

    at: int
    """UTC milliseconds."""
    metrics: Metrics | None
    """None if they could not be read."""
    held: bool = False
    """A caller in this process has a stream, channel or port of the box open."""


def doing(before: Sample | None, now: Sample) -> Doing:
    """Returns whether a running box does work."""
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
        return Doing.WORK  # a process runs, and it may not be asleep
    if before is None or before.metrics is None or (used_before := _used(before.metrics)) is None:
        return Doing.UNKNOWN
    if used < used_before:
        return Doing.UNKNOWN  # the box was restarted in between, so this is its first sample
    if now.at - before.at < LEAST_BETWEEN:
        return Doing.UNKNOWN
    share = LEAST_SHARE * (now.at - before.at) / 1000
    return Doing.WORK if used - used_before >= max(share, LEAST_SECONDS) else Doing.NOTHING


def _used(metrics: Metrics) -> float | None:
    return metrics.cpu_seconds if metrics.work_seconds is None else metrics.work_seconds


def comparable(before: Sample | None, now: Sample) -> bool:
    """Returns whether a sample may replace the previous one. Samples in quick succession could never be compared."""
    return before is None or now.at - before.at >= LEAST_BETWEEN


def last_work(row: BoxRow, now: Sample, what: Doing) -> int:
    """Returns when the box last did work, never earlier than its row has it."""
    if what is Doing.WORK:
        return max(row.last_active_at, now.at)
    if what is Doing.NOTHING and now.metrics is not None and not now.metrics.processes:
        # The box reports when its last process ended.
        return max(row.last_active_at, min(now.at, now.at - int(now.metrics.idle_seconds * 1000)))
    return row.last_active_at


def idle_time(row: BoxRow) -> int:
    """Returns the idle time of a box in seconds."""
    return IDLE_SECONDS if row.spec.idle_seconds is None else row.spec.idle_seconds


def is_due(row: BoxRow, last_work: int, now: int) -> bool:
    """Returns whether a box has been idle for its idle time."""
    return now - max(row.last_active_at, last_work) >= idle_time(row) * 1000


_FOLLOWS: Final = {
    BoxState.RUNNING: frozenset({OnIdle.PAUSE, OnIdle.HIBERNATE, OnIdle.DELETE}),
    BoxState.PAUSED: frozenset({OnIdle.HIBERNATE, OnIdle.DELETE}),
    BoxState.STOPPED: frozenset({OnIdle.DELETE}),
    BoxState.HIBERNATED: frozenset({OnIdle.DELETE}),
}


def follows(row: BoxRow) -> OnIdle:
    """Returns what happens to a box, in its current state, once it has been idle for its idle time."""
    if row.lifetime is Lifetime.ONE_SHOT:
        return OnIdle.DELETE
    wanted = row.spec.when_idle
    return wanted if wanted in _FOLLOWS.get(row.state, frozenset()) else OnIdle.KEEP


def is_watched(row: BoxRow) -> bool:
    """Returns whether anything happens to this box when it is idle."""
    return follows(row) is not OnIdle.KEEP


def pause(rows: Iterable[BoxRow], longest: float) -> float:
    """Returns the seconds until the next samples, so that the shortest idle time is respected."""
    shortest = min((idle_time(row) / SAMPLES_PER_TIME for row in rows if is_watched(row)), default=longest)
    return min(longest, max(SHORTEST_PAUSE, shortest))


class WatchInterval:
    """How often boxes are sampled. A box with a short idle time shortens the interval. Each pass over all resets it."""

    def __init__(self) -> None:
        self._seconds = float("inf")
        self._shortened = asyncio.Event()

    def heed(self, row: BoxRow) -> None:
        """Shorten the interval if this box has a shorter idle time than all others."""
        if (wanted := pause([row], self._seconds)) < self._seconds:
            self._seconds = wanted
            self._shortened.set()

    def reset(self, rows: Iterable[BoxRow]) -> None:
        self._seconds = pause(rows, float("inf"))

    async def wait(self, seconds: float, watch: Callable[[], Awaitable[None]]) -> None:
        """Wait for `seconds`, and call `watch` after each interval."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            self._shortened.clear()
            wait = min(left, self._seconds)
            try:
                async with time_limit(wait):
                    await self._shortened.wait()
            except TimeoutError:
                if wait < left:
                    await watch()
