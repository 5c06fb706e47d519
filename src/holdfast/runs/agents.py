"""Agents of this machine, brought into boxes. What has to be installed first is reported as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.boxes.box import Box
from holdfast.harnesses.harness import Harness
from holdfast.harnesses.installation import Progress, Tools
from holdfast.harnesses.placement import ensure
from holdfast.runs.ports import Installed, TellInstalling


class InstalledAgents:
    """Finds agents by name, and brings them into boxes."""

    def __init__(self, tools: Tools, find: Callable[[str], Harness]) -> None:
        self._tools = tools
        self.find = find

    async def ensure(self, box: Box, harness: Harness, tell: TellInstalling) -> Installed:
        """Have the agent in the box. Quick if it is there already."""
        steps = _Steps()
        telling = asyncio.create_task(steps.tell(tell))
        try:
            placed = await ensure(box, harness, self._tools, on_progress=steps.take)
        finally:
            # What was begun or done is on the thread before whatever follows from it.
            steps.end()
            await telling
        return Installed(placed.program, placed.node, placed.version)


class _Steps:
    """The steps of an installation: the beginning and the end of each, and nothing in between."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._queue: asyncio.Queue[Progress | None] = asyncio.Queue()
        """Holds at most two for each step, and there are few."""

    def take(self, progress: Progress) -> None:
        if progress.done or progress.what not in self._begun:
            self._begun.add(progress.what)
            self._queue.put_nowait(progress)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def tell(self, tell: TellInstalling) -> None:
        while (progress := await self._queue.get()) is not None:
            await tell(progress.what, round(progress.seconds * 1000) if progress.done else None)
