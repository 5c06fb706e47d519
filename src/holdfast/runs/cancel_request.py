"""Asks a run to end: writes the request on its thread, and passes it on to its launch or its runner."""

from __future__ import annotations

from holdfast.api.run.info import CancelKind, Stage
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.launch.launches import Launches
from holdfast.runs.reconcile.probe import TERMINATE, RunnerProbe
from holdfast.runs.run_log import RunLog
from holdfast.threads.run_events import Run, cancel_requested


class CancelRequests:
    def __init__(self, log: RunLog, probe: RunnerProbe, launches: Launches, tasks: BackgroundTasks) -> None:
        self._log = log
        self._probe = probe
        self._launches = launches
        self._tasks = tasks

    async def send(self, thread: str, run: Run, kind: CancelKind, by: str | None) -> bool:
        """Ask a live run to end. Returns False if there is nothing that could, so that the reconciler has to end it."""
        if run.cancel is None or (kind is CancelKind.CANCEL and run.cancel is not kind):
            entry = self._log.entry(cancel_requested(run.run, kind, by), id=f"{kind}-{run.run}")
            await self._log.append(thread, entry)
        if await self._launches.cancel(thread, run.run):
            return True
        run = (await self._log.runs(thread)).live or run
        if run.live and run.reached(Stage.RUNNER):
            self._tasks.start(self._probe.signal(run, TERMINATE))
        return not run.live or run.reached(Stage.RUNNER)
