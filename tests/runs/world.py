"""Servers of runs on one store and one folder of dummy boxes, without HTTP: started, killed and started again.

Their runner is a process that does nothing: the test posts in its name, in its epoch, as a real one would.
"""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors import Unavailable
from holdfast.api.errors.agents import UnknownAgent
from holdfast.api.run.runs import Launched
from holdfast.api.thread.entries import Entry
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.service.boxes import Boxes
from holdfast.egress.models.model import ModelChoice
from holdfast.harnesses.harness import Api, Command, Harness, Package, Rebuilt, Task
from holdfast.harnesses.placement import Placed, ReportStep
from holdfast.runs.launch.plan import LaunchPlanner, Options, Prompt, with_life
from holdfast.runs.launch.steps import Launcher
from holdfast.runs.reconcile.rules import Thresholds
from holdfast.runs.run_log import RunLog
from holdfast.runs.service import Runs
from holdfast.runs.workspace.store import Workspaces
from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import CAPABILITIES, DummyProvider
from holdfast.threads.access.credentials import Access
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.run_events import PRODUCER, Run
from holdfast.threads.service import Threads
from holdfast.threads.store import Producer

PATIENCE = 240.0
SEALS = Seals(b"of these tests")
SPEC = with_life(BoxSpec(provider="dummy"))


class Scripted(Harness):
    """An agent that remembers what it was asked, and whose session is a file of one line."""

    name: ClassVar[str] = "scripted"
    title: ClassVar[str] = "Scripted"
    package: ClassVar[Package | None] = None
    apis: ClassVar[tuple[Api, ...]] = (Api.OPENAI_CHAT,)

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.rebuilt_from: list[list[str]] = []
        self.more: list[str] = []
        """Files that it wants, too."""

    def archive(self) -> bytes:
        return still_runner()

    def files(self, task: Task) -> Mapping[str, bytes]:
        return {f"{task.place.state}/config.json": b"{}", **{f"{task.place.state}/{path}": b"" for path in self.more}}

    def command(self, task: Task) -> Command:
        self.tasks.append(task)
        return Command(("agent", task.prompt))

    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        texts = [str(each["payload"].get("text")) for each in entries if each["payload"]["type"].endswith(".assistant")]
        self.rebuilt_from.append(texts)
        if not texts:
            return None
        return Rebuilt("rebuilt-session", {f"{task.place.state}/session": "\n".join(texts).encode()})


class Other(Scripted):
    name: ClassVar[str] = "other"


class Agents:
    def __init__(self) -> None:
        self.scripted, self.other = Scripted(), Other()
        self.hook: Callable[[], Awaitable[None]] | None = None
        self.installs = False
        """As if the machine had no agent yet."""

    def find(self, name: str) -> Harness:
        for each in (self.scripted, self.other):
            if each.name == name:
                return each
        raise UnknownAgent(f"there is no agent {name!r}")

    async def ensure(self, box: Box, harness: Harness, report: ReportStep) -> Placed:
        if self.installs:
            await report("agent 1.0", None)
            await report("agent 1.0", 1500)
        if self.hook is not None:
            await self.hook()
        return Placed("/opt/agent", "node", "1.0")


class Names:
    def apis_of(self, wanted: str) -> tuple[Api, ...]:
        return (Api.OPENAI_CHAT,)

    def resolve(self, wanted: str | None = None) -> ModelChoice:
        name, _, model = (wanted or "m/x").partition("/")
        return ModelChoice(name, model or "x", (Api.OPENAI_CHAT,), 1000, 100)


def still_runner() -> bytes:
    """A runner that keeps what it was told in a file, and waits."""
    packed = io.BytesIO()
    code = (
        "import os, json, signal\n"
        "def main(program, configuration):\n"
        "    state = json.loads(configuration)['state']\n"
        "    os.makedirs(state, exist_ok=True)\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "    open(state + '/config', 'wb').write(configuration)\n"
        "    signal.pause()\n"
    )
    with zipfile.ZipFile(packed, "w") as archive:
        for package in ("holdfast", "holdfast/guest", "holdfast/guest/runner"):
            archive.writestr(f"{package}/__init__.py", "")
        archive.writestr("holdfast/guest/runner/main.py", code)
    return packed.getvalue()


class MortalLog(RunLog):
    """A log that a killed server cannot write to any more; killed, where asked, right before its nth append."""

    dead = False
    die_at: int | None = None
    appends = 0

    def append(self, thread: str, *entries: Entry, producer: Producer | None = None) -> Any:
        self._count()
        return super().append(thread, *entries, producer=producer)

    async def create(self, thread: str, *entries: Entry) -> bool:
        self._count()
        return await super().create(thread, *entries)

    def _count(self) -> None:
        self.appends += 1
        if self.die_at is not None and self.appends >= self.die_at:
            self.dead = True
        if self.dead:
            raise Unavailable("this server is dead")


class World:
    """What outlives servers, and the server that runs now."""

    def __init__(self, folder: Path, store: SqliteStreams, rows: SqliteBoxes, clock: ManualClock) -> None:
        self.folder = folder
        self.store = store
        self.rows = rows
        self.clock = clock
        can = CAPABILITIES | {Capability.IMAGES}
        self.provider = DummyProvider(folder / "dummy", clock=clock.now, capabilities=can)
        self.other = DummyProvider(folder / "other", name="other", clock=clock.now, capabilities=can)
        self.agents = Agents()
        self.access = Access(SqliteApiKeys(store), b"of these tests", clock=clock.now)
        self.projection = Projection(store, SqliteThreadRows(store), SEALS)
        self.threads = Threads(store, self.projection, clock=clock.now)
        self.boxes = Boxes(rows, {"dummy": self.provider, "other": self.other}, node="here", clock=clock.now)
        self.servers: list[Runs] = []
        self.start()

    def start(self, thresholds: Thresholds | None = None) -> None:
        """A server; its sweep is for the test to call."""
        self.log = MortalLog(self.store, self.threads, SEALS, self.clock.now)
        workspaces = Workspaces(self.folder / "workspaces", max_bytes=1 << 20)
        launcher = Launcher(
            log=self.log,
            boxes=self.boxes,
            workspaces=workspaces,
            agents=self.agents,
            access=self.access,
            ticks=self.clock.now,
            network_ready=_nothing,
        )
        self.runs = Runs(
            self.store,
            self.threads,
            self.projection,
            self.boxes,
            LaunchPlanner(self.agents, Names(), self.boxes),
            launcher,
            self.log,
            workspaces,
            ticks=self.clock.now,
            thresholds=thresholds,
            sweep_seconds=3600,
        )
        self.servers.append(self.runs)

    def kill(self) -> None:
        """The server is no more: whatever it was doing leads nowhere."""
        self.log.dead = True

    async def restart(self) -> None:
        self.kill()
        self.start()
        self.provider.heal()
        self.provider.at.clear()
        self.agents.hook = None

    async def launch(self, prompt: str = "do it", *, thread: str | None = None, **options: Any) -> Launched:
        wanted = Options("scripted", **{"model": None, "spec": SPEC, **options})
        return await self.runs.launch(Prompt(prompt), wanted, thread=thread)

    async def settled(self, launched: Launched) -> Run:
        """The run, once its launch is over."""
        async with asyncio.timeout(PATIENCE):
            await self.runs.launches.wait(launched.thread)
        return await self.latest(launched.thread)

    async def latest(self, thread: str) -> Run:
        run = (await self.threads.get(thread)).runs.latest
        assert run is not None
        return run

    async def entries(self, thread: str) -> list[dict[str, Any]]:
        return [entry async for entry in RunLog(self.store, self.threads, SEALS, self.clock.now).entries(thread)]

    async def ends(self, thread: str) -> list[dict[str, Any]]:
        return [
            each["payload"] for each in await self.entries(thread) if each["payload"]["type"] == "signal.run.finished"
        ]

    async def runner(self, launched: Launched) -> Runner:
        run = await self.settled(launched)
        assert run.live, run.error
        return Runner(self, launched.thread, run)

    async def close(self) -> None:
        for server in self.servers:
            await server.close()
        for row in await self.rows.live("default", "here"):
            await self.boxes.delete(row.id)
        await self.boxes.close()
        await self.projection.close()
        await self.provider.close()
        await self.other.close()


class Runner:
    """Posts as the runner of a run."""

    def __init__(self, world: World, thread: str, run: Run) -> None:
        self._log = RunLog(world.store, world.threads, SEALS, world.clock.now)
        self.thread = thread
        self.run = run
        self._seq = 0

    async def post(self, **payload: Any) -> None:
        """In its epoch: raises where it lost its run."""
        self._seq += 1
        id = payload.pop("id", f"{self.run.run}-{self.run.epoch}-{self._seq}")
        entry = self._log.entry(payload, id=id)
        await self._log.append(self.thread, entry, producer=Producer(PRODUCER, self.run.epoch, self._seq))

    async def say(self, text: str, agent: str = "scripted") -> None:
        await self.post(type=f"{agent}.assistant", message="m", text=text, calls=[])

    async def session(self, id: str, agent: str = "scripted") -> None:
        await self.post(type=f"{agent}.session", session=id)

    async def end(self, status: str = "completed") -> None:
        await self.post(
            id=f"end-{self.run.run}", type="signal.run.finished", run=self.run.run, status=status, by="runner", ms=1
        )


async def config_of(world: World, run: Run) -> dict[str, Any]:
    """What the runner of a run was told."""
    assert run.box is not None
    path = world.provider.folder / "boxes"
    async with asyncio.timeout(PATIENCE):
        while True:
            found = list(path.glob(f"**/runs/{run.run}/config")) if path.exists() else []
            found = found or list(world.provider.folder.glob(f"**/.holdfast/runs/{run.run}/config"))
            if found and (text := found[0].read_text()):
                config: dict[str, Any] = json.loads(text)
                return config
            await asyncio.sleep(0.01)


async def _nothing() -> None:
    return None


@asynccontextmanager
async def a_world(folder: Path) -> AsyncIterator[World]:
    clock = ManualClock()
    store = await SqliteStreams.open(folder / "holdfast.db", clock=clock.now)
    try:
        async with SqliteBoxes(folder / "holdfast.db") as rows:
            world = World(folder, store, rows, clock)
            await world.provider.open()
            await world.other.open()
            try:
                yield world
            finally:
                await world.close()
    finally:
        await store.close()
