"""Decides when a box is idle: who uses it, what it does, and how often it is sampled. The sweep carries out the result.

Processes that use the CPU, listening ports and open connections in either direction are work. A sleeping process is
not, and neither is inspecting a box.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.api.box.box import Metrics
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import Lifetime, OnIdle
from holdfast.api.errors.boxes import BoxConflict
from holdfast.boxes.rows import BoxRow, BoxRows
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


class Activity:
    """Tracks which boxes of a service are in use, and when each was last used.

    This process knows of use immediately. Each sweep writes it to the store, where other processes see it.
    """

    def __init__(self, rows: BoxRows, tenant: str, clock: Callable[[], int]) -> None:
        self._rows = rows
        self._tenant = tenant
        self._clock = clock
        self._working: Counter[str] = Counter()
        self._worked: set[str] = set()
        self._active: dict[str, int] = {}
        self._writing: dict[str, int] = {}
        """What is being written to the store."""
        self._one_shots: set[str] = set()

    def remember(self, row: BoxRow) -> None:
        """Track a live one-shot box, and forget a box that has ended."""
        if row.lifetime is Lifetime.ONE_SHOT and row.live:
            self._one_shots.add(row.id)
        elif row.tombstone:
            for known in (self._one_shots, self._worked):
                known.discard(row.id)
            self._active.pop(row.id, None)

    @contextmanager
    def using(self, id: str, after: Callable[[str], None] = lambda id: None) -> Iterator[None]:
        """Keep the box from being idle while a caller uses it. Calls `after` at the end."""
        self._working[id] += 1
        try:
            yield
        finally:
            self._working[id] -= 1
            if not self._working[id]:
                del self._working[id]
            after(id)
            self.note(id)

    def note(self, id: str) -> None:
        # Activity on the row of a one-shot box means that its work has ended. Inspecting and uploading are no work.
        if id not in self._one_shots or id in self._worked:
            self._active[id] = self._clock()

    def end_work(self, id: str) -> bool:
        """Record that a command, channel or port was closed. Returns whether that was the work of a one-shot box."""
        if id not in self._one_shots or id in self._working:
            return False
        self._worked.add(id)
        return True

    def is_working(self, id: str) -> bool:
        return id in self._working

    def check_unused(self, row: BoxRow) -> None:
        """Raises `BoxConflict` if the box is in use, or was used in this process since its row was written."""
        last = max(self._active.get(row.id, 0), self._writing.get(row.id, 0))
        if row.id in self._working or last > row.last_active_at:
            raise BoxConflict(f"box {row.id} is in use")

    def has_worked(self, row: BoxRow) -> bool:
        """Returns whether the work of a one-shot box has ended, in this process or another that recorded activity."""
        return row.id in self._worked or row.last_active_at > row.created_at

    async def write(self) -> None:
        """Write to the store which boxes were used since the last call."""
        for id in self._working:
            self.note(id)
        self._writing, self._active = self._active, {}
        for id, when in self._writing.items():
            await self._rows.touch(self._tenant, id, BoxState.RUNNING, when)
        self._writing = {}


class OneShots:
    """Deletes each one-shot box when its work has ended. Owns the tasks that do it until `close`."""

    def __init__(self, activity: Activity, end: Callable[[str], Awaitable[None]]) -> None:
        self._activity = activity
        self._end = end
        self._ending: set[asyncio.Future[None]] = set()

    def working(self, id: str) -> AbstractContextManager[None]:
        """A caller works in the box. A one-shot box is deleted when that ends."""
        return self._activity.using(id, self._worked)

    def _worked(self, id: str) -> None:
        if self._activity.end_work(id):
            task = asyncio.ensure_future(self._end(id))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        ending = list(self._ending)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
