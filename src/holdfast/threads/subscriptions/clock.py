"""Time as a parameter: leases and retries use the clock that their owner passes in.

`holdfast.testing.clock` has a clock that tests control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from holdfast.api.ids import now_ms


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> int:
        """UTC milliseconds."""
        ...

    def call_at(self, when: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the event loop at about `when`. The callback must check the time itself."""
        ...


class SystemClock:
    """The machine's clock and the running event loop's timers."""

    def now(self) -> int:
        return now_ms()

    def call_at(self, when: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0, when - now_ms()) / 1000, callback)
