"""Who is at work in which box right now, and when work in it last ended: what idleness is judged by.

Known in this process at once, and written into the store by each sweep so that other processes see it too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from holdfast.boxes.lifecycle import BoxState
from holdfast.boxes.rows import BoxRow, BoxRows
from holdfast.boxes.spec import Lifetime


class Activity:
    """The use of one service's boxes. Owns the tasks that end one-shot boxes, until `close`."""

    def __init__(
        self, rows: BoxRows, tenant: str, clock: Callable[[], int], end_one_shot: Callable[[str], Awaitable[None]]
    ) -> None:
        self._rows = rows
        self._tenant = tenant
        self._clock = clock
        self._end_one_shot = end_one_shot
        self._working: Counter[str] = Counter()
        self._worked: set[str] = set()
        self._active: dict[str, int] = {}
        self._one_shots: set[str] = set()
        self._ending: set[asyncio.Future[None]] = set()

    async def close(self) -> None:
        ending = list(self._ending)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def remember(self, row: BoxRow) -> None:
        """Know a one-shot that lives, and forget the dead."""
        if row.lifetime is Lifetime.ONE_SHOT and row.live:
            self._one_shots.add(row.id)
        elif row.tombstone:
            for known in (self._one_shots, self._worked):
                known.discard(row.id)
            self._active.pop(row.id, None)

    def working(self, id: str) -> AbstractContextManager[None]:
        """Somebody works in the box (a command, a channel, a port): it is not idle. The end of this ends a one-shot."""
        return self._used(id, self._worked_in)

    def using(self, id: str) -> AbstractContextManager[None]:
        """Somebody holds on to the box (an upload, a download): it is not idle, but that was not a one-shot's work."""
        return self._used(id, lambda id: None)

    @contextmanager
    def _used(self, id: str, after: Callable[[str], None]) -> Iterator[None]:
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
        # Activity on the row of a one-shot says that its work has ended: a look, or an upload, is no work.
        if id not in self._one_shots or id in self._worked:
            self._active[id] = self._clock()

    def _worked_in(self, id: str) -> None:
        if id in self._one_shots and id not in self._working:
            self._worked.add(id)
            task = asyncio.ensure_future(self._end_one_shot(id))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def is_working(self, id: str) -> bool:
        return id in self._working

    def has_worked(self, row: BoxRow) -> bool:
        """Whether work in a one-shot has ended: here, or where somebody noted activity after it was made."""
        return row.id in self._worked or row.last_active_at > row.created_at

    async def note_activity(self) -> None:
        """Write down what was used since the last time, so that other processes see it too."""
        for id in self._working:
            self.note(id)
        used, self._active = self._active, {}
        for id, when in used.items():
            await self._rows.touch(self._tenant, id, BoxState.RUNNING, when)
