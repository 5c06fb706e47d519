"""The contract of a box: a machine with its own lifecycle.

`holdfast.testing.provider_suite` tests implementations against it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Literal, Self

from holdfast.api.box.files import Files
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.process import MAX_OUTPUT, Channel, Completed, Connection, Process, ProcessInfo, Sink
from holdfast.api.box.records import Preview, Step
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import Unsupported

Wake = Callable[[], Awaitable[bool]]
"""Wakes a sleeping box when a handle needs it. Returns whether the box was woken."""


class Power(StrEnum):
    """Whether a box runs, as its provider reports it."""

    RUNNING = "running"
    PAUSED = "paused"
    """Its processes are frozen."""
    STOPPED = "stopped"


class Liveness(StrEnum):
    LIVE = "live"
    """The box exists, running or stopped."""
    GONE = "gone"
    """The box does not exist and will not come back."""
    UNKNOWN = "unknown"
    """The provider cannot tell now, for example because of a network failure."""


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
    """The snapshot that the box was restored from."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a box uses now. A field is None if the provider cannot measure it."""

    processes: int
    """Processes running in the box, not counting the guest."""
    connections: int
    """Open execs, channels and streams."""
    idle_seconds: float
    """Time since the last process or connection ended. 0 while there is one."""
    memory: int | None = None
    """Bytes."""
    cpu_seconds: float | None = None
    disk: int | None = None
    """Bytes on disk."""
    out_of_memory: int | None = None
    """How often the box ran out of memory."""
    listening: int | None = None
    """Ports that processes in the box listen on, not counting the proxy's."""
    sent: int | None = None
    """Bytes sent to the network since the server started."""
    received: int | None = None
    outgoing: int | None = None
    """Open connections to the network."""
    work_seconds: float | None = None
    """CPU time of all processes of the box, past and present, not counting the guest. Never decreases while it runs."""


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit that the box exceeded, so that processes in it were killed."""

    name: Literal["disk", "memory"]
    """The name of the option that raises the limit."""
    detail: str


@dataclass(frozen=True, slots=True)
class Deleted:
    freed: int
    """Bytes freed on disk."""


class Box(ABC):
    """A handle to a box. The caller closes it, usually with `async with`. The box itself lives until it is deleted."""

    id: str
    info: BoxInfo
    """As of when this handle was created."""
    files: Files
    tools: str | None = None
    """Path in the box of the programs that its host provides (`holdfast.harnesses.installation`), if any."""

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
        """Run a command and wait for it. Kills its process group if the call is cancelled or times out.

        `stdin` is the whole input, or a stream of it. `env` is added to the environment of the box.
        Raises `CannotExecute`, `ExecTimeout` or `OutputTooLarge`.
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
        """Start a command in the background. It keeps running and its output is kept after the caller disconnects.

        With `tree`, all descendants of the command are killed when it exits, including those that left its process
        group, and `wait` returns only after that.
        """

    async def python(self) -> tuple[str, ...]:
        """Returns the command that starts Python 3.9 or newer in this box, for Holdfast's own code.

        The image of the box does not need to contain a Python.
        """
        raise Unsupported(f"provider {self.info.provider} has no Python for Holdfast's code in a box")

    @abstractmethod
    async def process(self, id: str) -> Process:
        """Returns a process that any caller spawned in this box. Raises `ProcessNotFound`."""

    @abstractmethod
    async def processes(self) -> list[ProcessInfo]:
        """Returns all processes spawned in this box, oldest first."""

    @abstractmethod
    async def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Channel:
        """Start a command and connect to its stdin and stdout."""

    # --- ports ---

    @abstractmethod
    async def connect(self, port: int) -> Connection:
        """Connect to a port in the box. Raises `ConnectRefused` if nothing listens on it."""

    @abstractmethod
    async def preview(self, port: int) -> Preview:
        """Returns the URL at which a browser reaches a port of the box."""

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Change what the box may reach. Takes effect immediately."""
        raise Unsupported(f"provider {self.info.provider} does not support network-live")

    async def open_guest_api(self) -> str:
        """Let processes in the box use the guest API, under any network policy. Returns its URL inside the box.

        The API stays open until the box or the server stops. Opening it twice has no effect.
        """
        raise Unsupported(f"boxes of provider {self.info.provider} cannot reach Holdfast", hint="use another provider")

    # --- lifecycle ---

    @abstractmethod
    async def power(self) -> Power:
        """Raises `BoxGone`."""

    @abstractmethod
    async def stop(self) -> None:
        """End every process and keep the files. Does nothing if the box is stopped."""

    @abstractmethod
    async def start(self) -> None:
        """Start a stopped box with its files, or resume a paused one. Does nothing if the box runs."""

    async def pause(self) -> None:
        """Freeze every process until `start`. Calls to a paused box wait or fail."""
        raise Unsupported(f"provider {self.info.provider} does not support pause")

    @abstractmethod
    async def delete(self) -> Deleted:
        """Delete the box and its files. Snapshots and volumes stay. Deleting twice has no effect."""

    @abstractmethod
    async def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Save the files of the box as they are now. Processes keep running."""

    @abstractmethod
    async def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> Box:
        """Create another box with the same spec and files."""

    # --- inspecting ---

    @abstractmethod
    async def metrics(self) -> Metrics: ...

    async def activity(self) -> Metrics:
        """Returns the metrics that are cheap to read, without `disk` for example. Called often, for many boxes."""
        return await self.metrics()

    async def limits_hit(self) -> list[LimitHit]:
        """Returns the limits for which processes in the box were killed, if the provider knows. Wakes no box."""
        return []

    @abstractmethod
    async def ping(self) -> list[Step]:
        """Test the connection to the box step by step and time each step. Stops at the first failure."""

    @abstractmethod
    async def close(self) -> None:
        """Close this handle. The box keeps running."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
