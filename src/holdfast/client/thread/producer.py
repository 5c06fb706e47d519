"""An idempotent producer: numbers the requests of one writer, so that the server accepts each of them once.

After a request with an unknown outcome, the numbering cannot continue, because the server may or may not have it. Then
a new epoch begins, which also invalidates requests of the old one that are still on their way.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.api.errors.threads import StaleEpoch

if TYPE_CHECKING:
    import anyio


class Producer:
    """One writer of one stream. Sends one request at a time."""

    def __init__(self, id: str | None = None) -> None:
        self.id = id or f"p-{os.urandom(12).hex()}"
        self.epoch = 0
        self.seq = 0
        self._turns = _Turns()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[Mapping[str, str]]:
        """Yields the headers of the next request. Leaving the block without an error means that it was acknowledged."""
        async with self.turn(), self.numbered() as headers:
            yield headers

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for earlier requests, and hold off those of other tasks. For several requests that belong together."""
        async with self._turns:
            yield

    @asynccontextmanager
    async def numbered(self) -> AsyncIterator[Mapping[str, str]]:
        """Like `request`, for a caller that has the turn."""
        try:
            yield {
                "producer-id": self.id,
                "producer-epoch": str(self.epoch),
                "producer-seq": str(self.seq),
            }
        except StaleEpoch:
            raise  # a newer producer uses this id, so ours must not raise its epoch above it
        except BaseException:
            self.epoch += 1
            self.seq = 0
            raise
        self.seq += 1


class _Turns:
    """A fair lock. It waits only if it is taken, so a single writer needs no event loop."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[anyio.Event] = deque()

    async def __aenter__(self) -> None:
        if self._taken:
            import anyio

            mine = anyio.Event()
            self._waiting.append(mine)
            try:
                await mine.wait()
            except BaseException:
                if mine.is_set():
                    self._pass_on()
                else:
                    self._waiting.remove(mine)
                raise
        self._taken = True

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()  # it stays locked, now by the next waiter
        else:
            self._taken = False
