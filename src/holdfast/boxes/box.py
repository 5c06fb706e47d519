"""The contract of a box: a machine with a lifecycle of its own.

`holdfast.testing.provider_suite` is this file as tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Literal, Self

from holdfast.api.box_spec import BoxSpec
from holdfast.api.boxes import Preview as Preview
from holdfast.api.boxes import Step as Step
from holdfast.api.network import NetworkPolicy
from holdfast.api.processes import ProcessInfo
from holdfast.api.snapshots import Snapshot
from holdfast.boxes.errors import Unsupported
from holdfast.boxes.files import Files
from holdfast.boxes.process import MAX_OUTPUT, Channel, Completed, Connection, Process, Sink

Wake = Callable[[], Awaitable[bool]]
"""Wakes a box that sleeps, for what is asked of a handle on it. Returns whether the box was woken."""


class Power(StrEnum):
    """What a provider knows of a box."""

    RUNNING = "running"
    PAUSED = "paused"
    """Its processes are held."""
    STOPPED = "stopped"


class Liveness(StrEnum):
    LIVE = "live"
    """It is there, running or stopped."""
    GONE = "gone"
    """It is not there and will not come back."""
    UNKNOWN = "unknown"
    """Nobody can say now: a network blip never kills a real box."""


@dataclass(frozen=True, slots=True)
class BoxInfo:
    """A box as its provider describes it."""

    id: str
    provider: str
    spec: BoxSpec
    labels: Mapping[str, str]
    power: Power
    created_at: int
    snapshot: str | None = None
    """The snapshot that its files began as."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a box uses now. None where the provider cannot tell."""

    processes: int
    """Running in the box, the guest not counted."""
    connections: int
    """Execs, channels and streams that somebody holds open."""
    idle_seconds: float
    """Since the last process or connection ended; 0 while there is one."""
    memory: int | None = None
    """Bytes."""
    cpu_seconds: float | None = None
    disk: int | None = None
    """Bytes on disk."""
    out_of_memory: int | None = None
    """How often the box ran out of memory."""
    listening: int | None = None
    """Ports that something in the box listens on, the proxy's not counted."""
    sent: int | None = None
    """Bytes to the network, since the server started."""
    received: int | None = None
    outgoing: int | None = None
    """Connections to the network that it has open."""
    work_seconds: float | None = None
    """Processor time of what runs in the box and of what ran, its guest's not counted. Only grows while it runs."""


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit that a box ran into, for which processes in it were ended."""

    name: Literal["disk", "memory"]
    """As the option is called that raises it."""
    detail: str


@dataclass(frozen=True, slots=True)
class Deleted:
    freed: int
    """Bytes that are free again."""


class Box(ABC):
    """A handle on a box. Closing the handle (`async with` does) lets go of it; the box lives on until it is deleted."""

    id: str
    info: BoxInfo
    """As of when this handle was made."""
    files: Files
    tools: str | None = None
    """Where it sees the programs that its machine has for boxes (`holdfast.harnesses.installation`), if it does."""

    @property
    def spec(self) -> BoxSpec:
        return self.info.spec

    @property
    def labels(self) -> Mapping[str, str]:
        return self.info.labels

    def __repr__(self) -> str:
        return f"<Box {self.id} of {self.info.provider}>"

    # --- processes ---

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Completed:
        """Run a command to its end. It and its group are killed when the call is cancelled or times out.

        `stdin` is all of its input, or pieces of it as they come. `env` is added to the box's own. Raises
        `CannotExecute`, `ExecTimeout`, `OutputTooLarge`.
        """

    @abstractmethod
    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        tree: bool = False,
    ) -> Process:
        """Start a command that needs nobody: it goes on, and its output is kept, whoever comes and goes.

        With `tree`, its end is that of everything it started, wherever that went: what is left of it is killed, and
        only then has it ended for who waits.
        """

    async def python(self) -> tuple[str, ...]:
        """What runs our own code in this box: a Python of at least 3.9, as the first words of a command. The box's own
        programs need have none."""
        raise Unsupported(f"provider {self.info.provider} does not say here what runs code of ours in a box")

    @abstractmethod
    async def process(self, id: str) -> Process:
        """A process that was spawned in this box, by whomever. Raises `ProcessNotFound`."""

    @abstractmethod
    async def processes(self) -> list[ProcessInfo]:
        """All that were spawned in this box, the oldest first."""

    @abstractmethod
    async def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Channel:
        """Start a command and talk to it: bytes to its stdin, bytes from its stdout."""

    # --- ports ---

    @abstractmethod
    async def connect(self, port: int) -> Connection:
        """A connection to a port that something in the box listens on. Raises `ConnectRefused`."""

    @abstractmethod
    async def preview(self, port: int) -> Preview:
        """Where a browser finds that port."""

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Change what the box may reach, from now on."""
        raise Unsupported(f"provider {self.info.provider} has no network-live")

    async def open_guest_api(self) -> str:
        """Open the guest API to what runs in the box, whatever its network policy is. Returns its URL in the box.

        It lasts until the box stops, or its server does. Opening it again is fine.
        """
        raise Unsupported(
            f"nothing in a box of provider {self.info.provider} can reach Holdfast", hint="use another provider"
        )

    # --- lifecycle ---

    @abstractmethod
    async def power(self) -> Power:
        """Raises `BoxGone`."""

    @abstractmethod
    async def stop(self) -> None:
        """End every process. Files stay. A stopped box stays stopped."""

    @abstractmethod
    async def start(self) -> None:
        """Start a stopped box on its files, or let a paused one go on. One that runs goes on running."""

    async def pause(self) -> None:
        """Hold every process, until `start`. What asks the box for something meanwhile waits, or is refused."""
        raise Unsupported(f"provider {self.info.provider} has no pause")

    @abstractmethod
    async def delete(self) -> Deleted:
        """Remove the box and everything of its own. Snapshots and volumes stay. Deleting twice is fine."""

    @abstractmethod
    async def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Keep the files as they are now. Running processes go on."""

    @abstractmethod
    async def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> Box:
        """Another box with the same spec and files."""

    # --- looking at it ---

    @abstractmethod
    async def metrics(self) -> Metrics: ...

    async def activity(self) -> Metrics:
        """The metrics without what takes long to find out, such as `disk`. Asked often, of many boxes."""
        return await self.metrics()

    async def limits_hit(self) -> list[LimitHit]:
        """The limits that ended processes in the box, as far as the provider knows. Wakes no box."""
        return []

    @abstractmethod
    async def ping(self) -> list[Step]:
        """The path to the box and through it, step by step, each timed. Stops at the first step that fails."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of this handle. The box lives on."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
