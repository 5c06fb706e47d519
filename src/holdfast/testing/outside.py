"""What boxes under test can reach: names that resolve to loopback, or nothing. Nothing leaves the machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence

from holdfast.egress import CannotConnect, CannotResolve, DefaultList
from holdfast.server.config import Settings
from holdfast.server.egress import Outside


class StaticNames:
    """A resolver with fixed names. `asked` records every query."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self.names = {host: list(found) for host, found in names.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise CannotResolve(f"{host} has no address")
        return self.names[host]


class LoopbackConnector:
    """Connects some public addresses to servers on loopback, and refuses others. `connected` records all attempts."""

    def __init__(self, servers: Mapping[tuple[str, int], int] | None = None) -> None:
        self.servers = dict(servers or {})
        """The loopback port for each address and port."""
        self.connected: list[tuple[str, int]] = []

    async def connect(self, address: str, port: int) -> socket.socket:
        self.connected.append((address, port))
        if (address, port) not in self.servers:
            raise CannotConnect(f"{address} port {port}: nothing listens there")
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
    """A resolver that knows no names, and a connector that reaches no addresses."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        raise CannotResolve(f"{host} has no address here")

    async def connect(self, address: str, port: int) -> socket.socket:
        raise CannotConnect(f"{address} is not there")


def nowhere(settings: Settings) -> Outside:
    """The default of `ServerProcess(outside=...)`: boxes can reach only the server."""

    async def find_defaults() -> DefaultList:
        return DefaultList()

    return Outside(Nowhere(), Nowhere(), find_defaults)
