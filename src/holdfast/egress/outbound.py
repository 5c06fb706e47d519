"""The interfaces to the outside: a resolver, a connector and the guest API.

Every address is checked between resolving and connecting. Both are passed in, so that tests can map names to servers on
loopback and prove with a refusing connector that nothing was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

_RESOLVERS: Final = 64


class CannotResolve(Exception):
    """The name has no address, or was not resolved in time."""


class CannotConnect(Exception):
    """Nothing answered at that address."""


class NeverReached(CannotConnect):
    """An address that boxes may not reach, which only the connector can determine."""


class Resolver(Protocol):
    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Returns the addresses of a name, best first. Raises `CannotResolve`. Cancelled after a time limit."""
        ...


class Connector(Protocol):
    async def connect(self, address: str, port: int) -> socket.socket:
        """Returns a connected, non-blocking socket. Raises `CannotConnect`. Cancelled after a time limit.

        The address has been checked. An implementation must not connect to any other.
        """
        ...


class GuestApi(Protocol):
    """Serves requests of boxes to Holdfast itself."""

    async def __call__(self, box: str, connection: socket.socket, ahead: bytes) -> None:
        """Serve a connection of a box to its end. `ahead` was already read from it. Owns the connection."""
        ...


class SystemResolver:
    """Resolves names with the machine's resolver, on separate threads so that a slow name server blocks nothing."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="holdfast-resolve")

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        def ask() -> list[Any]:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)

        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        except (OSError, UnicodeError) as error:
            raise CannotResolve(f"{host} has no address: {error}") from None
        return list(dict.fromkeys(str(each[4][0]) for each in found))


class SystemConnector:
    """Connects by TCP to any machine but this one."""

    async def connect(self, address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._refuse_own(family, address, port)
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            raise CannotConnect(f"{address}: {error.strerror}") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
        except OSError as error:
            sock.close()
            raise CannotConnect(f"{address} port {port}: {error.strerror or error}") from None
        except BaseException:
            sock.close()
            raise
        return sock

    def _refuse_own(self, family: int, address: str, port: int) -> None:
        """Raises `NeverReached` for public addresses of this machine, which may offer services that outsiders cannot
        reach. The kernel uses the same source address for these. Sends nothing."""
        with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.connect((address, port))
            if probe.getsockname()[0] == address:
                raise NeverReached(f"{address} is an address of this machine")
