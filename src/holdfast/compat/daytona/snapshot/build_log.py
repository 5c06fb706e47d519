"""What a build prints, for those who follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

_MOST_LINES: Final = 10_000
_LONGEST_LINE: Final = 4096
_MOST_CHARACTERS: Final = 1_000_000
"""With the ends of lines. A server keeps the logs of the last builds, and what a build prints is up to its box."""


class BuildLog:
    """The lines of one build. Readers follow it until it ends."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._left = _MOST_CHARACTERS
        self._changed = asyncio.Event()
        self._ended = False

    def add(self, line: str) -> None:
        line = line[:_LONGEST_LINE]
        self._left -= len(line) + 1
        if self._left >= 0 and len(self._lines) < _MOST_LINES:
            self._lines.append(line)
            self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def lines(self, follow: bool) -> AsyncIterator[bytes]:
        sent = 0
        while True:
            changed = self._changed
            while sent < len(self._lines):
                yield f"{self._lines[sent]}\n".encode()
                sent += 1
            if self._ended or not follow:
                return
            await changed.wait()
