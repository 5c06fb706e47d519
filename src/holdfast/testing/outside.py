"""What boxes under test find outside: names that lead to loopback, or nothing. Nothing leaves the machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence

from holdfast.egress import CannotConnect, CannotResolve, DefaultList
from holdfast.server.config import Settings
from holdfast.server.egress import Outside


class StaticNames:
    """A resolver that knows what it was told. `asked` is every question."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self.names = {host: list(found) for host, found in names.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise CannotResolve(f"{host} has no address")
        return self.names[host]


class LoopbackConnector:
    """Leads public addresses to servers on loopback, and all others nowhere. `connected` is every attempt."""

    def __init__(self, servers: Mapping[tuple[str, int], int] | None = None) -> None:
        self.servers = dict(servers or {})
        """Which port of loopback, by address and port."""
        self.connected: list[tuple[str, int]] = []

    async def connect(self, address: str, port: int) -> socket.socket:
        self.connected.append((address, port))
        if (address, port) not in self.servers:
            raise CannotConnect(f"{address} port {port}: nobody is there")
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.servers[address, port]))
        except OSError as error:
            sock.close()
            raise CannotConnect(f"{address} port {port}: {error.strerror}") from None
        except BaseException:
            sock.close()
            raise
        return sock


class Nowhere:
    """A resolver that knows no name, and a connector that reaches no address."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        raise CannotResolve(f"{host} has no address here")

    async def connect(self, address: str, port: int) -> socket.socket:
        raise CannotConnect(f"{address} is not there")


def nowhere(settings: Settings) -> Outside:
    """The default of `ServerProcess(outside=...)`: boxes reach nothing but the server."""

    async def find_defaults() -> DefaultList:
        return DefaultList()

    return Outside(Nowhere(), Nowhere(), find_defaults)
