"""The streams to all boxes of a provider: one for each box, shared by all handles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from holdfast.api.errors.boxes import BoxError
from holdfast.providers.stream.guest_client import StreamGuestClient
from holdfast.providers.stream.transport import Transport


@dataclass(slots=True)
class BoxConnection:
    """What this process has for one box."""

    guest: StreamGuestClient
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while this process changes the box."""
    first: Transport | None = None
    """A transport that is open already, for the next dial: the stdin and stdout of a guest that is about to start."""


class BoxConnections:
    """Owned by a provider, which closes it.

    `dial` opens a new transport to a box. `verdict` returns the error that explains why a stream was lost, or None if
    the box runs.
    """

    def __init__(
        self,
        dial: Callable[[str], Awaitable[Transport]],
        verdict: Callable[[str], Awaitable[BoxError | None]],
    ) -> None:
        self._dial = dial
        self._verdict = verdict
        self._connections: dict[str, BoxConnection] = {}

    def __getitem__(self, id: str) -> BoxConnection:
        if id not in self._connections:
            guest = StreamGuestClient(id, lambda: self._open(id), lambda: self._verdict(id))
            self._connections[id] = BoxConnection(guest)
        return self._connections[id]

    def get(self, id: str) -> BoxConnection | None:
        return self._connections.get(id)

    def forget(self, id: str) -> None:
        self._connections.pop(id, None)

    async def _open(self, id: str) -> Transport:
        connection = self[id]
        if connection.first is not None:
            transport, connection.first = connection.first, None
            return transport
        return await self._dial(id)

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(each.guest.close() for each in connections.values()), return_exceptions=True)
