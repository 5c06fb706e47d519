"""Gates: points at which a scripted answer is held until a test lets it go on. Tests wait on these, and never sleep."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Final, Literal

from holdfast.time_limit import time_limit

Point = Literal["start", "end"] | int
"""Where an answer is held: before its first byte, before its end, or after so many deltas."""

_PATIENCE: Final = 60.0


class Gate:
    """Holds one answer at a point. May be used from any thread and any event loop.

    A gate opens once and stays open. Used in several answers, it holds each until then.
    """

    def __init__(self, at: Point = "start", *, name: str = "") -> None:
        if isinstance(at, bool) or not (at in ("start", "end") or (isinstance(at, int) and at >= 0)):
            raise ValueError(f"a gate stands at 'start', at 'end' or after a number of deltas, and not at {at!r}")
        self.at: Point = at
        self.name = name
        self._reached: Future[None] = Future()
        self._released: Future[None] = Future()

    @property
    def is_reached(self) -> bool:
        return self._reached.done()

    async def reached(self, timeout: float = _PATIENCE) -> None:
        """Until an answer stands here. Raises `TimeoutError`."""
        async with time_limit(timeout):
            await asyncio.shield(asyncio.wrap_future(self._reached))

    def wait_reached(self, timeout: float = _PATIENCE) -> None:
        """The same for code without an event loop."""
        self._reached.result(timeout)

    def release(self) -> None:
        """Let go on whoever stands here, now and later."""
        _settle(self._released)

    async def hold(self) -> None:
        """For the model server: say that an answer is here, and wait for the release."""
        _settle(self._reached)
        await asyncio.shield(asyncio.wrap_future(self._released))

    def __repr__(self) -> str:
        return f"Gate({self.at!r}{f', name={self.name!r}' if self.name else ''})"


def _settle(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)
