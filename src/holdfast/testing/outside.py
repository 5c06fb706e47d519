"""A world outside of boxes in which nothing leaves the machine: names that lead to servers on loopback, or nowhere."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence

from holdfast.egress import CannotConnect, CannotResolve


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


class ShiftingName:
    """A resolver that gives another answer each time, the last one for ever: the trick of DNS rebinding."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


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


class RefusingConnector(LoopbackConnector):
    """Connects to nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__({})


class NeverConnector:
    """Waits until it is told otherwise: a server that never answers."""

    def __init__(self, on_attempt: Callable[[], None] | None = None) -> None:
        self._on_attempt = on_attempt or (lambda: None)

    async def connect(self, address: str, port: int) -> socket.socket:
        self._on_attempt()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")
