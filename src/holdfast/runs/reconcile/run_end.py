"""Posts the end of a run if its runner did not. There is exactly one end, even if several processes try at once."""

from __future__ import annotations

import logging
from typing import Final

from holdfast.api.errors.runs import RunOver
from holdfast.api.errors.threads import StaleEpoch
from holdfast.api.thread.entries import Entry
from holdfast.runs.live_runs import LiveRuns
from holdfast.runs.reconcile.dangling import Dangling
from holdfast.runs.reconcile.rules import End
from holdfast.runs.run_log import RunLog
from holdfast.threads.run_events import PRODUCER, Run, ThreadRuns, end_id, finished, start_id
from holdfast.threads.store import Producer

log = logging.getLogger(__name__)

_TRIES: Final = 10


class RunEnds:
    def __init__(self, log: RunLog, live: LiveRuns) -> None:
        self._log = log
        self._live = live

    async def post(self, thread: str, run: str, end: End, *, by: str) -> bool:
        """Post the end of a run. Returns False if it had ended already, or another process is ending it."""
        done = await _finish(self._log, thread, run, end, by)
        self._live.forget(run)
        return done


async def _finish(run_log: RunLog, thread: str, run_id: str, end: End, by: str) -> bool:
    """Claim an epoch first: the server then refuses entries of the run's previous runner."""

    def still_live(epoch: int, runs: ThreadRuns) -> list[Entry]:
        if runs.live is None or runs.live.run != run_id:
            raise RunOver(f"run {run_id} has ended")
        return []

    for _ in range(_TRIES):
        try:
            epoch = await run_log.claim(thread, still_live)
            # From here on the runner is refused, so the thread has all entries of the run.
            run = (await run_log.runs(thread)).live
            if run is None or run.run != run_id:
                return False
            await _post(run_log, thread, run, epoch, end, by)
        except RunOver:
            return False
        except StaleEpoch:
            continue  # another process is ending it, but may die before it has
        log.info("run %s on thread %s ended as %s: %s", run.run, thread, end.status, end.message)
        return True
    return False


async def _post(run_log: RunLog, thread: str, run: Run, epoch: int, end: End, by: str) -> None:
    dangling = Dangling(run.run, run.harness)
    began = False
    async for entry in run_log.entries(thread, run.since):
        began = began or entry["id"] == start_id(run.run)
        if began:
            dangling.read(entry)
    payload = finished(
        run=run.run,
        epoch=epoch,
        status=end.status,
        ms=max(0, run_log.clock() - run.started_at),
        by=by,
        error={
            "code": end.code,
            "message": end.message,
            **({} if end.hint is None else {"hint": end.hint.replace("THREAD", thread)}),
        },
        exit_code=end.exit_code,
        again=end.again,
    )
    closing = [run_log.entry(each, id=id) for id, each in dangling.close()]
    await run_log.append(
        thread, *closing, run_log.entry(payload, id=end_id(run.run)), producer=Producer(PRODUCER, epoch, 1)
    )
