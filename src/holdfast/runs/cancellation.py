"""Cancels runs, both during their launch and while their agent works."""

from __future__ import annotations

import logging

from holdfast.api.errors.boxes import BoxError
from holdfast.api.run.info import CancelKind, RunStatus
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.cancel_request import CancelRequests
from holdfast.runs.launch.plan import key_of
from holdfast.runs.reconcile.reconciler import Reconciler
from holdfast.runs.reconcile.rules import End
from holdfast.runs.reconcile.run_end import RunEnds
from holdfast.runs.reconcile.sweep import RunSweep
from holdfast.runs.run_log import RunLog
from holdfast.threads.run_events import Run

log = logging.getLogger(__name__)


class Cancellation:
    """Writes requests to cancel on threads, and carries them out."""

    def __init__(
        self,
        log: RunLog,
        boxes: Boxes,
        requests: CancelRequests,
        ends: RunEnds,
        reconciler: Reconciler,
        sweep: RunSweep,
        tasks: BackgroundTasks,
    ) -> None:
        self._log = log
        self._boxes = boxes
        self._requests = requests
        self._ends = ends
        self._reconciler = reconciler
        self._sweep = sweep
        self._tasks = tasks

    async def request(self, thread: str, run: Run, kind: CancelKind, by: str | None) -> None:
        """Ask a live run to end. `by` is the author of the request."""
        if not await self._requests.send(thread, run, kind, by):
            await self._sweep.reconcile(thread)

    async def forget(self, thread: str) -> None:
        """End the run of a thread that is about to be deleted, and delete its box."""
        run = (await self._log.runs(thread)).live
        if run is not None:
            await self.request(thread, run, CancelKind.CANCEL, None)
            gone = End(RunStatus.CANCELLED, "thread_deleted", "its thread was deleted")
            await self._ends.post(thread, run.run, gone, by="reconciler")
        self._reconciler.forget(thread)
        row = await self._boxes.rows.of_key(self._boxes.tenant, key_of(thread))
        if row is not None:
            self._tasks.start(self._delete_box(row.id))

    async def _delete_box(self, box: str) -> None:
        try:
            await self._boxes.delete(box)
        except BoxError as error:
            log.warning("cannot delete box %s of a deleted thread: %s", box, error)
