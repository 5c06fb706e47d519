"""Keeps the output of a command in memory: all of it up to a limit, or only its end."""

from __future__ import annotations

import collections
from typing import Final

from holdfast.api.errors.boxes import OutputTooLarge

_TAIL: Final = 64 * 1024


class Collected:
    """Keeps all output, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """Raises `OutputTooLarge`."""
        self._size += len(data)
        if self._size > self._limit:
            raise OutputTooLarge(
                f"the command printed more than {self._limit} bytes",
                hint="pass a sink (on_stdout, on_stderr) that receives the output as it arrives, or use spawn",
            )
        self._pieces.append(data)

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)


class Tail:
    """Keeps only the end of the output."""

    def __init__(self, limit: int = _TAIL) -> None:
        self.limit = limit
        self._pieces: collections.deque[bytes] = collections.deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        while self._size - len(self._pieces[0]) >= self.limit:
            self._size -= len(self._pieces.popleft())

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)[-self.limit :]
