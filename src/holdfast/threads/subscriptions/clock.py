"""Time, passed in: leases and retries run on whatever clock the owner has.

`holdfast.testing.clock` has one to turn by hand.
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
        """Call back on the event loop when `now()` is about `when`; the callback looks for itself."""
        ...


class SystemClock:
    """The machine's clock and the running event loop's timers."""

    def now(self) -> int:
        return now_ms()

    def call_at(self, when: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0, when - now_ms()) / 1000, callback)
