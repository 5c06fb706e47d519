"""How often boxes are sampled for idleness. The shortest idle time determines the interval."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.idleness import pause
from holdfast.time_limit import time_limit


class WatchInterval:
    """A box with a short idle time shortens the interval. Each pass over all boxes resets it."""

    def __init__(self) -> None:
        self._seconds = float("inf")
        self._shortened = asyncio.Event()

    def heed(self, row: BoxRow) -> None:
        """Shorten the interval if this box has a shorter idle time than all others."""
        if (wanted := pause([row], self._seconds)) < self._seconds:
            self._seconds = wanted
            self._shortened.set()

    def reset(self, rows: Iterable[BoxRow]) -> None:
        self._seconds = pause(rows, float("inf"))

    async def wait(self, seconds: float, watch: Callable[[], Awaitable[None]]) -> None:
        """Wait for `seconds`, and call `watch` after each interval."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            self._shortened.clear()
            wait = min(left, self._seconds)
            try:
                async with time_limit(wait):
                    await self._shortened.wait()
            except TimeoutError:
                if wait < left:
                    await watch()
