"""What a build prints, for those who follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

_MOST_LINES: Final = 10_000


class BuildLog:
    """The lines of one build. Readers follow it until it ends."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._changed = asyncio.Event()
        self._ended = False

    def add(self, line: str) -> None:
        if len(self._lines) < _MOST_LINES:
            self._lines.append(line[:4096])
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
