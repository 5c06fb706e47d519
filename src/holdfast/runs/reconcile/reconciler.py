"""The reconciler: brings the run of a thread into agreement with its box.

`rules` decides, and the reconciler acts: it asks the box, posts an end, or launches waiting prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol
from weakref import WeakValueDictionary

from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.launch.launches import Launches
from holdfast.runs.launch.plan import timeout_in
from holdfast.runs.reconcile.probe import KILL, RunnerProbe
from holdfast.runs.reconcile.rules import (
    CancelTask,
    End,
    Known,
    LaunchWaiting,
    Nothing,
    ProbeBox,
    ProbeResult,
    ReportTask,
    Thresholds,
    decide,
    is_due,
    is_open_task,
)
from holdfast.runs.reconcile.run_end import RunEnds
from holdfast.runs.run_log import RunLog
from holdfast.threads.rows import ThreadRow
from holdfast.threads.run_events import Run, ThreadRuns

_STEPS: Final = 8


@dataclass(slots=True)
class _Signs:
    """The signs of life of a run that this server has seen."""

    run: str
    count: int
    seen_at: int
    cancelled_at: int | None = None


class Tasks(Protocol):
    """What the reconciler asks about a thread that is the task of another one."""

    async def announce(self, thread: str, row: ThreadRow) -> None:
        """Tell the parent that the task is about to start."""
        ...

    async def is_parent_cancelled(self, runs: ThreadRuns) -> bool: ...

    async def cancel(self, thread: str, run: Run) -> None:
        """Cancel the run of a task."""
        ...

    async def report(self, thread: str, row: ThreadRow) -> bool:
        """Tell the parent the end of the task. Returns False if it has to wait for tasks of its own."""
        ...


class Reconciler:
    """Reconciles each thread in one task at a time. Keeps the boxes of live runs in use until `close`."""

    def __init__(
        self,
        log: RunLog,
        boxes: Boxes,
        probe: RunnerProbe,
        launches: Launches,
        ends: RunEnds,
        tasks: BackgroundTasks,
        *,
        ticks: Callable[[], int],
        thresholds: Thresholds,
        delegated: Tasks,
    ) -> None:
        """`ticks` returns the milliseconds of a monotonic clock."""
        self._log = log
        self._boxes = boxes
        self._probe = probe
        self._launches = launches
        self._ends = ends
        self._tasks = tasks
        self._ticks = ticks
        self._thresholds = thresholds
        self._delegated = delegated
        self._signs: dict[str, _Signs] = {}
        """By thread."""
        self._in_use: dict[str, tuple[str, AbstractContextManager[None]]] = {}
        """Boxes with a live run, by thread. They are not idle."""
        self._admitted: set[str] = set()
        """Those of them that reach this server, or are about to."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By thread."""

    def close(self) -> None:
        for _, use in self._in_use.values():
            use.__exit__(None, None, None)
        self._in_use.clear()

    async def reconcile(self, thread: str, *, force: bool = False) -> ThreadRow:
        """Reconcile the run of a thread, and return the thread's row. `force` asks the box at once."""
        row = await self._log.row(thread)
        if row.runs.live is None and not is_due(row.runs):
            self.forget(thread)
            if not is_open_task(row.runs):
                return row
        async with self._locks.setdefault(thread, asyncio.Lock()):
            return await self._reconcile(thread, force)

    def is_busy(self, thread: str) -> bool:
        """Returns whether the thread is being reconciled now."""
        lock = self._locks.get(thread)
        return lock is not None and lock.locked()

    def silence(self, thread: str, run: str) -> int | None:
        """Returns the milliseconds since the last sign of life of a run, or None."""
        signs = self._signs.get(thread)
        return None if signs is None or signs.run != run else self._ticks() - signs.seen_at

    def forget(self, thread: str) -> None:
        """Called when the thread has no live run any more."""
        self._signs.pop(thread, None)
        if self._in_use:
            self._use_box(thread, None)

    async def _reconcile(self, thread: str, force: bool) -> ThreadRow:
        thresholds = replace(self._thresholds, look=0) if force else self._thresholds
        look: ProbeResult | None = None
        for _ in range(_STEPS):
            # Before the thread is read: a launch that ends in between may not be in the row yet.
            launching = self._launches.is_launching(thread)
            row = await self._log.row(thread)
            runs = row.runs
            self._use_box(thread, runs.live)
            known = self._known(thread, runs, look, launching or self._launches.is_launching(thread))
            if runs.live is not None and is_open_task(runs):
                known = replace(known, parent_cancelled=await self._delegated.is_parent_cancelled(runs))
            match decide(runs, known, thresholds):
                case Nothing():
                    return row
                case ProbeBox():
                    assert runs.live is not None
                    look = await self._probe.look(runs.live)
                case End() as end:
                    assert runs.live is not None
                    posted = await self._ends.post(thread, runs.live.run, end, by="reconciler")
                    if posted and (look is None or not look.is_over):
                        await self._probe.signal(runs.live, KILL)  # its processes may still be in the box
                case CancelTask():
                    assert runs.live is not None
                    await self._delegated.cancel(thread, runs.live)
                case ReportTask():
                    if not await self._delegated.report(thread, row):
                        return row
                case LaunchWaiting():
                    if runs.latest is None:
                        await self._delegated.announce(thread, row)
                    if not await self._launches.launch_waiting(thread, runs):
                        return row
        return await self._log.row(thread)

    def _known(self, thread: str, runs: ThreadRuns, look: ProbeResult | None, launching: bool) -> Known:
        now = self._ticks()
        run = runs.live
        if run is None:
            self._signs.pop(thread, None)
            return Known(now, now)
        signs = self._signs.get(thread)
        if signs is None or signs.run != run.run:
            signs = self._signs[thread] = _Signs(run.run, run.signs, now)
        elif signs.count != run.signs:
            signs.count, signs.seen_at = run.signs, now
        if run.cancel is not None and signs.cancelled_at is None:
            signs.cancelled_at = now
        timeout = timeout_in(run.options)
        overdue = timeout is not None and self._log.clock() - run.started_at - timeout * 1000 >= self._thresholds.soft
        return Known(now, signs.seen_at, signs.cancelled_at, launching, look, overdue)

    def _use_box(self, thread: str, run: Run | None) -> None:
        """Keep the box of a live run from being idle, however long its agent thinks."""
        in_use = self._in_use.get(thread)
        wanted = None if run is None or not run.is_ours else run.box
        if in_use is not None and in_use[0] != wanted:
            del self._in_use[thread]
            self._admitted.discard(in_use[0])
            in_use[1].__exit__(None, None, None)
            in_use = None
        if in_use is None and wanted is not None:
            use = self._boxes.using(wanted)
            use.__enter__()
            self._in_use[thread] = (wanted, use)
        if wanted is not None and wanted not in self._admitted:
            self._admitted.add(wanted)
            self._tasks.start(self._admit(wanted))

    async def _admit(self, box: str) -> None:
        """Let a box reach this server. If its provider is out of reach now, the next reconciliation tries again."""
        if not await self._probe.open_guest_api(box):
            self._admitted.discard(box)
