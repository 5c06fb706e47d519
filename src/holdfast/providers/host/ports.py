"""Connects to ports of a box on this machine. The guest opens the connection and passes its descriptor.

Used by the provider, and by any process of this machine that may open the guest's socket.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from holdfast.api.box.process import Connection
from holdfast.api.errors.boxes import BoxUnreachable, ConnectRefused
from holdfast.providers.guest_box import check_port
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.pipes import writable
from holdfast.time_limit import time_limit

_CONNECT_SECONDS: Final = 10.0


class SocketConnection(Connection):
    """A socket that the guest opened and may still have. So every call specifies whether it blocks."""

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
        # Otherwise close() would wait for unread data as long as the other holder has set.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        self._socket.close()
        for each in self._waiting:
            _settle(each)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def connect_port(guest: GuestClient, port: int) -> Connection:
    """Connect to a port that a process in the box listens on. Raises `ConnectRefused`."""
    check_port(port)
    for ipv6 in (False, True):
        connection = await _connect(guest, port, ipv6)
        if connection is not None:
            return SocketConnection(connection)
    raise ConnectRefused(f"nothing listens on port {port} in box {guest.box}")


async def _connect(guest: GuestClient, port: int, ipv6: bool) -> socket.socket | None:
    try:
        _, received = await guest.ask_descriptors({"op": "connect", "port": port, "ipv6": ipv6})
    except GuestRefused:
        return None
    if len(received) != 1:
        for each in received:
            os.close(each)
        raise BoxUnreachable("the guest did not return a connection")
    try:
        connection = socket.socket(fileno=received[0])
    except OSError:
        os.close(received[0])
        raise BoxUnreachable("the guest returned something that is not a connection") from None
    connection.setblocking(False)
    try:
        async with time_limit(_CONNECT_SECONDS):
            await writable(connection.fileno())
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            return connection
    except TimeoutError:
        connection.close()
        raise ConnectRefused(f"port {port} in box {guest.box} does not accept connections") from None
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None
