"""Connections to programs in boxes that stay open for the next request of the same visitor.

Never for that of another one: if a program misunderstands where a request ends, its answers no longer fit the requests,
and a visitor must not be able to choose what another one gets (docs/decisions/0100-kept-connections.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import Final, NamedTuple

from holdfast.api.box.process import Connection
from holdfast.api.errors.boxes import BoxError

_IDLE_SECONDS: Final = 3.0
"""Less than a box stays open after a request, so a kept connection does not keep its box awake."""
_MOST: Final = 256
_MOST_OF_ONE: Final = 32


class Route(NamedTuple):
    """Who may use a connection, and where it leads."""

    box: str
    port: int
    credential: str


class KeptConnections:
    """Idle connections, for a few seconds each."""

    def __init__(self, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._of: dict[Route, OrderedDict[Connection, float]] = {}
        """With the time at which each is closed, the oldest first."""
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def take(self, route: Route) -> Connection | None:
        """The connection that was used last, or None. The caller owns it now."""
        kept = self._of.get(route)
        if kept is None:
            return None
        connection, _ = kept.popitem()
        self._count -= 1
        if not kept:
            del self._of[route]
        return connection

    def keep(self, route: Route, connection: Connection) -> None:
        """Take a connection over, for the next request."""
        kept = self._of.setdefault(route, OrderedDict())
        if self._count >= _MOST or len(kept) >= _MOST_OF_ONE:
            if not kept:
                del self._of[route]
            self._close(connection)
            return
        loop = asyncio.get_running_loop()
        kept[connection] = loop.time() + self._idle_seconds
        self._count += 1
        if self._timer is None:
            self._timer = loop.call_later(self._idle_seconds, self._sweep)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for kept in self._of.values():
            for connection in kept:
                self._close(connection)
        self._of.clear()
        self._count = 0
        await asyncio.gather(*self._closing)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, now = None, loop.time()
        for route, kept in list(self._of.items()):
            for connection in [each for each, until in kept.items() if until <= now]:
                del kept[connection]
                self._count -= 1
                self._close(connection)
            if not kept:
                del self._of[route]
        if self._of:
            first = min(until for kept in self._of.values() for until in kept.values())
            self._timer = loop.call_at(first, self._sweep)

    def _close(self, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(_close(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(connection: Connection) -> None:
    with contextlib.suppress(BoxError, OSError):
        await connection.close()
