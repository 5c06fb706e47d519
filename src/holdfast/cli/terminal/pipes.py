"""Standard streams for use in an event loop, each on a daemon thread. A slow reader or writer at the other end delays
that stream, but neither the loop nor the end of the command."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator
from typing import Final

_PIECE: Final = 1 << 16
_WAITING: Final = 1 << 20
"""Most bytes waiting to be written before `write` waits too."""


class OutputPipe:
    """Writes to a file descriptor, in order. If the reader is gone, the next write raises `BrokenPipeError`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._waiting = 0
        self._written = asyncio.Event()
        self._failure: OSError | None = None
        self._started = False

    async def write(self, data: bytes) -> None:
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name="holdfast-output", daemon=True).start()
        self._waiting += len(data)
        self._queue.put(data)
        await self._until(_WAITING)

    async def flush(self) -> None:
        await self._until(0)

    async def _until(self, waiting: int) -> None:
        while self._failure is None and self._waiting > waiting:
            self._written.clear()
            await self._written.wait()
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        while True:
            data = self._queue.get()
            failure = None
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                failure = error
            try:
                self._loop.call_soon_threadsafe(self._note, len(data), failure)
            except RuntimeError:  # the loop has ended
                return
            if failure is not None:
                return

    def _note(self, written: int, failure: OSError | None) -> None:
        self._waiting -= written
        self._failure = failure
        self._written.set()


class InputPipe:
    """Reads a file descriptor to its end. Reads at most two pieces ahead."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(maxsize=2)
        self._room = threading.Semaphore(2)
        self._ended = False
        threading.Thread(target=self._serve, name="holdfast-input", daemon=True).start()

    async def read(self) -> bytes:
        """Return some bytes, or none at the end."""
        if self._ended:
            return b""
        data = await self._pieces.get()
        self._ended = not data
        self._room.release()
        return data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    def _serve(self) -> None:
        data = b"-"
        while data:
            self._room.acquire()
            try:
                data = os.read(self._descriptor, _PIECE)
            except OSError:  # a closed terminal, or a folder: there is nothing to read
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, data)
            except RuntimeError:  # the loop has ended
                return
