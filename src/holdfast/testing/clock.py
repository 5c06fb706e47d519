"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Time for tests: `now` is what you say, and `advance` calls back what is due, in order."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self._now = now
        self._order = count()
        self._timers: list[tuple[int, int, _Timer]] = []

    def now(self) -> int:
        return self._now

    def call_at(self, when: int, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def advance(self, milliseconds: int) -> None:
        end = self._now + milliseconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if timer.callback is not None:
                timer.callback()
        self._now = end

    @property
    def timers(self) -> int:
        """How many timers are set."""
        return sum(1 for _, _, timer in self._timers if timer.callback is not None)
