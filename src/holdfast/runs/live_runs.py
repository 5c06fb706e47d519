"""Live runs: which runner is in charge of which thread, and the requests of runners and agents in boxes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from holdfast.api.errors import Refused
from holdfast.api.errors.runs import RunNotFound, RunOver
from holdfast.api.model.budgets import Budget
from holdfast.egress.models.meter import Terms
from holdfast.runs.launch.plan import budget_in, fallbacks_in
from holdfast.runs.reconcile.probe import RunnerProbe
from holdfast.runs.reconcile.rules import limit_error
from holdfast.runs.run_log import RunLog
from holdfast.threads.projection import Projection
from holdfast.threads.rows import ThreadRow
from holdfast.threads.run_events import Run, heartbeat, model_trouble

_REMEMBERED: Final = 1_000
_MAX_MESSAGE: Final = 500
_MAX_DEPTH: Final = 64
"""Levels of a tree of threads. Parents of parents may be named in a circle."""

log = logging.getLogger(__name__)


class LiveRuns:
    """Remembers which runners are known to be in charge. Anything else is read from the thread."""

    def __init__(self, log: RunLog, projection: Projection, probe: RunnerProbe) -> None:
        self._log = log
        self._projection = projection
        self._probe = probe
        self._known: dict[str, tuple[str, int]] = {}
        """Thread and epoch, by run."""
        self._terms: OrderedDict[str, Terms] = OrderedDict()
        """By run. They do not change."""
        self.report_model_error = ModelErrors(log).report

    def remember(self, thread: str, run: str, epoch: int) -> None:
        self._known[run] = (thread, epoch)

    def forget(self, run: str) -> None:
        self._known.pop(run, None)

    def forget_thread(self, thread: str) -> None:
        """Called when the thread's run may have ended. The thread says whether it did."""
        for run in [run for run, known in self._known.items() if known[0] == thread]:
            del self._known[run]

    async def beat(self, run: str, epoch: int) -> str | None:
        """Record that the runner is alive. Returns how it is to end, if it is to end. Raises `RunOver`."""
        thread, live = await self._in_charge(run, epoch)
        await self._log.append(thread, self._log.entry(heartbeat(run)))
        self.remember(thread, run, epoch)
        return None if live.cancel is None else live.cancel.value

    async def limit(self, run: str, epoch: int) -> dict[str, str] | None:
        """Returns the error of a run whose agent was killed, if its box ran into a limit. Raises `RunOver`."""
        thread, live = await self._in_charge(run, epoch)
        hits = () if live.box is None else await self._probe.limits(live.box)
        return next((limit_error(hit, thread) for hit in hits), None)

    async def lives(self, thread: str, run: str, epoch: int) -> bool:
        """Returns whether this is the thread's run now, in that epoch."""
        if self._known.get(run) == (thread, epoch):
            return True
        return _is_in_charge((await self._log.runs(thread)).live, run, epoch)

    async def current(self, thread: str, box: str) -> tuple[str, int] | None:
        """Returns the run of a thread that is alive in a box, and its epoch."""
        live = (await self._log.runs(thread)).live
        return (live.run, live.epoch) if live is not None and live.is_ours and live.box == box else None

    async def model_terms(self, thread: str, run: str) -> Terms:
        """Returns the budget and the fallbacks of a run, and the trees that it is in."""
        terms = self._terms.get(run)
        if terms is None:
            row = await self._log.row(thread)
            latest = row.runs.latest
            if latest is None or not latest.is_ours or latest.run != run:
                return Terms(thread, run, (thread,), budget=Budget(cost=0, tokens=0))  # it has just ended
            trees = await self._trees(thread, row.parent)
            above = await self._runs_above(row)
            terms = Terms(thread, run, trees, fallbacks_in(latest.options), budget_in(latest.options), above)
            self._terms[run] = terms
            while len(self._terms) > _REMEMBERED:
                self._terms.popitem(last=False)
        return terms

    async def _runs_above(self, row: ThreadRow) -> tuple[tuple[str, Budget | None], ...]:
        """Returns the runs that have delegated a task or created a session, and their budgets, the nearest first."""
        found: dict[str, Budget | None] = {}
        asker = _asker(row)
        while asker is not None and asker[1] not in found:
            thread, run = asker
            asked = await self._projection.run(run)
            if asked is None or asked.thread != thread or len(found) >= _MAX_DEPTH:
                break
            found[run] = budget_in(asked.run.options)
            parent = await self._projection.row(thread)
            asker = None if parent is None else _asker(parent)
        return tuple(found.items())

    async def _trees(self, thread: str, parent: str | None) -> tuple[str, ...]:
        """Returns the thread and those above it. A parent that was deleted is not looked behind."""
        found = [thread]
        while parent is not None and parent not in found and len(found) < _MAX_DEPTH:
            above = await self._projection.row(parent)
            if above is None:
                break
            found.append(above.id)
            parent = above.parent
        return tuple(found)

    async def _in_charge(self, run: str, epoch: int) -> tuple[str, Run]:
        """Returns the thread of a run, and the run, if it is the thread's run now, in that epoch."""
        known = self._known.get(run)
        if known is None:
            row = await self._projection.run(run)
            if row is None:
                raise RunNotFound(f"there is no run {run}")
            thread = row.thread
        else:
            thread = known[0]
        live = (await self._log.runs(thread)).live
        if live is None or not _is_in_charge(live, run, epoch):
            raise RunOver(f"run {run} has ended, or another runner has taken it over")
        return thread, live


def _is_in_charge(live: Run | None, run: str, epoch: int) -> bool:
    return live is not None and live.is_ours and live.run == run and live.epoch == epoch


class ModelErrors:
    """Reports errors of models on the thread, because many agents say only that they retry.

    Remembers the last error of each run: a retry usually meets the same one.
    """

    def __init__(self, run_log: RunLog) -> None:
        self._log = run_log
        self._reported: OrderedDict[str, str] = OrderedDict()

    async def report(self, thread: str, run: str, message: str) -> None:
        """Write the error on the thread, unless it is the same as the last one."""
        if self._reported.get(run) == message:
            return
        self._reported[run] = message
        while len(self._reported) > _REMEMBERED:
            self._reported.popitem(last=False)
        try:
            await self._log.append(thread, self._log.entry(model_trouble(run=run, message=message[:_MAX_MESSAGE])))
        except Refused as error:  # the agent still gets its answer
            log.warning("cannot write an error of a model on thread %s: %s", thread, error)


def _asker(row: ThreadRow) -> tuple[str, str] | None:
    """Returns the thread and the run that have delegated this thread's task, or created this session."""
    delegation, session = row.runs.delegation, row.runs.session
    if delegation is not None:
        return None if delegation.run is None else (delegation.parent, delegation.run)
    if session is None or session.parent is None or session.parent_run is None:
        return None
    return session.parent, session.parent_run
