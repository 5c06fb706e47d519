"""Which boxes are in use right now, and when they were last used: what idleness is judged by.

Known in this process at once, and written into the store by each sweep so that other processes see it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.boxes.lifecycle import BoxState
from holdfast.boxes.rows import BoxRow, BoxRows
from holdfast.boxes.spec import Lifetime


class Activity:
    """The use of one service's boxes."""

    def __init__(self, rows: BoxRows, tenant: str, clock: Callable[[], int]) -> None:
        self._rows = rows
        self._tenant = tenant
        self._clock = clock
        self._working: Counter[str] = Counter()
        self._worked: set[str] = set()
        self._active: dict[str, int] = {}
        self._one_shots: set[str] = set()

    def remember(self, row: BoxRow) -> None:
        """Know a one-shot that lives, and forget the dead."""
        if row.lifetime is Lifetime.ONE_SHOT and row.live:
            self._one_shots.add(row.id)
        elif row.tombstone:
            for known in (self._one_shots, self._worked):
                known.discard(row.id)
            self._active.pop(row.id, None)

    @contextmanager
    def using(self, id: str, after: Callable[[str], None] = lambda id: None) -> Iterator[None]:
        """A caller holds on to the box: it is not idle. `after` is called when it is let go."""
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

    def end_work(self, id: str) -> bool:
        """Take note that a command, a channel or a port was let go. Returns whether that was the work of a one-shot."""
        if id not in self._one_shots or id in self._working:
            return False
        self._worked.add(id)
        return True

    def is_working(self, id: str) -> bool:
        return id in self._working

    def has_worked(self, row: BoxRow) -> bool:
        """Whether work in a one-shot has ended: here, or in another process that noted activity after it was made."""
        return row.id in self._worked or row.last_active_at > row.created_at

    async def write(self) -> None:
        """Write down which boxes were used since the last time, so that other processes see it too."""
        for id in self._working:
            self.note(id)
        used, self._active = self._active, {}
        for id, when in used.items():
            await self._rows.touch(self._tenant, id, BoxState.RUNNING, when)
