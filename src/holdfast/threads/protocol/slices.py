"""Long work on the event loop, done in slices. Other tasks run between slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

Part = TypeVar("Part")


class Slices:
    """Runs the parts of long work one by one, at most one per turn of the loop, however many tasks have work.

    A thread would not help: Python code in it would hold the interpreter lock for several milliseconds at a time.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        """Fair, so that tasks take turns."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Do one slice of work in this block, without awaiting anything."""
        async with self._turn:
            yield
            await asyncio.sleep(0)

    async def gather(self, parts: Iterable[Part]) -> list[Part]:
        """Collect all parts. Each step of the iterator is one slice of work."""
        gathered: list[Part] = []
        steps = iter(parts)
        while True:
            async with self.turn():
                try:
                    gathered.append(next(steps))
                except StopIteration:
                    return gathered
