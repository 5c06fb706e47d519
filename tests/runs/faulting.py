"""The fault matrix of runs: a real server, a real box, a real agent, and what happens to them at which moment.

A cell is one run that is struck once. Afterwards its thread has to be whole, its end told once, nothing left behind,
and the work has to go on from the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
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
from tests.runs.clouds import Cloud, open_cloud

from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import BoxError
from holdfast.api.model.models import Api
from holdfast.api.run.info import RunInfo
from holdfast.client import Client
from holdfast.testing.clock import ShiftedClocks
from holdfast.testing.model import ScriptedModel
from holdfast.testing.model.gates import Gate, Point
from holdfast.testing.model.steps import FOR_EVER, Bash, Step
from holdfast.testing.server import ServerProcess
from holdfast.threads.access.credentials import Access, ApiKey, RunScope
from holdfast.threads.run_events import end_id

PATIENCE: Final = 240.0
PROMPT: Final = "Please look into the workspace and say what is there."
FIRST: Final = "I will look around first, and then tell you all that there is to be told."
LAST: Final = "That is all there is here: I have looked into every corner of it, twice."
AFTER: Final = "Gone on with, and done."
MORE: Final = "And look once more, please."
_HOUR: Final = 3_600_000
_LONGER_THAN_ANYBODY_WAITS: Final = 700_000
_MOMENT: Final = 10.0
_SILENCES: Final = 5
_DISK: Final = 64 << 20
_FILL: Final = "mkdir big; head -c 40000000 /dev/zero > big/1; head -c 40000000 /dev/zero > big/2"


_TAKE_OVER: Final = """
import http.client, sys
thread, token, epoch, body = sys.argv[1:]
headers = {"authorization": "Bearer " + token, "content-type": "application/json"}
headers.update({"producer-id": "run", "producer-epoch": epoch, "producer-seq": "0"})
api = http.client.HTTPConnection("127.0.0.1", 3128, timeout=30)
api.request("POST", "/v1/stream/threads/" + thread, body, headers)
print(api.getresponse().status)
"""


class NoKeys:
    """For tokens of runs, which need none."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        return None

    async def get_key(self, id: str) -> ApiKey | None:
        return None

    async def list_keys(self) -> list[ApiKey]:
        return []

    async def add_key(self, key: ApiKey, digest: bytes) -> None: ...

    async def revoke_key(self, id: str, at: int) -> bool:
        return False


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
    KILL_DRIVER = "kill driver"
    """Where there is a program of ours between the runner and the agent."""
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
    REFUSED = "401 for ever"
    LIMITED = "429 for ever"
    BROKEN = "500 for ever"
    CUT = "stream cut"
    SILENT_RUNNER = "silent runner"
    """It stands still, and so says nothing for longer than anybody waits."""
    CANCEL = "cancel"
    PROMPT = "prompt queued"
    """No fault: somebody asks for more while the run is at work."""
    KILL_BOX = "kill box"
    """Process 1 of the machine in a cloud. On this machine that is the guest."""
    DELETED_THERE = "deleted there"
    """Somebody else deletes the box at its cloud."""
    CONNECTION_CUT = "connection cut"
    """Every connection between the server and the cloud is lost."""
    CONTROL_PLANE_AWAY = "control plane away"
    """Until the run has ended. Streams that are open go on."""
    CLOUD_AWAY = "cloud away"
    """Connections are lost, and the cloud cannot be reached for a minute."""


BY_PROVIDER: Final = {Fault.REFUSED: 401, Fault.LIMITED: 429, Fault.BROKEN: 500}
SURVIVED: Final = frozenset(
    {
        Fault.KILL_SERVER,
        Fault.STOP_SERVER,
        Fault.NETWORK_AWAY,
        Fault.TOKEN_EXPIRED,
        Fault.CLOCK_BACK,
        Fault.CUT,
        Fault.PROMPT,
        Fault.CONNECTION_CUT,
        Fault.CONTROL_PLANE_AWAY,
        Fault.CLOUD_AWAY,
    }
)
"""The run goes on as if nothing had been."""


PATIENT: Final = frozenset({Fault.LIMITED, Fault.BROKEN})
"""Agents ask again, some of them for more than a minute."""
CUTTING: Final = frozenset({Fault.KILL_SERVER, Fault.STOP_SERVER, Fault.CUT, Fault.CONNECTION_CUT, Fault.CLOUD_AWAY})
"""An answer of the model may be cut off: the agent asks again, and is told again what it has in part already."""
DRIVEN: Final = frozenset({"codex", "opencode"})
BY_PROCESS: Final = frozenset(
    {Fault.KILL_AGENT, Fault.KILL_DRIVER, Fault.TERMINATE_AGENT, Fault.KILL_RUNNER, Fault.KILL_GUEST}
)
"""Which strike at a process: it has to be found from outside."""


OF_CLOUDS: Final = frozenset(
    {Fault.KILL_BOX, Fault.DELETED_THERE, Fault.CONNECTION_CUT, Fault.CONTROL_PLANE_AWAY, Fault.CLOUD_AWAY}
)
OF_THIS_MACHINE: Final = frozenset({Fault.DISK_FULL, *BY_PROVIDER})
"""Clouds limit no disks. What a model answers is between the agent and the gateway, wherever the box is."""
LOCAL: Final = "local"
CLOUDS: Final = ("daytona", "sprites", "modal")
AT_CLOUDS: Final = ("pi", "claude")
"""The agents that are struck at clouds too."""


def moments(provider: str, agent: str, fault: Fault) -> tuple[Moment, ...]:
    """At which it can strike."""
    if fault in (OF_CLOUDS if provider == LOCAL else OF_THIS_MACHINE):
        return ()
    if fault is Fault.KILL_DRIVER and agent not in DRIVEN:
        return ()
    if fault in BY_PROVIDER:
        return (Moment.LAUNCH, Moment.END)  # its first question is answered so, or its last
    if fault is Fault.CUT:
        return (Moment.STREAM, Moment.END)
    if fault in (Fault.PROMPT, Fault.SILENT_RUNNER):
        return (Moment.STREAM, Moment.TOOL)
    return tuple(Moment)


def expected(fault: Fault, moment: Moment) -> frozenset[str]:
    """How the run may end."""
    if fault in SURVIVED:
        if moment is Moment.LAUNCH and fault in (Fault.KILL_SERVER, Fault.STOP_SERVER):
            # Whether its runner was there already is a race. Where it was not: one that is killed tells nothing, and
            # the next server finds out; one that is stopped says so itself.
            return frozenset({"completed", "orphaned" if fault is Fault.KILL_SERVER else "failed"})
        return frozenset({"completed"})
    if fault in (Fault.KILL_AGENT, Fault.KILL_DRIVER, Fault.TERMINATE_AGENT) or fault in BY_PROVIDER:
        return frozenset({"failed"})
    if fault is Fault.CANCEL:
        return frozenset({"cancelled"})
    if fault in (Fault.DELETE_BOX, Fault.DISK_FULL, Fault.DELETED_THERE, Fault.KILL_BOX):
        # All that runs in the box is killed, one after the other: a runner may live to tell of its agent's end.
        return frozenset({"orphaned", "failed"})
    return frozenset({"orphaned"})


@dataclass(frozen=True, slots=True)
class Cell:
    provider: str
    agent: str
    fault: Fault
    moment: Moment

    @property
    def column(self) -> str:
        return self.agent if self.provider == LOCAL else f"{self.agent}, {self.provider}"

    @property
    def names(self) -> tuple[str, str, str]:
        return self.column, self.fault.value, self.moment.value

    @property
    def resumes_afresh(self) -> bool:
        """Whether its thread goes on in a new box. Otherwise it goes on in the old one, if there is one."""
        return self.moment is Moment.END and self.fault in (Fault.CANCEL, Fault.KILL_AGENT)

    def __str__(self) -> str:
        return f"{self.provider}-{self.agent}-{self.fault}-{self.moment}".replace(" ", "_")


def cells() -> list[Cell]:
    """All of them."""
    columns = [(LOCAL, agent) for agent in MODEL] + [(cloud, agent) for cloud in CLOUDS for agent in AT_CLOUDS]
    return [
        Cell(provider, agent, fault, moment)
        for provider, agent in columns
        for fault in Fault
        for moment in moments(provider, agent, fault)
    ]


@dataclass
class Reader:
    """Somebody who follows a thread by its live tail: what it was shown is acknowledged, and must stay."""

    client: Client
    thread: str
    run: str
    seen: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Until the end of the run has been shown, whatever becomes of the server meanwhile."""
        task = asyncio.create_task(self._follow())
        try:
            yield
            await asyncio.wait_for(asyncio.shield(task), PATIENCE)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        async with self.client.thread(self.thread).tail() as tail:
            async for entry in tail:
                self.seen.append(entry.id)
                if entry.id == end_id(self.run):
                    return


@dataclass
class World:
    """A server on a home with the agents, and a model that does as it is told."""

    server: ServerProcess
    clocks: ShiftedClocks
    model: ScriptedModel
    client: Client
    key: str
    """Of the client: it outlives the server."""
    provider: str
    cloud: Cloud | None
    """Where the boxes are, unless they are local."""


@asynccontextmanager
async def open_world(folder: Path, agents: InstalledAgents, provider: str) -> AsyncIterator[World]:
    home = folder / "home"
    agents.share_with(home)
    clocks = ShiftedClocks(folder / "clocks")
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ScriptedModel(key="sk-of-the-model"))
        cloud = None if provider == LOCAL else await stack.enter_async_context(open_cloud(provider, folder, agents))
        settings = {} if cloud is None else dict(cloud.settings)
        server = await stack.enter_async_context(ServerProcess(home, clocks=clocks, provider_settings=settings))
        async with Client(server.url, api_key=server.api_key) as first:
            key = (await first.keys.create("faults")).secret
        assert key is not None
        client = await stack.enter_async_context(Client(server.url, api_key=key))
        world = World(server, clocks, model, client, key, provider, cloud)
        for name, api in (
            ("chat", Api.OPENAI_CHAT),
            ("responses", Api.OPENAI_RESPONSES),
            ("anthropic", Api.ANTHROPIC),
        ):
            base_url = model.url if name == "anthropic" else model.openai_url
            await client.models.add(name, apis=[api], base_url=base_url, model="scripted", key="sk-of-the-model")
        yield world
        async for box in client.boxes.list():
            await client.boxes.delete(box.id)


_GATES: Final[dict[Moment, Point]] = {
    Moment.LAUNCH: "start", Moment.STREAM: 3, Moment.TOOL: "end", Moment.END: "end"
}  # fmt: skip
MODEL: Final = {"pi": "chat", "claude": "anthropic", "codex": "responses", "opencode": "chat"}


class Struck:
    """One cell, from launch to resume."""

    def __init__(self, world: World, cell: Cell) -> None:
        self.world = world
        self.cell = cell
        self.marker = f"[{cell}]"
        self.gate = Gate(_GATES[cell.moment])
        self.thread = ""
        self.run = ""
        self.box = ""
        self.queued = ""
        """The run for a prompt that waited for the end of the first one."""
        self._recovery = contextlib.ExitStack()
        """Ends what goes on until the run has ended."""

    # --- the script ---

    def steps(self) -> list[Step]:
        fault, moment = self.cell.fault, self.cell.moment
        command = "echo looked"
        if moment is Moment.TOOL:
            fill = f"{_FILL}; " if fault is Fault.DISK_FULL else ""
            command = f"echo begun > begun; {fill}while [ ! -e go ]; do sleep 0.05; done; echo looked"
        first, last = Step(text=FIRST, calls=(Bash(command),)), Step(text=LAST)
        if (status := BY_PROVIDER.get(fault)) is not None:
            error = Step(error=status, message="as scripted", times=FOR_EVER, headers={"retry-after": "0"})
            return [error] if moment is Moment.LAUNCH else [first, error]
        if fault is Fault.CUT:
            cut = Step(text=FIRST, calls=(Bash(command),), cut=3)
            return [cut, first, last] if moment is Moment.STREAM else [first, Step(text=LAST, cut=3), last]
        if moment is not Moment.TOOL:
            held = Step(text=FIRST, calls=(Bash(command),), gates=(self.gate,))
            if moment is Moment.END:
                return [first, Step(text=LAST, gates=(self.gate,))]
            if fault in (Fault.KILL_SERVER, Fault.STOP_SERVER):
                return [held, first, last]  # the question that was lost with the server is asked again
            return [held, last]
        return [first, last]

    # --- its life ---

    async def launch(self) -> None:
        then = AFTER if self.cell.fault is Fault.PROMPT else LAST
        self.world.model.script([*self.steps(), Step(text=then, times=FOR_EVER)], when=self.marker)
        box: dict[str, Any] = {"provider": self.world.provider}
        if self.cell.fault is Fault.DISK_FULL:
            box["disk"] = _DISK
        launched = await self.world.client.runs.launch(
            f"{PROMPT} {self.marker}", agent=self.cell.agent, model=MODEL[self.cell.agent], box=box
        )
        self.thread, self.run = launched.thread, launched.run

    async def reach_moment(self) -> None:
        """Until the run stands where it is to be struck."""
        fault, moment = self.cell.fault, self.cell.moment
        if fault in BY_PROVIDER or fault is Fault.CUT:
            return
        if moment is Moment.LAUNCH and fault in (Fault.KILL_SERVER, Fault.STOP_SERVER):
            return
        await self.until(self._is_there, "the run never came so far")
        self.box = str((await self.world.client.runs.get(self.run)).box)

    async def _is_there(self) -> bool:
        if self.cell.moment is not Moment.TOOL and self.gate.is_reached:
            return True
        run = await self.world.client.runs.get(self.run)
        assert run.live, run.error
        if self.cell.moment is not Moment.TOOL or run.box is None:
            return False
        async with await self.world.client.boxes.open(run.box) as opened:
            return await opened.files.exists("begun")

    async def go_on(self) -> None:
        """Let go on what was held, where it still can. A run that is cancelled ends while it is held."""
        if self.cell.fault is Fault.CANCEL:
            self._recovery.callback(self.gate.release)
            return
        self.gate.release()
        if self.cell.moment is Moment.TOOL and self.box:
            if self.cell.fault in SURVIVED:
                await self.until(self._let_go, "the command of the agent cannot be let go on")
            else:
                await self._let_go()

    async def _let_go(self) -> bool:
        with contextlib.suppress(HoldfastError, BoxError):
            async with await self.world.client.boxes.open(self.box) as box:
                await box.files.write("go", b"")
            return True
        return False

    async def until(
        self,
        holds: Callable[[], Awaitable[bool]],
        otherwise: str,
        seconds: float = PATIENCE,
        between: float = 0.05,
    ) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not await holds():
            if asyncio.get_running_loop().time() >= deadline:
                raise TimeoutError(otherwise)
            await asyncio.sleep(between)

    # --- what strikes it ---

    async def strike(self) -> None:
        world = self.world
        match self.cell.fault:
            case Fault.KILL_AGENT:
                await self._end(self.agents(), signal.SIGKILL)
            case Fault.KILL_DRIVER:
                await self._end(self.started(), signal.SIGKILL)
            case Fault.TERMINATE_AGENT:
                await self._end(self.agents(), signal.SIGTERM)
            case Fault.KILL_RUNNER:
                _send([self.runner()], signal.SIGKILL)
            case Fault.KILL_GUEST:
                _send([self.guest()], signal.SIGKILL)
            case Fault.KILL_BOX:
                _send([guest_of(self.runner())], signal.SIGKILL)
            case Fault.SILENT_RUNNER:
                _send([self.runner()], signal.SIGSTOP)
            case Fault.CANCEL:
                await world.client.runs.cancel(self.run)
            case Fault.PROMPT:
                steered = await world.client.runs.steer(self.run, f"{MORE} {self.marker}")
                assert steered.how == "queued"
            case Fault.DELETED_THERE:
                await self.cloud.delete(self.box)
            case Fault.CONNECTION_CUT:
                await self.cloud.cut()
            case Fault.CONTROL_PLANE_AWAY:
                self._recovery.enter_context(self.cloud.control_plane_away())
                world.clocks.pass_time(60_000)
            case Fault.CLOUD_AWAY:
                with self.cloud.away():
                    await self.cloud.cut()
                    world.clocks.pass_time(60_000)
                    self.gate.release()
                    await self._is_looked_for()
            case Fault.DELETE_BOX:
                await world.client.boxes.delete(self.box)
            case Fault.KILL_SERVER:
                await asyncio.to_thread(world.server.kill)
                await asyncio.to_thread(world.server.start)
            case Fault.STOP_SERVER:
                await asyncio.to_thread(world.server.restart)
            case Fault.NETWORK_AWAY:
                os.kill(world.server.pid, signal.SIGSTOP)
                try:
                    world.clocks.pass_time(60_000)
                    self.gate.release()
                    await asyncio.sleep(0.5)  # the fault itself: for so long nothing goes through
                finally:
                    os.kill(world.server.pid, signal.SIGCONT)
            case Fault.TOKEN_EXPIRED:
                world.clocks.jump(2 * _HOUR)
            case Fault.CLOCK_BACK:
                world.clocks.jump(-24 * _HOUR)
            case Fault.SECOND_RUNNER:
                await self._take_over()
            case Fault.DISK_FULL:
                await self._fill_disk()
            case _:
                pass

    @property
    def cloud(self) -> Cloud:
        assert self.world.cloud is not None
        return self.world.cloud

    async def _is_looked_for(self) -> None:
        """The server is made to ask what became of the run, and more than once: it must not conclude anything."""
        for _ in range(2):
            run = await self.world.client.runs.get(self.run)
            assert run.live, run.error

    async def _end(self, processes: list[int], number: int) -> None:
        """Gone before they are let go on, which they might not live to see."""
        _send(processes, number)

        async def gone() -> bool:
            return not set(processes) & set(self.processes())

        await self.until(gone, "the agent outlives its signal")

    async def _fill_disk(self) -> None:
        """By the agent's own tool or from beside it, until nothing runs in the box any more: it is over its limit."""
        if self.cell.moment is not Moment.TOOL:
            async with await self.world.client.boxes.open(self.box) as box:
                with contextlib.suppress(BoxError):  # it ends with all the rest
                    await box.exec(["sh", "-c", _FILL], timeout=PATIENCE)

        async def gone() -> bool:
            return not self.processes()

        await self.until(gone, "the box is over its limit, and its processes go on")

    async def _take_over(self) -> None:
        """A second runner of the same run appends in a later epoch, from the same box."""
        secret = bytes.fromhex((self.world.server.home / "secret").read_text().strip())
        access = Access(NoKeys(), secret, clock=self.world.clocks.clocks().now)
        agent = self.cell.agent.partition(":")[0]
        async with await self.world.client.boxes.open(self.box) as box:
            for epoch in range(3, 100):
                issued = access.issue_run(self.thread, self.run, epoch, self.box, RunScope.RUNNER, agent=agent)
                entry = {"id": f"{self.run}-{epoch}-1", "payload": {"type": f"{agent}.notice", "text": "taken over"}}
                told = [self.thread, issued.token, str(epoch), json.dumps([entry])]
                if (await box.exec(["python3", "-c", _TAKE_OVER, *told], timeout=PATIENCE)).text.strip() == "200":
                    return
        raise AssertionError("the thread could not be taken over")

    def processes(self, run: str | None = None) -> list[int]:
        """On this machine, of this run."""
        return marked(f"HOLDFAST_RUN={run or self.run}".encode())

    def started(self) -> list[int]:
        """What the runner started, and nothing that those started."""
        runner = self.runner()
        return [pid for pid in self.processes() if _parent(pid) == runner]

    def agents(self) -> list[int]:
        """The agent itself, and none of its tools: it is the agent who deals with a signal."""
        started = self.started()
        if self.cell.agent not in DRIVEN:
            return started
        return [pid for pid in self.processes() if _parent(pid) in started]

    def runner(self) -> int:
        """The parent of what it marked, which is itself not marked."""
        marked = set(self.processes())
        [runner] = {_parent(pid) for pid in marked} - marked - {0}  # 0: of one that is gone by now
        return runner

    def guest(self) -> int:
        """Process 1 of a local box. In a cloud, the first of our own processes in the box."""
        runner = self.runner()
        if self.world.cloud is None:
            return guest_of(runner)
        mark, guest = f"box={self.box}".encode(), 0
        pid = runner
        while pid := _parent(pid):
            if mark in _words(pid):
                guest = pid
        return guest

    # --- afterwards ---

    async def settle(self) -> None:
        """Until the run has ended, of itself or because somebody asks after it who may force the question."""
        # Who is silent is so for long enough; more than once, as the last words of some come late.
        speaks = self.cell.fault in SURVIVED or self.cell.fault in BY_PROVIDER or self.cell.fault is Fault.CANCEL
        silences = 0 if speaks else _SILENCES
        silence = _LONGER_THAN_ANYBODY_WAITS if self.cell.fault is Fault.SILENT_RUNNER else 10_000

        async def ended() -> bool:
            nonlocal silences
            if silences:
                silences -= 1
                self.world.clocks.pass_time(silence)
            return not (await self.world.client.runs.get(self.run)).live

        try:
            await self.until(ended, "the run never ended", between=0.2)
        finally:
            self._recovery.close()

    async def end_of_queued(self) -> RunInfo:
        """The run that a waiting prompt got, once it has ended."""

        async def launched() -> bool:
            latest = await self.world.client.runs.get(self.thread)
            self.queued = latest.id
            return latest.id != self.run

        await self.until(launched, "the prompt that waited got no run")
        return await asyncio.wait_for(self.world.client.runs.wait(self.queued), PATIENCE)

    async def resume(self) -> RunInfo:
        """Go on from the thread, and be done."""
        if self.cell.fault is Fault.DISK_FULL:
            async with await self.world.client.boxes.open(self.box) as opened:
                await opened.files.delete(
                    "big", recursive=True
                )  # nothing goes on in a full box: somebody has to make room
        self.world.model.script([Step(text=AFTER, times=FOR_EVER)], when=self.marker)
        launched = await self.world.client.runs.resume(
            self.thread, f"Go on, please. {self.marker}", fresh=self.cell.resumes_afresh
        )
        return await asyncio.wait_for(self.world.client.runs.wait(launched.run), PATIENCE)

    async def left_behind(self, resumed: RunInfo) -> list[str]:
        """Processes of either run, those in the box that nobody marked, bridges of servers that are gone, and boxes
        that are not the thread's.
        """
        runs = [each for each in (self.run, self.queued, resumed.id) if each]
        left = [f"process {pid} of {run}" for run in runs for pid in self.processes(run)]
        if self.world.cloud is not None and len(found := bridges(str(resumed.box))) > 1:
            left.append(f"bridges {found}")
        boxes = self.world.client.boxes
        async for each in boxes.list():
            if each.owner.thread == self.thread and each.id != resumed.box:
                left.append(f"box {each.id}")
        async with await boxes.open(str(resumed.box)) as box:
            if processes := (await box.metrics()).processes:
                left.append(f"{processes} processes in box {box.id}")
        return left

    async def nothing_left_behind(self, resumed: RunInfo) -> None:
        left: list[str] = []

        async def nothing() -> bool:
            nonlocal left
            left = await self.left_behind(resumed)
            return not left

        with contextlib.suppress(TimeoutError):
            await self.until(nothing, "", _MOMENT)  # a runner that has told the end needs a moment to be gone itself
        assert left == []

    async def entries(self) -> list[dict[str, Any]]:
        """All there are, live text too."""
        found: list[dict[str, Any]] = []
        headers = {"authorization": f"Bearer {self.world.key}"}
        async with httpx.AsyncClient(base_url=self.world.server.url, headers=headers, timeout=240) as client:
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


def marked(mark: bytes) -> list[int]:
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


def _words(pid: int) -> list[bytes]:
    """The command of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def bridges(box: str) -> list[int]:
    """Processes in a box at a cloud that carry requests to its guest."""
    words = {int(each.name): _words(int(each.name)) for each in os.scandir("/proc") if each.name.isdigit()}
    guests = {pid for pid, of_it in words.items() if f"box={box}".encode() in of_it and b"start" in of_it}
    namespaces = {_namespace(pid) for pid in guests} - {""}
    joined = [pid for pid, of_it in words.items() if b"join" in of_it and b"-c" not in of_it]
    return [pid for pid in joined if _namespace(pid) in namespaces]


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def guest_of(pid: int) -> int:
    """Process 1 of the box that a process is in."""
    namespace = os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    while (parent := _parent(pid)) and os.readlink(f"/proc/{parent}/ns/pid") == namespace:  # noqa: PTH115
        pid = parent
    return pid
