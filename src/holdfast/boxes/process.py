"""Processes in a box: what an exec answers, what a spawn gives, and a channel of bytes to one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from holdfast.api.processes import ProcessInfo as ProcessInfo
from holdfast.api.processes import ProcessState as ProcessState

Stream = Literal["stdout", "stderr"]
Sink = Callable[[bytes], Awaitable[None] | None]
"""Takes output as it comes. What it takes its time for waits in the box: nothing is buffered without bound."""

MAX_OUTPUT: Final = 64 * 1024 * 1024
"""Bytes of each stream that `exec` collects where no sink takes them."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran to its end."""

    exit_code: int
    """Of the command; 128 + N where signal N ended it."""
    stdout: bytes
    """Empty where a sink took it."""
    stderr: bytes

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """What it printed, as text."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a process's output, with the place in the stream where it begins."""

    offset: int
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


class Process(ABC):
    """A spawned process. It and its output outlive this object; `box.process(id)` gives it again.

    With a pty, everything it prints is `stdout`.
    """

    id: str
    argv: tuple[str, ...]
    pty: bool

    @abstractmethod
    async def info(self) -> ProcessInfo: ...

    @abstractmethod
    async def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        """What is there from `offset` on, at most `limit` bytes; empty where nothing (more) is, yet."""

    @abstractmethod
    def output(self, stream: Stream = "stdout", offset: int = 0) -> AsyncIterator[Chunk]:
        """Everything from `offset` on, as it comes, until the process has ended and all was read."""

    @abstractmethod
    async def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises `TimeoutError` (the process goes on), or `ProcessLost` where nobody saw the end."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Bytes for its stdin. Only where it was spawned with `stdin=True` or a pty."""

    @abstractmethod
    async def close_stdin(self) -> None: ...

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group. One that has ended takes no notice."""

    @abstractmethod
    async def resize(self, rows: int, columns: int) -> None: ...

    async def kill(self) -> None:
        await self.signal(9)


class Connection(ABC):
    """Bytes both ways: to a port in a box, or to a process. Owned by who opened it; `async with` closes it."""

    @abstractmethod
    async def read(self, limit: int = 1 << 16) -> bytes:
        """Some bytes; empty at the end."""

    @abstractmethod
    async def write(self, data: bytes) -> None: ...

    @abstractmethod
    async def close_write(self) -> None:
        """Tell the other side that nothing more comes."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Channel(Connection):
    """Stdin and stdout of a process that lives as long as this channel is open. Closing it kills the process."""

    @abstractmethod
    async def wait(self) -> int:
        """The exit code."""

    @property
    @abstractmethod
    def stderr(self) -> bytes:
        """The last 64 KB of what it printed there."""
