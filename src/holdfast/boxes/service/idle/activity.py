"""Tracks which boxes are in use, and when each was last used. Idleness is decided from this.

This process knows of use immediately. Each sweep writes it to the store, where other processes see it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import Lifetime
from holdfast.boxes.rows import BoxRow, BoxRows


class Activity:
    """The use of the boxes of one service."""

    def __init__(self, rows: BoxRows, tenant: str, clock: Callable[[], int]) -> None:
        self._rows = rows
        self._tenant = tenant
        self._clock = clock
        self._working: Counter[str] = Counter()
        self._worked: set[str] = set()
        self._active: dict[str, int] = {}
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

    def has_worked(self, row: BoxRow) -> bool:
        """Returns whether the work of a one-shot box has ended, in this process or another that recorded activity."""
        return row.id in self._worked or row.last_active_at > row.created_at

    async def write(self) -> None:
        """Write to the store which boxes were used since the last call."""
        for id in self._working:
            self.note(id)
        used, self._active = self._active, {}
        for id, when in used.items():
            await self._rows.touch(self._tenant, id, BoxState.RUNNING, when)


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
