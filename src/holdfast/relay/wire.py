"""A connection of a relay, with or without TLS."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from holdfast.egress.sockets import Ended, ReadAhead, ReadsNoMore
from holdfast.time_limit import time_limit

_PIECE: Final = 64 << 10


class Silent(Ended):
    """The other end sent nothing for too long."""


class Wire(ReadAhead):
    """Owns a pair of streams. `idle` and `stall` limit each read and each write, in seconds."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer
        self.idle: float | None = None
        self.stall: float | None = None

    async def more(self) -> bool:
        data = await self._read(_PIECE)
        self._ahead += data
        return bool(data)

    async def _read(self, most: int) -> bytes:
        try:
            async with time_limit(self.idle):
                return await self._reader.read(min(_PIECE, most))
        except TimeoutError:
            raise Silent(f"nothing came for {self.idle:g} s") from None
        except OSError as error:
            raise Ended(str(error)) from None

    async def is_stale(self) -> bool:
        """Returns whether the other end has closed it, or sent something that nobody asked for."""
        if self._ahead or self._writer.is_closing():
            return True
        try:
            async with time_limit(0):
                await self._reader.read(1)
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            async with time_limit(self.stall):
                self._writer.write(data)
                await self._writer.drain()
        except TimeoutError:
            raise ReadsNoMore(f"nothing was taken for {self.stall:g} s") from None
        except OSError as error:
            raise ReadsNoMore(str(error)) from None

    async def pump(self, to: Wire, most: int | None = None) -> int:
        """Relay data to another wire as it comes, up to `most` bytes or the end. Returns the number of bytes."""
        passed = 0
        while most is None or passed < most:
            wanted = _PIECE if most is None else most - passed
            data = self.take(wanted) or await self._read(wanted)
            if not data:
                break
            passed += len(data)
            await to.write(data)
        return passed

    def finish(self) -> None:
        """Close the sending side, where that is possible. Reading continues."""
        with contextlib.suppress(OSError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    async def close(self) -> None:
        """Close once everything is sent, within `stall`."""
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.close()
            async with time_limit(self.stall):
                await self._writer.wait_closed()
        self.abort()

    def abort(self) -> None:
        """Close at once. What was not sent is lost: a cut answer must not look complete."""
        self._writer.transport.abort()
