"""One-shot boxes: each is deleted as soon as the work that it was made for has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from holdfast.boxes.service.activity import Activity


class OneShots:
    """Owns the tasks that delete one-shot boxes, until `close`."""

    def __init__(self, activity: Activity, end: Callable[[str], Awaitable[None]]) -> None:
        self._activity = activity
        self._end = end
        self._ending: set[asyncio.Future[None]] = set()

    def working(self, id: str) -> AbstractContextManager[None]:
        """A caller works in the box. When that ends, so does a one-shot."""
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
