"""Long work on the event loop, done in slices. Between two slices the loop serves everyone else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

Part = TypeVar("Part")


class Slices:
    """Takes the parts of long work one by one, at most one in a turn of the loop, however many have work to do.

    Not a thread: one that works in Python takes the interpreter from the loop for several milliseconds at a time.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        """First come, first served: those with work take turns."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Do one slice of work in here, without waiting for anything."""
        async with self._turn:
            yield
            await asyncio.sleep(0)

    async def gather(self, parts: Iterable[Part]) -> list[Part]:
        """All parts. Each step of the iterator is one slice of work."""
        gathered: list[Part] = []
        steps = iter(parts)
        while True:
            async with self.turn():
                try:
                    gathered.append(next(steps))
                except StopIteration:
                    return gathered
