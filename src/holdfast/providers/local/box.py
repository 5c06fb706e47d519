"""A box on this machine: its guest is asked over a socket, and hands out descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.boxes.box import BoxInfo, Power
from holdfast.boxes.errors import BoxUnreachable, ConnectRefused
from holdfast.boxes.process import Connection
from holdfast.providers.answers import GuestRefused
from holdfast.providers.guest_box import GuestBox, Usage, check_port
from holdfast.providers.local.files import GuestFiles
from holdfast.providers.local.link import Link
from holdfast.providers.local.process import GuestProcesses
from holdfast.providers.pipes import writable
from holdfast.providers.steps import Check

if TYPE_CHECKING:
    from holdfast.providers.local.guest_provider import GuestProvider

_CONNECT_SECONDS: Final = 10.0


class SocketConnection(Connection):
    """A socket that the guest opened, and may still have: whether it blocks is said anew with each call."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._waiting: set[asyncio.Future[None]] = set()

    async def read(self, limit: int = 1 << 16) -> bytes:
        loop = asyncio.get_running_loop()
        while self._socket.fileno() >= 0:
            try:
                return self._socket.recv(limit, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                await self._ready(loop.add_reader, loop.remove_reader)
            except ConnectionError:
                return b""
        return b""

    async def write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view, socket.MSG_DONTWAIT) :]
            except (BlockingIOError, InterruptedError):
                await self._ready(loop.add_writer, loop.remove_writer)
            except OSError as error:
                raise BoxUnreachable(f"the box closed the connection ({error.strerror})") from None

    async def _ready(self, add: Callable[..., Any], remove: Callable[..., Any]) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(ready)
        add(self._socket, _settle, ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if self._socket.fileno() >= 0:
                remove(self._socket)

    async def close_write(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise

    async def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        # What nobody reads would be waited for, as long as whoever has it too said.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        self._socket.close()
        for each in self._waiting:
            _settle(each)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class LocalBox(GuestBox):
    def __init__(self, provider: GuestProvider, info: BoxInfo) -> None:
        folder = provider.ground.box(info.id)
        self.link = Link(info.id, folder, info.created_at)
        self.link.wake = self._wake
        self._look = Link(info.id, folder, info.created_at)
        """For looking at the box, which wakes nobody."""
        super().__init__(
            info,
            provider,
            self._look,
            GuestProcesses(self.link, provider.watch, folder, provider.owner),
            GuestProcesses(self._look, provider.watch, folder, provider.owner),
        )
        self._provider = provider
        self.tools = provider.tools
        self.files = GuestFiles(self.link, provider.workdir(info))

    def own_environment(self) -> Mapping[str, str]:
        return self._provider.environment(self.info)

    def own_workdir(self) -> str:
        return self._provider.workdir(self.info)

    # --- ports ---

    async def connect(self, port: int) -> Connection:
        check_port(port)
        for ipv6 in (False, True):
            connection = await self._connect(port, ipv6)
            if connection is not None:
                return SocketConnection(connection)
        raise ConnectRefused(f"nothing listens on port {port} in box {self.id}")

    async def _connect(self, port: int, ipv6: bool) -> socket.socket | None:
        try:
            _, given = await self.link.ask_descriptors({"op": "connect", "port": port, "ipv6": ipv6})
        except GuestRefused:
            return None
        if len(given) != 1:
            for each in given:
                os.close(each)
            raise BoxUnreachable("the guest handed out no connection")
        try:
            connection = socket.socket(fileno=given[0])
        except OSError:
            os.close(given[0])
            raise BoxUnreachable("the guest handed out something that is no connection") from None
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await writable(connection.fileno())
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                return connection
        except TimeoutError:
            connection.close()
            raise ConnectRefused(f"port {port} in box {self.id} does not take connections") from None
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    # --- looking at it ---

    async def power(self) -> Power:
        return self._provider.power(self.id)

    async def usage(self) -> Usage:
        used, traffic = self._provider.usage(self.id), self._provider.traffic(self.id)
        return Usage(
            used.memory,
            used.cpu_seconds,
            out_of_memory=used.oom_kills,
            sent=None if traffic is None else traffic.sent,
            received=None if traffic is None else traffic.received,
            outgoing=None if traffic is None else traffic.open,
        )

    async def disk(self) -> int:
        return await self._provider.disk_use(self.id)

    async def _ask_activity(self) -> Mapping[str, Any]:
        return self._provider.held_activity(self.id) or await super()._ask_activity()

    def _way_in(self) -> Sequence[tuple[str, Check]]:
        return ("box record", self._ping_record), ("guest socket", self._ping_socket)

    async def _ping_record(self) -> str:
        return self._provider.power(self.id).value

    async def _ping_socket(self) -> str:
        self._look.connect().close()
        return ""
