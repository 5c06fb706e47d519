"""What a command prints, as far as it is kept in memory: all of it up to a bound, or its end alone."""

from __future__ import annotations

import collections
from typing import Final

from holdfast.boxes.errors import OutputTooLarge

_TAIL: Final = 64 * 1024


class Collected:
    """All of it, up to `limit` bytes."""

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
                hint="give a sink (on_stdout, on_stderr) that takes them as they come, or spawn it",
            )
        self._pieces.append(data)

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)


class Tail:
    """The end of it: what came before is forgotten."""

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
