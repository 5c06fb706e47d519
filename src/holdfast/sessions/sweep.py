"""Drives sessions when something happens on their threads, and every few seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from holdfast.api.errors import NotFound, Refused
from holdfast.api.errors.boxes import BoxError
from holdfast.api.session.sessions import SessionState
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.reconcile.sweep import DueThreads
from holdfast.sessions.driver import SessionDriver
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import RowFilter
from holdfast.threads.run_events import FINISHED
from holdfast.threads.session_events import SESSION_PREFIX
from holdfast.threads.store import Change, StreamStore

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 5.0
_MOST_ASLEEP: Final = 1_000
"""Sessions that sleep and are looked at in a sweep, the most recently active ones."""
_MARKS: Final = (SESSION_PREFIX.encode(), FINISHED.encode(), b'"prompt"', b'"queued"')
"""What the entries contain that may give a session something to do. What only looks like it costs a look."""


class SessionSweep:
    """Keeps sweeping from `start` to `stop`."""

    def __init__(
        self,
        store: StreamStore,
        projection: Projection,
        driver: SessionDriver,
        due: DueThreads,
        tasks: BackgroundTasks,
        *,
        seconds: float,
    ) -> None:
        self._store = store
        self._projection = projection
        self._driver = driver
        self._due = due
        self._tasks = tasks
        self._seconds = seconds
        self._stop_observing: Callable[[], None] | None = None

    async def start(self) -> None:
        """Take up the sessions that earlier servers left, and start the sweep."""
        self._stop_observing = self._store.observe(self._on_change)
        self._due.add(*await self._due_ids())
        self._tasks.start(self._keep_sweeping(), name="session sweep")

    def stop(self) -> None:
        """Stop watching the store. The owner of the tasks ends the sweep's task."""
        if self._stop_observing is not None:
            self._stop_observing()

    async def sweep(self) -> None:
        """Drive all sessions that are due, now."""
        for id in await self._due_ids():
            await self.drive(id)

    async def _due_ids(self) -> list[str]:
        """Returns the sessions to look at: those that are due, and those that sleep although their box was woken."""
        due = await self._projection.due_sessions()
        asleep = RowFilter(session=(SessionState.HIBERNATED,), archived=None, limit=_MOST_ASLEEP)
        return [*due, *await self._driver.woken(row.id for row in await self._projection.rows(asleep))]

    async def drive(self, id: str) -> None:
        """Drive a session. Errors are logged, and the next sweep tries again."""
        try:
            await self._driver.drive(id)
        except NotFound:  # it is another thread, or was deleted
            return
        except (Refused, BoxError) as error:
            log.warning("session %s cannot go on now: %s", id, error)
        except Exception:
            log.exception("session %s cannot go on now", id)

    def _on_change(self, change: Change) -> None:
        if not change.path.startswith(THREADS):
            return
        thread = change.path[len(THREADS) :]
        if change.deleted:
            self._driver.forget(thread)
        elif change.data is None or any(mark in change.data for mark in _MARKS):
            self._due.add(thread)

    async def _keep_sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        swept = loop.time()
        while True:
            due = await self._due.take(swept + self._seconds)
            try:
                if loop.time() >= swept + self._seconds:
                    swept = loop.time()
                    due |= set(await self._due_ids())
                for id in due:
                    self._tasks.start(self.drive(id))
                    await asyncio.sleep(0)
            except Exception as error:  # for example, the store is full or locked
                log.warning("cannot look after sessions, the next sweep tries again: %s", error)
