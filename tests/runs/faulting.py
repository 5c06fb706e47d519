"""The fault matrix of runs: a real server, a real box, a real agent, and what happens to them at which moment.

A cell is one run that is struck once. Afterwards its thread has to be whole, its end told once, nothing left behind,
and the work has to go on from the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import httpx
from tests.agents import InstalledAgents

from holdfast.boxes.errors import BoxError
from holdfast.client import Client
from holdfast.client.errors import HoldfastError
from holdfast.model_apis import Api
from holdfast.testing.clock import ShiftedClocks
from holdfast.testing.model import ScriptedModel
from holdfast.testing.model.gates import Gate, Point
from holdfast.testing.model.steps import FOR_EVER, Bash, Step
from holdfast.testing.server import ServerProcess

PATIENCE: Final = 90.0
PROMPT: Final = "Please look into the workspace and say what is there."
FIRST: Final = "I will look around first, and then tell you all that there is to be told."
LAST: Final = "That is all there is here: I have looked into every corner of it, twice."
AFTER: Final = "Gone on with, and done."
_HOUR: Final = 3_600_000


class Moment(StrEnum):
    LAUNCH = "launch"
    """The agent has asked its first question. For the server: before there is a runner."""
    STREAM = "stream"
    """The first answer is half said."""
    TOOL = "tool"
    """The agent waits for a command."""
    END = "end"
    """The last answer is all but whole."""


class Fault(StrEnum):
    KILL_AGENT = "kill agent"
    TERMINATE_AGENT = "terminate agent"
    KILL_RUNNER = "kill runner"
    KILL_GUEST = "kill guest"
    DELETE_BOX = "delete box"
    KILL_SERVER = "kill server"
    STOP_SERVER = "stop server"
    NETWORK_AWAY = "network away"
    TOKEN_EXPIRED = "token expired"
    CLOCK_BACK = "clock back"
    SECOND_RUNNER = "second runner"
    DISK_FULL = "disk full"
    REFUSED = "401"
    LIMITED = "429 for ever"
    BROKEN = "500 for ever"
    CUT = "stream cut"


BY_PROVIDER: Final = {Fault.REFUSED: 401, Fault.LIMITED: 429, Fault.BROKEN: 500}
SURVIVED: Final = frozenset(
    {
        Fault.KILL_SERVER,
        Fault.STOP_SERVER,
        Fault.NETWORK_AWAY,
        Fault.TOKEN_EXPIRED,
        Fault.CLOCK_BACK,
        Fault.CUT,
    }
)
"""The run goes on as if nothing had been."""


def moments(fault: Fault) -> tuple[Moment, ...]:
    """At which it can strike."""
    if fault in BY_PROVIDER:
        return (Moment.LAUNCH, Moment.END)  # its first question is answered so, or its last
    if fault is Fault.CUT:
        return (Moment.STREAM, Moment.END)
    if fault is Fault.DISK_FULL:
        return (Moment.TOOL,)
    return tuple(Moment)


def expected(fault: Fault, moment: Moment) -> frozenset[str]:
    """How the run may end."""
    if fault in (Fault.KILL_SERVER, Fault.STOP_SERVER) and moment is Moment.LAUNCH:
        # Whether its runner was there already is a race: it goes on, or whoever launched it was gone.
        return frozenset({"completed", "orphaned", "failed"})
    if fault in SURVIVED:
        return frozenset({"completed"})
    if fault in (Fault.KILL_AGENT, Fault.TERMINATE_AGENT) or fault in BY_PROVIDER:
        return frozenset({"failed"})
    if fault is Fault.DISK_FULL:
        return frozenset({"completed", "failed", "orphaned"})
    return frozenset({"orphaned"})


@dataclass(frozen=True, slots=True)
class Cell:
    agent: str
    fault: Fault
    moment: Moment

    def __str__(self) -> str:
        return f"{self.agent}-{self.fault}-{self.moment}".replace(" ", "_")


def cells(agents: tuple[str, ...]) -> list[Cell]:
    return [Cell(agent, fault, moment) for agent in agents for fault in Fault for moment in moments(fault)]


@dataclass
class Reader:
    """Somebody who follows a thread by its live tail: what it was shown is acknowledged, and must stay."""

    client: Client
    thread: str
    seen: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        async with self.client.thread(self.thread).tail() as tail:
            async for entry in tail:
                self.seen.append(entry.id)


@dataclass
class Ground:
    """A server on a home with the agents, and a model that does as it is told."""

    server: ServerProcess
    clocks: ShiftedClocks
    model: ScriptedModel
    client: Client

    async def connect(self) -> Client:
        """Anew, as after the server was another."""
        await self.client.aclose()
        self.client = Client(self.server.url, api_key=self.server.api_key)
        return self.client


@asynccontextmanager
async def grounded(folder: Path, agents: InstalledAgents) -> AsyncIterator[Ground]:
    home = folder / "home"
    agents.share_with(home)
    clocks = ShiftedClocks(folder / "clocks")
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ScriptedModel(key="sk-of-the-model"))
        server = await stack.enter_async_context(ServerProcess(home, clocks=clocks))
        client = Client(server.url, api_key=server.api_key)
        ground = Ground(server, clocks, model, client)
        stack.push_async_callback(lambda: ground.client.aclose())
        for name, api in (
            ("chat", Api.OPENAI_CHAT),
            ("responses", Api.OPENAI_RESPONSES),
            ("anthropic", Api.ANTHROPIC),
        ):
            base_url = model.url if name == "anthropic" else model.openai_url
            await client.models.add(name, apis=[api], base_url=base_url, model="scripted", key="sk-of-the-model")
        yield ground
        async for box in ground.client.boxes.list():
            await ground.client.boxes.delete(box.id)


_GATES: Final[dict[Moment, Point]] = {
    Moment.LAUNCH: "start", Moment.STREAM: 3, Moment.TOOL: "end", Moment.END: "end"
}  # fmt: skip
MODEL: Final = {"pi": "chat", "claude": "anthropic", "codex": "responses", "opencode": "chat"}


class Struck:
    """One cell, from launch to resume."""

    def __init__(self, ground: Ground, cell: Cell) -> None:
        self.ground = ground
        self.cell = cell
        self.marker = f"[{cell}]"
        self.gate = Gate(_GATES[cell.moment])
        self.thread = ""
        self.run = ""
        self.box = ""

    # --- the script ---

    def steps(self) -> list[Step]:
        fault, moment = self.cell.fault, self.cell.moment
        command = "echo begun > begun; while [ ! -e go ]; do sleep 0.05; done; echo looked"
        if fault is Fault.DISK_FULL:
            command = "echo begun > begun; head -c 200000000 /dev/zero > big; echo looked"
        elif moment is not Moment.TOOL:
            command = "echo looked"
        first, last = Step(text=FIRST, calls=(Bash(command),)), Step(text=LAST)
        if (status := BY_PROVIDER.get(fault)) is not None:
            times = 1 if status == 401 else FOR_EVER
            error = Step(error=status, message="as scripted", times=times, headers={"retry-after": "0"})
            return [error] if moment is Moment.LAUNCH else [first, error]
        if fault is Fault.CUT:
            cut = Step(text=FIRST, calls=(Bash(command),), cut=3)
            return [cut, first, last] if moment is Moment.STREAM else [first, Step(text=LAST, cut=3), last]
        if fault is not Fault.DISK_FULL and moment is not Moment.TOOL:
            held = Step(text=FIRST, calls=(Bash(command),), gates=(self.gate,))
            if moment is Moment.END:
                return [first, Step(text=LAST, gates=(self.gate,))]
            if fault in (Fault.KILL_SERVER, Fault.STOP_SERVER):
                return [held, first, last]  # the question that was lost with the server is asked again
            return [held, last]
        return [first, last]

    # --- its life ---

    async def launch(self) -> None:
        self.ground.model.script([*self.steps(), Step(text=LAST, times=FOR_EVER)], when=self.marker)
        limits: dict[str, Any] = {"disk": 64 << 20} if self.cell.fault is Fault.DISK_FULL else {}
        launched = await self.ground.client.runs.launch(
            f"{PROMPT} {self.marker}", agent=self.cell.agent, model=MODEL[self.cell.agent], box=limits
        )
        self.thread, self.run = launched.thread, launched.run

    async def reach_moment(self) -> None:
        """Until the run stands where it is to be struck."""
        fault, moment = self.cell.fault, self.cell.moment
        if fault in BY_PROVIDER or fault is Fault.CUT or fault is Fault.DISK_FULL:
            return
        if moment is Moment.LAUNCH and fault in (Fault.KILL_SERVER, Fault.STOP_SERVER):
            return
        if moment is Moment.TOOL:
            await self.until(self._tool_runs, "the tool never began")
        else:
            await self.gate.reached(PATIENCE)
        self.box = str((await self.ground.client.runs.get(self.run)).box)

    async def _tool_runs(self) -> bool:
        box = (await self.ground.client.runs.get(self.run)).box
        if box is None:
            return False
        async with await self.ground.client.boxes.open(box) as opened:
            return await opened.files.exists("begun")

    async def go_on(self) -> None:
        """Let go on what was held, where it still can."""
        self.gate.release()
        if self.cell.moment is Moment.TOOL and self.box and self.cell.fault is not Fault.DISK_FULL:
            with contextlib.suppress(HoldfastError, BoxError):
                async with await self.ground.client.boxes.open(self.box) as box:
                    await box.files.write("go", b"")

    async def until(self, holds: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while not await holds():
            assert asyncio.get_running_loop().time() < deadline, otherwise
            await asyncio.sleep(0.05)

    # --- what strikes it ---

    async def strike(self) -> None:
        ground = self.ground
        match self.cell.fault:
            case Fault.KILL_AGENT:
                await self._end_agent(signal.SIGKILL)
            case Fault.TERMINATE_AGENT:
                await self._end_agent(signal.SIGTERM)
            case Fault.KILL_RUNNER:
                _send([self.runner()], signal.SIGKILL)
            case Fault.KILL_GUEST:
                _send([_guest_of(self.runner())], signal.SIGKILL)
            case Fault.DELETE_BOX:
                await ground.client.boxes.delete(self.box)
            case Fault.KILL_SERVER:
                await asyncio.to_thread(ground.server.kill)
                await asyncio.to_thread(ground.server.start)
                await ground.connect()
            case Fault.STOP_SERVER:
                await asyncio.to_thread(ground.server.restart)
                await ground.connect()
            case Fault.NETWORK_AWAY:
                os.kill(ground.server.pid, signal.SIGSTOP)
                ground.clocks.pass_time(60_000)
                self.gate.release()
                await asyncio.sleep(0.5)  # the fault itself: for so long nothing goes through
                os.kill(ground.server.pid, signal.SIGCONT)
            case Fault.TOKEN_EXPIRED:
                ground.clocks.jump(2 * _HOUR)
            case Fault.CLOCK_BACK:
                ground.clocks.jump(-24 * _HOUR)
            case Fault.SECOND_RUNNER:
                await self._take_over()
            case _:
                pass

    async def _end_agent(self, number: int) -> None:
        """Gone before it is let go on, which it might not live to see."""
        agents = self.agents()
        _send(agents, number)

        async def gone() -> bool:
            return not set(agents) & set(self.processes())

        await self.until(gone, "the agent outlives its signal")

    async def _take_over(self) -> None:
        """Somebody else claims the run's thread, as a second runner's launch would."""
        async with httpx.AsyncClient(base_url=self.ground.server.url, timeout=30) as client:
            for epoch in range(3, 100):
                answer = await client.post(
                    f"/v1/stream/threads/{self.thread}",
                    json=[{"payload": {"type": "signal.test.taken_over"}}],
                    headers={
                        "authorization": f"Bearer {self.ground.server.api_key}",
                        "producer-id": "run",
                        "producer-epoch": str(epoch),
                        "producer-seq": "0",
                    },
                )
                if answer.status_code == 200:
                    return
        raise AssertionError("the thread could not be taken over")

    def processes(self) -> list[int]:
        """On this machine, of this run."""
        return _marked(f"HOLDFAST_RUN={self.run}".encode())

    def agents(self) -> list[int]:
        """What the runner started, and nothing that those started: it is they who deal with the signal."""
        runner = self.runner()
        return [pid for pid in self.processes() if _parent(pid) == runner]

    def runner(self) -> int:
        """The parent of what it marked, which is itself not marked."""
        marked = set(self.processes())
        [runner] = {_parent(pid) for pid in marked} - marked - {0}  # 0: of one that is gone by now
        return runner

    # --- afterwards ---

    async def settle(self) -> None:
        """Until the run has ended, of itself or because somebody asks after it who may force the question."""
        client = self.ground.client
        if self.cell.fault not in SURVIVED and self.cell.fault not in BY_PROVIDER:
            self.ground.clocks.pass_time(40_000)  # those who are silent are silent for long enough

        async def ended() -> bool:
            return not (await client.runs.get(self.run)).live

        await self.until(ended, "the run never ended")

    async def resume(self) -> str:
        """Go on from the thread; how that run ended."""
        if self.cell.fault is Fault.DISK_FULL:
            box = str((await self.ground.client.runs.get(self.run)).box)
            async with await self.ground.client.boxes.open(box) as opened:
                await opened.files.delete("big")  # nothing goes on in a full box: somebody has to make room
        self.ground.model.script([Step(text=AFTER, times=FOR_EVER)], when=self.marker)
        launched = await self.ground.client.runs.resume(self.thread, f"Go on, please. {self.marker}")
        return (await asyncio.wait_for(self.ground.client.runs.wait(launched.run), PATIENCE)).status

    async def entries(self) -> list[dict[str, Any]]:
        """All there are, live text too."""
        found: list[dict[str, Any]] = []
        headers = {"authorization": f"Bearer {self.ground.server.api_key}"}
        async with httpx.AsyncClient(base_url=self.ground.server.url, headers=headers, timeout=30) as client:
            offset = "-1"
            while True:
                answer = await client.get(f"/v1/stream/threads/{self.thread}", params={"offset": offset})
                found += answer.raise_for_status().json()
                offset = answer.headers["stream-next-offset"]
                if "stream-up-to-date" in answer.headers:
                    return found


def _send(pids: list[int], number: int) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, number)


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _guest_of(pid: int) -> int:
    """Process 1 of the box that a process is in."""
    namespace = os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    while (parent := _parent(pid)) and os.readlink(f"/proc/{parent}/ns/pid") == namespace:  # noqa: PTH115
        pid = parent
    return pid
