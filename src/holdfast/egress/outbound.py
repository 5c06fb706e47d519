"""Where names become addresses, and addresses connections; and the guest API.

Between the first two every address is checked. Both are passed in, so tests give names to servers on loopback, and a
connector that refuses proves that nothing left.
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
    """The name has no address, or nobody said so in time."""


class CannotConnect(Exception):
    """Nobody answered at that address."""


class NeverReached(CannotConnect):
    """An address that is not for boxes, as only the machine itself can tell."""


class Resolver(Protocol):
    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Addresses of a name, the best first. Raises `CannotResolve`. Cancelled where it takes too long."""
        ...


class Connector(Protocol):
    async def connect(self, address: str, port: int) -> socket.socket:
        """A connected, non-blocking socket. Raises `CannotConnect`. Cancelled where it takes too long.

        It gets the address that was checked, and must connect to no other.
        """
        ...


class GuestApi(Protocol):
    """Answers what boxes ask of Holdfast itself."""

    async def __call__(self, box: str, connection: socket.socket, ahead: bytes) -> None:
        """Serve a connection of a box, of which `ahead` was read already, to its end. Takes it."""
        ...


class SystemResolver:
    """The machine's own way to resolve names, on threads of its own: a slow name server holds up nothing else."""

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
    """TCP from this machine, to anything but this machine."""

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
        """A public address of this machine leads to services that outsiders may not reach. The kernel knows which are
        ours: it would answer from the same address. Nothing is sent for this."""
        with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.connect((address, port))
            if probe.getsockname()[0] == address:
                raise NeverReached(f"{address} is an address of this machine")
