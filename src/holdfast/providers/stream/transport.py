"""The transport to a box that is reached over a stream: bytes in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

_PIECE: Final = 1 << 18
_TURNS: Final = 8
"""Reads before other tasks run, if there is always something to read."""


class Transport(ABC):
    """One connection to a bridge in a box. Owned by the link that dialled it, which reads and writes from a task each.

    A loss is an end: `read` returns nothing, `write` raises `ConnectionError`. Other errors of the connection
    (`OSError`, `BoxError`) are taken for a loss too.
    """

    @abstractmethod
    async def read(self) -> bytes:
        """Returns some bytes, at most a quarter of a megabyte; none at the end."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write everything. Returns when there is room for more."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection, which ends a pending `read`. Closing twice has no effect."""


Dial = Callable[[], Awaitable[Transport]]
"""Starts a bridge in the box and returns the connection to it. Raises `BoxStopped`, `BoxGone` or `BoxUnreachable`.

Called again whenever the last connection was lost and a caller needs the box.
"""


class PipeTransport(Transport):
    """Takes over two descriptors: one to read from, one to write to."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._turns = 0
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)

    async def read(self) -> bytes:
        while not self._closed:
            try:
                data = os.read(self._reading, _PIECE)
            except BlockingIOError:
                self._turns = 0
                await self._ready(self._reading, asyncio.get_running_loop().add_reader)
                continue
            except OSError:
                return b""
            self._turns += 1
            if self._turns % _TURNS == 0:
                await asyncio.sleep(0)
            return data
        return b""

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._closed:
                raise ConnectionAbortedError(errno.ECONNABORTED, "closed")
            try:
                view = view[os.write(self._writing, view) :]
            except BlockingIOError:
                await self._ready(self._writing, asyncio.get_running_loop().add_writer)

    async def _ready(self, descriptor: int, watch: Callable[..., object]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.add(future)
        watch(descriptor, _settle, future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if not self._closed:
                (loop.remove_reader if descriptor == self._reading else loop.remove_writer)(descriptor)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._reading)
        loop.remove_writer(self._writing)
        for future in self._waiting:
            _settle(future)
        for descriptor in {self._reading, self._writing}:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
