"""Listens for boxes, and serves each connection in a task of its own. Holds no secret and keeps nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from holdfast.relay.connection import RelayConnection
from holdfast.relay.upstream import Upstream
from holdfast.relay.wire import Wire

log = logging.getLogger(__name__)

_BACKLOG: Final = 256
_ACCEPT_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Times are in seconds, sizes in bytes."""

    connections: int = 1024
    """At once. If there are more, the one that has waited longest for a request is closed."""
    handshake: float = 15.0
    head: float = 15.0
    """Time to send a complete head."""
    head_size: int = 64 << 10
    between: float = 75.0
    """Time between two requests of a connection, and before the first one."""
    connect: float = 15.0
    body: int = 128 << 20
    """Of one request. The server's own limits are lower."""
    body_seconds: float = 300.0
    idle: float = 960.0
    """How long the server may send nothing: longer than the model gateway waits, whose error then arrives."""
    stall: float = 60.0
    """How long the other end may take nothing of what is sent."""
    lifetime: float = 24 * 3600.0
    """Of one request with its answer."""


class Relay:
    """The creator closes it. `tls` is for connections of boxes; without it, something in front has to do TLS."""

    def __init__(
        self, upstream: Upstream, limits: RelayLimits | None = None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.upstream = upstream
        self._limits = limits or RelayLimits()
        self._tls = tls
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: dict[asyncio.Task[None], RelayConnection | None] = {}
        """Tasks of connections, the oldest first. None while the TLS handshake takes place."""
        self._evicted: set[asyncio.Task[None]] = set()
        """Tasks that are ending, to make room."""

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError."""
        family, _, _, _, address = (await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))[
            0
        ]
        self._listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._listener))
        return int(self._listener.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end all connections. Closing twice has no effect."""
        accepting, self._accepting = self._accepting, None
        tasks = [*([accepting] if accepting is not None else []), *self._open, *self._evicted]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    @property
    def connections(self) -> int:
        return len(self._open)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            if len(self._open) >= self._limits.connections and not self._make_room():
                client.close()
                continue
            task = asyncio.create_task(self._serve(client))
            self._open[task] = None
            task.add_done_callback(self._ended)

    def _make_room(self) -> bool:
        """End the oldest connection without a request. Returns False if all are busy."""
        for task, connection in self._open.items():
            if connection is not None and connection.resting:
                task.cancel()
                del self._open[task]
                self._evicted.add(task)
                return True
        return False

    async def _serve(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self._limits.head_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake = None if self._tls is None else self._limits.handshake
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, client, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except (OSError, TimeoutError):
            client.close()
            return
        except BaseException:
            client.close()
            raise
        wire = Wire(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        connection = RelayConnection(wire, self.upstream, self._limits)
        task = asyncio.current_task()
        if task in self._open:
            self._open[task] = connection
        await connection.run()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._evicted.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("a connection failed", exc_info=problem)
