"""The runs of a server, opened in the background once its boxes are. Who needs them waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.server.lazy.loading import load_in_thread
from holdfast.threads.access import Access, RunScope

if TYPE_CHECKING:
    from holdfast.boxes.box import Box
    from holdfast.harnesses.harness import Harness
    from holdfast.harnesses.installation import Progress, Tools
    from holdfast.runs.ports import Installed, RunTokens, TellInstalling
    from holdfast.runs.service import Runs
    from holdfast.server.clocks import Clocks
    from holdfast.server.home import Home
    from holdfast.server.lazy.boxes import LazyBoxes
    from holdfast.server.lazy.models import LazyModels
    from holdfast.server.wire.guest_api import GuestApi
    from holdfast.threads.projection import Projection
    from holdfast.threads.seals import Seals
    from holdfast.threads.service import Threads
    from holdfast.threads.store import StreamStore

log = logging.getLogger(__name__)

FindAgent = Callable[[str], "Harness"]
"""An agent by its name. Raises `UnknownAgent`."""


class LazyRuns:
    """Owns the service of runs, and what it needs beside threads and boxes. Runs outlive it."""

    def __init__(
        self,
        store: StreamStore,
        threads: Threads,
        projection: Projection,
        access: Access,
        seals: Seals,
        boxes: LazyBoxes,
        models: LazyModels,
        door: GuestApi,
        home: Home,
        clocks: Clocks,
        find_agent: FindAgent | None,
    ) -> None:
        """`find_agent` takes the place of the registry of agents."""
        self._store = store
        self._threads = threads
        self._projection = projection
        self._access = access
        self._seals = seals
        self._boxes = boxes
        self._models = models
        self._door = door
        self._home = home.path
        self._clocks = clocks
        self._find_agent = find_agent
        self._opening: asyncio.Task[Runs] | None = None

    def find_agent(self, name: str) -> Harness:
        """Needs no service that is open. Raises `UnknownAgent`."""
        from holdfast.harnesses.registry import find

        return (self._find_agent or find)(name)

    def begin(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_note_failure)

    async def get(self) -> Runs:
        """The service, as soon as it is open. Raises what opening it raised."""
        self.begin()
        assert self._opening is not None
        return await asyncio.shield(self._opening)

    @property
    def opened(self) -> Runs | None:
        """The service, where it is open by now."""
        task = self._opening
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def close(self) -> None:
        if self._opening is not None:
            if not self._opening.done():
                self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if (runs := self.opened) is not None:
            await runs.close()

    async def _open(self) -> Runs:
        boxes = await self._boxes.get()
        await load_in_thread(_load)  # which takes long enough that nobody else should wait for it
        from holdfast.harnesses.installation import Tools
        from holdfast.runs.launch import Launcher
        from holdfast.runs.model_errors import ModelTrouble
        from holdfast.runs.reconcile import Thresholds
        from holdfast.runs.run_log import RunLog
        from holdfast.runs.service import Runs
        from holdfast.runs.workspace_store import Workspaces

        workspaces = Workspaces(self._home / "workspaces")
        await asyncio.to_thread(workspaces.sweep)
        run_log = RunLog(self._store, self._threads, self._seals, self._clocks.now)
        launching = Launcher(
            log=run_log,
            boxes=boxes,
            workspaces=workspaces,
            agents=_Agents(Tools(self._home), self.find_agent),
            models=await self._models.get(),
            tokens=_Tokens(self._access),
            pack=lambda harness: harness.archive(),
            ticks=self._clocks.ticks,
            network_ready=self._network_ready,
        )
        runs = Runs(
            self._store,
            self._threads,
            self._projection,
            boxes,
            launching,
            run_log,
            workspaces,
            ticks=self._clocks.ticks,
            thresholds=Thresholds(launch=0),  # a home has one server at a time: no other can be at a launch
        )
        await runs.start()
        self._door.serve(runs, await self._models.gateway(), ModelTrouble(run_log).tell)
        return runs

    async def _network_ready(self) -> None:
        await (await self._boxes.way_out()).ready()


class _Agents:
    """The agents of the registry, installed on this machine, in any box."""

    def __init__(self, tools: Tools, find: FindAgent) -> None:
        self._tools = tools
        self.find = find

    async def ensure(self, box: Box, harness: Harness, tell: TellInstalling) -> Installed:
        from holdfast.harnesses.placement import ensure
        from holdfast.runs.ports import Installed

        news = _News()
        telling = asyncio.create_task(news.tell(tell))
        try:
            placed = await ensure(box, harness, self._tools, on_progress=news.take)
        finally:
            # What was begun or done is on the thread before whatever follows from it.
            news.end()
            await telling
        return Installed(placed.program, placed.node, placed.version)


class _News:
    """What an installation reports: of each thing, that it begins and that it is done; nothing in between."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._news: asyncio.Queue[Progress | None] = asyncio.Queue()
        """Has two of each thing at most, and there are few."""

    def take(self, progress: Progress) -> None:
        if progress.done or progress.what not in self._begun:
            self._begun.add(progress.what)
            self._news.put_nowait(progress)

    def end(self) -> None:
        self._news.put_nowait(None)

    async def tell(self, tell: TellInstalling) -> None:
        while (progress := await self._news.get()) is not None:
            await tell(progress.what, round(progress.seconds * 1000) if progress.done else None)


class _Tokens:
    def __init__(self, access: Access) -> None:
        self._access = access

    def issue(self, *, thread: str, run: str, epoch: int, box: str, agent: str, model: str) -> RunTokens:
        from holdfast.runs.ports import RunTokens

        return RunTokens(
            self._access.issue_run(thread, run, epoch, box, RunScope.RUNNER, agent=agent).token,
            self._access.issue_run(thread, run, epoch, box, RunScope.MODEL, model=model).token,
        )


def _load() -> None:
    import importlib

    for needed in ("holdfast.runs.service", "holdfast.harnesses.placement", "holdfast.harnesses.runner_archive"):
        importlib.import_module(needed)


def _note_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the runs failed to start", exc_info=error)
