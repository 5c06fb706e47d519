"""A transport over the stdin and stdout of a process in a container."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Final

import aiohttp
from aiodocker import DockerError
from aiodocker.stream import Stream

from holdfast.providers.stream.transport import Transport

_STDERR: Final = 2
_LAST_WORDS: Final = 4096
_PIECE: Final = 1 << 18


class DockerTransport(Transport):
    """Takes over the stream. Keeps the end of stderr, which explains why the process died."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: deque[bytes] = deque()
        self._complaints = b""
        self._closed = False

    @property
    def last_words(self) -> str:
        return self._complaints.decode("utf-8", "replace").strip()

    async def read(self) -> bytes:
        while not self._pieces:
            if self._closed:
                return b""
            message = await self._next()
            if message is None:
                return b""
            stream, data = message
            if stream == _STDERR:
                self._complaints = (self._complaints + data)[-_LAST_WORDS:]
            elif data:
                self._pieces.extend(data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
        return self._pieces.popleft()

    async def _next(self) -> tuple[int, bytes] | None:
        try:
            return await self._stream.read_out()
        except (aiohttp.ClientError, DockerError, OSError, AssertionError):
            return None

    async def write(self, data: bytes) -> None:
        if self._closed:
            raise ConnectionAbortedError("closed")
        try:
            await self._stream.write_in(data)
        except (aiohttp.ClientError, DockerError, AssertionError, RuntimeError) as error:
            raise ConnectionResetError(str(error)) from None

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            # the daemon may have closed it first
            with contextlib.suppress(AssertionError, aiohttp.ClientError, OSError):
                await self._stream.close()
            self._stream._closed = True
