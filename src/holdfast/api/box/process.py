"""Processes in a box: what `exec`, `spawn` and `channel` return, connections to ports, and the types of requests.

Times are UTC milliseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Annotated, Final, Literal, Self

from holdfast.api.document import Document, Limits
from holdfast.api.limits import Arguments, Base64, PathText, StrictBool, Variables

Stream = Literal["stdout", "stderr"]
Sink = Callable[[bytes], Awaitable[None] | None]
"""Receives output as it arrives. While it is busy, the output waits in the box, so buffers stay bounded."""

MAX_OUTPUT: Final = 64 * 1024 * 1024
"""The most bytes of each stream that `exec` collects without a sink."""


class ProcessState(StrEnum):
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"
    """Ended with its box, so its exit code is unknown."""


@dataclass(frozen=True, slots=True)
class ProcessInfo(Document):
    id: str
    argv: tuple[str, ...]
    pty: bool
    state: ProcessState
    exit_code: int | None
    started_at: int
    ended_at: int | None


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command that has ended."""

    exit_code: int
    """The exit code of the command, or 128 + N if signal N ended it."""
    stdout: bytes
    """Empty if a sink received it."""
    stderr: bytes

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """`stdout` decoded as UTF-8."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a process's output and its offset in the stream."""

    offset: int
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


class Process(ABC):
    """A spawned process. It and its output outlive this object; `box.process(id)` returns it again.

    With a pty, all output is in `stdout`. Of that, at least the last 256 MB are kept: older output reads as zeros, and
    `output` skips it where it can.
    """

    id: str
    argv: tuple[str, ...]
    pty: bool

    @abstractmethod
    async def info(self) -> ProcessInfo: ...

    @abstractmethod
    async def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Returns the available output from `offset`, at most `limit` bytes. Empty if there is none yet."""

    @abstractmethod
    def output(self, stream: Stream = "stdout", offset: int = 0) -> AsyncIterator[Chunk]:
        """Yields output from `offset` as it arrives, until the process has ended and all of it was read."""

    @abstractmethod
    async def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises `ProcessLost` if it is unknown. A `TimeoutError` does not end the process."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to stdin. Works only for processes spawned with `stdin=True` or a pty."""

    @abstractmethod
    async def close_stdin(self) -> None: ...

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the process group. Does nothing if the process has ended."""

    @abstractmethod
    async def resize(self, rows: int, columns: int) -> None: ...

    async def kill(self) -> None:
        await self.signal(9)


class Connection(ABC):
    """A byte stream in both directions, to a port or a process in a box.

    The caller that opens a connection closes it, usually with `async with`.
    """

    @abstractmethod
    async def read(self, limit: int = 1 << 16) -> bytes:
        """Returns some bytes, or none at the end of the stream."""

    @abstractmethod
    async def write(self, data: bytes) -> None: ...

    @abstractmethod
    async def close_write(self) -> None:
        """Signal the end of the data to the other side."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Channel(Connection):
    """A connection to the stdin and stdout of a process. Closing it kills the process."""

    @abstractmethod
    async def wait(self) -> int:
        """Wait for the process to end. Returns its exit code."""

    @property
    @abstractmethod
    def stderr(self) -> bytes:
        """The last 64 KB that the process wrote to stderr."""


# --- requests and responses ---

ExecSeconds = Annotated[float, Limits(gt=0, le=7 * 24 * 3600, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Document):
    argv: Arguments
    env: Variables = field(default_factory=dict)
    cwd: PathText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execute(Command):
    timeout: ExecSeconds | None = None
    """Seconds after which it is killed."""
    stdin: Base64 = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteFrames(Command):
    """The first frame of a WebSocket that a command runs through."""

    timeout: ExecSeconds | None = None
    stdin: str | None = None
    """Base64, and the command starts at once. None if frames bring it, up to an end frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed(Document):
    exit_code: int
    stdout: Base64
    stderr: Base64


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn(Command):
    stdin: StrictBool = False
    pty: StrictBool = False
    rows: Annotated[int, Limits(ge=1, le=10_000)] = 24
    columns: Annotated[int, Limits(ge=1, le=10_000)] = 80
    tree: StrictBool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessList(Document):
    processes: tuple[ProcessInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal(Document):
    number: Annotated[int, Limits(ge=1, le=64, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Document):
    rows: Annotated[int, Limits(ge=1, le=10_000, strict=True)]
    columns: Annotated[int, Limits(ge=1, le=10_000, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited(Document):
    exit_code: int | None
    """None if it has not ended yet."""
