"""A transport over the stdin and stdout of a command in a sandbox.

The SDK repeats what was cut off by itself, by offsets. What arrives here as an end is a command that has ended, or a
sandbox that cannot be reached for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from grpclib import GRPCError
from grpclib.exceptions import StreamTerminatedError
from modal import exception

from holdfast.providers.modal.account import limited
from holdfast.providers.stream import Transport

_PIECE: Final = 1 << 18
_AHEAD: Final = 16
"""Pieces that were received and nobody has read yet."""
_WRITE_SECONDS: Final = 120.0
_CLOSE_SECONDS: Final = 3.0
_LOST: Final = (exception.Error, GRPCError, StreamTerminatedError, OSError)


class ModalTransport(Transport):
    """Owns the command, which ends with it."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(_AHEAD)
        self._closed = False
        self._ended = asyncio.Event()
        self._pump = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        try:
            async for data in self._process.stdout:
                for start in range(0, len(data), _PIECE):
                    await self._pieces.put(data[start : start + _PIECE])
        except _LOST:
            pass  # an end like any other: whoever asked for the stream finds out why
        finally:
            self._ended.set()

    async def read(self) -> bytes:
        if not self._pieces.empty():
            return self._pieces.get_nowait()
        getting = asyncio.ensure_future(self._pieces.get())
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([getting, ending], return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else b""
        finally:
            getting.cancel()
            ending.cancel()

    async def write(self, data: bytes) -> None:
        if self._closed:
            raise ConnectionAbortedError("closed")
        try:
            self._process.stdin.write(data)
            await limited(self._process.stdin.drain.aio(), _WRITE_SECONDS)
        except (exception.Error, GRPCError, StreamTerminatedError, ValueError) as error:
            raise ConnectionResetError(str(error)) from None

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self._ended.set()
        with contextlib.suppress(*_LOST, ValueError):
            self._process.stdin.write_eof()
            await limited(self._process.stdin.drain.aio(), _CLOSE_SECONDS)
