"""What callers keep open: live reads and WebSockets, which end when the credential that opened them no longer holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from holdfast.api.errors import Unauthorized
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Open:
    holds: Callable[[], Awaitable[bool]]
    on_end: Callable[[], None]
    is_over: bool = False

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.on_end()


class OpenWork:
    """All blocks that are running, each with a question: does the right to it still hold?"""

    def __init__(self) -> None:
        self._open: set[_Open] = set()

    @contextlib.asynccontextmanager
    async def entered(self, holds: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
        """Run a block until it ends or `review` ends it. Raises `Unauthorized` if the right to it does not hold."""
        limit = time_limit(None)
        each = _Open(holds, lambda: limit.reschedule(asyncio.get_running_loop().time()))
        try:
            async with limit:
                self._open.add(each)
                try:
                    if not await holds():
                        raise _refusal()
                    yield
                finally:
                    self._open.discard(each)
        except TimeoutError:
            if each.is_over:
                raise _refusal() from None
            raise

    @contextlib.asynccontextmanager
    async def watched(self, holds: Callable[[], Awaitable[bool]], on_end: Callable[[], None]) -> AsyncIterator[None]:
        """As `entered`, for work of other tasks: `review` calls `on_end`, which has to end it."""
        each = _Open(holds, on_end)
        self._open.add(each)
        try:
            if not await holds():
                raise _refusal()
            yield
        finally:
            self._open.discard(each)

    async def review(self) -> None:
        """End every block whose right no longer holds."""
        for each in list(self._open):
            try:
                holds = await each.holds()
            except Exception:
                log.exception("a right could not be checked, so what it had opened is closed")
                holds = False
            if not holds and each in self._open:
                each.end()


def _refusal() -> Unauthorized:
    return Unauthorized("the credential that opened this was revoked, or its role was lowered", hint="open it again")
