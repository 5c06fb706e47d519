"""A TCP proxy on loopback that loses what it is told to lose: a network for tests, with its faults on order."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from enum import Enum
from types import TracebackType
from typing import Self


class Fault(Enum):
    """What happens to one exchange. Those that are not on order go through."""

    NONE = "it goes through"
    LOSE_REQUEST = "the connection ends before the request reaches the server"
    LOSE_ANSWER = "the server carries it out, and the connection ends before its answer is back"
    HOLD_ANSWER = "the server carries it out, and its answer never comes"
    BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
    SLOW_DOWN = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n"
    OTHER_SERVER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    DISK_FULL = (
        b"HTTP/1.1 507 Insufficient Storage\r\ncontent-length: 55\r\n\r\n"
        b'{"error":{"code":"disk_full","message":"no room left"}}'
    )


class Proxy:
    """Stands before a server. Requests and answers of the tests are small: each is one piece of the byte stream."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._connections: set[asyncio.Task[None]] = set()
        self.faults: deque[Fault] = deque()
        self.held = asyncio.Event()
        """Set when an answer is held back."""
        self.requests = 0
        """Seen so far."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """End every connection there is."""
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """No coroutine: what is cut before it began has to be closed, too."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):  # cut, or given up by one side
            await self._carry(reader, writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(*self._address)
        try:
            fault: Fault | None = None

            async def carry_requests() -> None:
                nonlocal fault
                while data := await reader.read(1 << 20):
                    self.requests += 1
                    fault = self.faults.popleft() if self.faults else None
                    if fault is Fault.LOSE_REQUEST:
                        return
                    if fault is not None and isinstance(fault.value, bytes):
                        writer.write(fault.value)
                        continue
                    behind_writer.write(data)
                    await behind_writer.drain()

            async def carry_answers() -> None:
                while data := await behind_reader.read(1 << 20):
                    if fault is Fault.LOSE_ANSWER:
                        return
                    if fault is Fault.HOLD_ANSWER:
                        self.held.set()
                        continue
                    writer.write(data)
                    await writer.drain()

            directions = [asyncio.create_task(carry_requests()), asyncio.create_task(carry_answers())]
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
        finally:
            behind_writer.transport.abort()
