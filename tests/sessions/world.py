"""Servers of sessions on one store and one folder of dummy boxes, without HTTP: started, killed and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.runs.world import PATIENCE, SEALS, SPEC, Runner, World
from tests.runs.world import a_world as a_world_of_runs

from holdfast.api.session.sessions import PromptMode, SessionState
from holdfast.runs.launch.plan import Options
from holdfast.sessions.hub.questions import Questions
from holdfast.sessions.hub.runners import Runners
from holdfast.sessions.hub.settings import ServerSettings
from holdfast.sessions.service import Opening, Sessions
from holdfast.sessions.session_log import session_of
from holdfast.threads.rows import ThreadRow
from holdfast.threads.session_events import EndedPrompt, QueuedPrompt, Session


class SessionWorld:
    """What outlives servers, and the server that runs now. Its sweep is for the test to call."""

    def __init__(self, base: World, most: int = 10) -> None:
        self.base = base
        self.most = most
        self.old: list[Sessions] = []
        self.open()

    def open(self) -> None:
        base = self.base
        self.runners = Runners()
        self.questions = Questions(self.runners, base.clock.now)
        self.sessions = Sessions(
            base.store,
            base.threads,
            base.projection,
            base.boxes,
            base.runs,
            base.log,
            self.runners,
            self.questions,
            ServerSettings(base.store, SEALS, base.log, self.runners),
            ticks=base.clock.now,
            most=self.most,
            sweep_seconds=3600,
        )
        self.old.append(self.sessions)

    async def restart(self) -> None:
        """Kill the server, and start another one."""
        await self.base.restart()
        self.open()

    async def create(self, *, id: str | None = None, parent: str | None = None, **options: Any) -> str:
        wanted = Options("scripted", None, options.pop("spec", SPEC), **options)
        return (await self.sessions.create(Opening(id, parent=parent), wanted)).id

    async def running(self, **more: Any) -> str:
        """A session that runs."""
        id = await self.create(**more)
        assert await self.settled(id) is SessionState.RUNNING, await self.session(id)
        return id

    async def settled(self, id: str) -> SessionState:
        async with asyncio.timeout(PATIENCE):
            return session_of(await self.sessions.settle(id)).state

    async def session(self, id: str) -> Session:
        return session_of(await self.row(id))

    async def row(self, id: str) -> ThreadRow:
        return await self.base.threads.get(id)

    async def prompt(self, id: str, text: str = "do it", mode: str = "followup", **more: Any) -> str:
        return (await self.sessions.prompt(id, text, mode=PromptMode(mode), **more)).id

    async def found(self, id: str, prompt: str) -> QueuedPrompt | EndedPrompt:
        found = (await self.session(id)).find(prompt)
        assert found is not None
        return found

    async def at_work(self, id: str) -> Runner:
        """The runner of a session's run, once it is started."""
        await self.settled(id)
        async with asyncio.timeout(PATIENCE):
            await self.base.runs.launches.wait(id)
        run = (await self.row(id)).runs.live
        assert run is not None
        return Runner(self.base, id, run)

    async def answer(self, id: str, status: str = "completed") -> str:
        """Let the agent end its work. Returns its run."""
        runner = await self.at_work(id)
        await runner.end(status)
        await self.base.runs.reconcile(id)
        return runner.run.run

    async def types(self, id: str) -> list[str]:
        return [each["payload"]["type"] for each in await self.base.entries(id)]

    async def states(self, id: str) -> list[str]:
        names = [each.removeprefix("signal.session.") for each in await self.types(id) if "signal.session." in each]
        return [each for each in names if each in ("created", *SessionState)]

    async def close(self) -> None:
        for each in self.old:
            await each.close()


@asynccontextmanager
async def a_world(folder: Path, most: int = 10) -> AsyncIterator[SessionWorld]:
    async with a_world_of_runs(folder) as base:
        world = SessionWorld(base, most)
        try:
            yield world
        finally:
            await world.close()
