"""The sweep: reconciles threads when a run ends, when a prompt is queued, and every few seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

from holdfast.api.errors import NotFound, Refused
from holdfast.api.errors.boxes import BoxError
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.live_runs import LiveRuns
from holdfast.runs.reconcile.reconciler import Reconciler
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.framing import parse_json, split_messages
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.run_events import FINISHED
from holdfast.threads.store import Change, StreamStore
from holdfast.time_limit import time_limit_at

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 5.0
_MARKS: Final = (FINISHED.encode(), b'"queued"')


class RunChange(Enum):
    """What an entry means for the run of its thread."""

    ENDED = "ended"
    QUEUED = "queued"


class DueThreads:
    """Threads to reconcile soon."""

    def __init__(self) -> None:
        self._threads: set[str] = set()
        self._added = asyncio.Event()

    def add(self, *threads: str) -> None:
        self._threads.update(threads)
        self._added.set()

    async def take(self, until: float) -> set[str]:
        """Returns the threads as soon as there are any, or none at this time of the event loop's clock."""
        with suppress(TimeoutError):
            async with time_limit_at(until):
                await self._added.wait()
        taken, self._threads = self._threads, set()
        self._added.clear()
        return taken


class RunSweep:
    """Keeps sweeping from `start` to `stop`."""

    def __init__(
        self,
        store: StreamStore,
        projection: Projection,
        reconciler: Reconciler,
        live: LiveRuns,
        due: DueThreads,
        tasks: BackgroundTasks,
        *,
        seconds: float,
        on_end: Callable[[str], None] = lambda thread: None,
        on_delete: Callable[[str], None] = lambda thread: None,
    ) -> None:
        """`on_end` is called with a thread when a run may have ended there, and `on_delete` when it was deleted."""
        self._on_end = on_end
        self._on_delete = on_delete
        self._store = store
        self._projection = projection
        self._reconciler = reconciler
        self._live = live
        self._due = due
        self._tasks = tasks
        self._seconds = seconds
        self._stop_observing: Callable[[], None] | None = None

    async def start(self) -> None:
        """Reconcile the runs that earlier servers left, and start the sweep."""
        self._stop_observing = self._store.observe(self._on_change)
        self._due.add(*await self._projection.unsettled())
        self._tasks.start(self._keep_sweeping(), name="run sweep")

    def stop(self) -> None:
        """Stop watching the store. The owner of the tasks ends the sweep's task."""
        if self._stop_observing is not None:
            self._stop_observing()

    async def sweep(self) -> None:
        """Reconcile all threads with a live run or waiting prompts now."""
        for thread in await self._projection.unsettled():
            await self.reconcile(thread)

    async def reconcile(self, thread: str) -> None:
        """Reconcile a thread. Errors are logged, and the next sweep tries again."""
        try:
            await self._reconciler.reconcile(thread)
        except NotFound:
            self._reconciler.forget(thread)
        except (Refused, BoxError) as error:
            log.warning("cannot reconcile the run of thread %s: %s", thread, error)
        except Exception:
            log.exception("cannot reconcile the run of thread %s", thread)

    def _on_change(self, change: Change) -> None:
        if not change.path.startswith(THREADS):
            return
        thread = change.path[len(THREADS) :]
        if change.deleted:
            self._reconciler.forget(thread)
            self._live.forget_thread(thread)
            self._on_delete(thread)
            return
        # The data of another server's append is not here, so the thread has to be read.
        changes = {RunChange.ENDED} if change.data is None else run_changes(change.data)
        if RunChange.ENDED in changes:
            self._live.forget_thread(thread)
            self._on_end(thread)
        if changes:
            self._due.add(thread)

    async def _keep_sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        swept = loop.time()
        while True:
            due = await self._due.take(swept + self._seconds)
            try:
                for thread in due:
                    self._tasks.start(self.reconcile(thread))
                if loop.time() >= swept + self._seconds:
                    swept = loop.time()
                    for thread in set(await self._projection.unsettled()) - due:
                        if not self._reconciler.is_busy(thread):  # do not queue behind a slow box
                            self._tasks.start(self.reconcile(thread))
                            await asyncio.sleep(0)
            except Exception as error:  # for example, the store is full or locked
                log.warning("cannot reconcile runs, the next sweep tries again: %s", error)


def run_changes(data: bytes) -> set[RunChange]:
    """Returns what the entries of an append mean for runs. Called for every append, so it must be fast."""
    found: set[RunChange] = set()
    if not _has_mark(data):
        return found
    for message in split_messages(data):
        # Only an entry that contains a mark is parsed, and only the parsed entry decides.
        payload = parse_json(message).get("payload", {}) if _has_mark(message) else {}
        if payload.get("type") == FINISHED:
            found.add(RunChange.ENDED)
        elif payload.get("type") == "chat" and payload.get("queued") is True:
            found.add(RunChange.QUEUED)
    return found


def _has_mark(data: bytes) -> bool:
    return any(mark in data for mark in _MARKS)
