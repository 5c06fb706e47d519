"""Output of a process, readable from any offset that its last reader may still need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

_AHEAD: Final = 1 << 20
"""Unread bytes above which the process has to wait."""
_KEPT: Final = 2 << 20
"""Bytes that were read, and are kept in case a reader lost its connection."""
_PIECE: Final = 1 << 18


class Output:
    """One stream of a process, for any number of readers."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self._read = 0
        self._ended = False
        self._changed = asyncio.Event()

    @property
    def _end(self) -> int:
        return self._start + len(self._data)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def write(self, data: bytes) -> None:
        while not self._ended and self._end - self._read > _AHEAD:
            await self._changed.wait()
        self._data += data
        if (spare := self._read - self._start - _KEPT) > 0:
            del self._data[:spare]
            self._start += spare
        self._change()

    def end(self) -> None:
        self._ended = True
        self._change()

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        """Yields pieces from an offset on, until the process has ended."""
        while True:
            if offset < self._end:
                at = max(0, offset - self._start)
                piece = bytes(self._data[at : at + _PIECE])
                yield piece
                offset += len(piece)
                if offset > self._read:
                    self._read = offset
                    self._change()
            elif self._ended:
                return
            else:
                await self._changed.wait()
