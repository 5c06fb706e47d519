"""Gates: points at which a scripted reply is held until a test releases it. Tests wait on gates instead of sleeping."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Final, Literal

from holdfast.time_limit import time_limit

Point = Literal["start", "end"] | int
"""Where a reply is held: before its first byte, before its end, or after a number of deltas."""

_PATIENCE: Final = 240.0


class Gate:
    """Holds a reply at a point. May be used from any thread and any event loop.

    A gate opens once and stays open. If several replies use it, it holds each of them until then.
    """

    def __init__(self, at: Point = "start", *, name: str = "") -> None:
        if isinstance(at, bool) or not (at in ("start", "end") or (isinstance(at, int) and at >= 0)):
            raise ValueError(f"a gate must be at 'start', 'end' or a number of deltas, not {at!r}")
        self.at: Point = at
        self.name = name
        self._reached: Future[None] = Future()
        self._released: Future[None] = Future()

    @property
    def is_reached(self) -> bool:
        return self._reached.done()

    async def reached(self, timeout: float = _PATIENCE) -> None:
        """Wait until a reply is held here. Raises `TimeoutError`."""
        async with time_limit(timeout):
            await asyncio.shield(asyncio.wrap_future(self._reached))

    def wait_reached(self, timeout: float = _PATIENCE) -> None:
        """Like `reached`, for code without an event loop."""
        self._reached.result(timeout)

    def release(self) -> None:
        """Release all replies held here, now and later."""
        _settle(self._released)

    async def hold(self) -> None:
        """Called by the model server: report that a reply is here, and wait for the release."""
        _settle(self._reached)
        await asyncio.shield(asyncio.wrap_future(self._released))

    def __repr__(self) -> str:
        return f"Gate({self.at!r}{f', name={self.name!r}' if self.name else ''})"


def _settle(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)
