"""Agents of this machine, brought into boxes. What has to be installed first is reported as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.api.box.box import Box
from holdfast.harnesses.harness import Harness
from holdfast.harnesses.installation import Progress, Tools
from holdfast.harnesses.placement import Placed, ensure

ReportStep = Callable[[str, int | None], Awaitable[object]]
"""Called with the name of something that is being installed, and once it is there, with the milliseconds it took."""


class Agents(Protocol):
    def find(self, name: str) -> Harness:
        """Returns an agent by its name. Raises `UnknownAgent`."""
        ...

    async def ensure(self, box: Box, harness: Harness, report: ReportStep) -> Placed:
        """Have the agent in the box. Quick if it is there already; what has to be installed first is reported."""
        ...


class InstalledAgents:
    """The agents of a registry, installed on this machine when a box first needs them."""

    def __init__(self, tools: Tools, find: Callable[[str], Harness]) -> None:
        self._tools = tools
        self.find = find

    async def ensure(self, box: Box, harness: Harness, report: ReportStep) -> Placed:
        steps = _Steps()
        reporting = asyncio.create_task(steps.report(report))
        try:
            return await ensure(box, harness, self._tools, on_progress=steps.take)
        finally:
            # What was begun or done is on the thread before whatever follows from it.
            steps.end()
            await reporting


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

    async def report(self, report: ReportStep) -> None:
        while (progress := await self._queue.get()) is not None:
            await report(progress.what, round(progress.seconds * 1000) if progress.done else None)
