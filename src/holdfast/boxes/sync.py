"""The sync twins of providers and boxes: the async ones, run on a private event loop.

Works without an event loop, inside a running one (which it blocks, as any sync call does) and in notebooks. Callbacks
for output are called on the thread of that loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from holdfast.boxes.box import Box, BoxInfo, Deleted, LimitHit, Liveness, Metrics, Power, Preview, Step
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.files import FileInfo, Files, Match, Replaced
from holdfast.boxes.network_policy import NetworkPolicy
from holdfast.boxes.process import (
    MAX_OUTPUT,
    Channel,
    Chunk,
    Completed,
    Connection,
    Process,
    ProcessInfo,
    Sink,
    Stream,
)
from holdfast.boxes.provider import Provider, Swept, Volume
from holdfast.boxes.snapshots import Snapshot
from holdfast.boxes.spec import BoxSpec
from holdfast.loop_thread import LoopThread

T = TypeVar("T")
ConnectionT = TypeVar("ConnectionT", bound=Connection)

_END: Final = object()


class SyncIterator(Generic[T]):
    """An async iterator, for `for`. Left before its end, it is closed with `with`, `close`, or when it is forgotten."""

    def __init__(self, pieces: AsyncIterator[T], loop: LoopThread) -> None:
        self._pieces = pieces
        self._loop = loop

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        # StopAsyncIteration cannot cross a future, so the end is a value.
        piece = self._loop.run(_next(self._pieces))
        if piece is _END:
            raise StopIteration
        return piece  # type: ignore[return-value]

    def close(self) -> None:
        self._loop.run(_close(self._pieces))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _next(pieces: AsyncIterator[T]) -> T | object:
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        return _END


async def _close(pieces: object) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


async def _pieces(data: Iterable[bytes]) -> AsyncIterator[bytes]:
    """A sync iterable for async code. It may block, so it is asked on a thread of its own."""
    iterator = iter(data)
    while (piece := await asyncio.to_thread(next, iterator, None)) is not None:
        yield piece


class SyncProvider:
    """A provider and its boxes, for code without `await`. Safe to share between threads; `with` opens and closes it."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._loop = LoopThread()

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._provider.capabilities

    @property
    def snapshot_kind(self) -> str:
        return self._provider.snapshot_kind

    def open(self) -> None:
        """Get ready. Raises `CannotIsolate` where this machine does not let us."""
        self._loop.run(self._provider.open())

    def close(self) -> None:
        """Let go of the provider and of the event loop. Boxes and their processes go on."""
        try:
            self._loop.run(self._provider.close())
        finally:
            self._loop.close()

    def check_usable(self) -> None:
        """Raise what keeps this provider from working here at all, if anything does."""
        self._provider.check_usable()

    def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Make a box and start it."""
        return self._box(self._loop.run(self._provider.create(spec, id=id, labels=labels)))

    def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Make a box that begins with a snapshot's files."""
        return self._box(self._loop.run(self._provider.restore(snapshot, spec, id=id, labels=labels)))

    def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> SyncBox:
        """Make a box that was made ahead somebody's."""
        return self._box(self._loop.run(self._provider.hand_over(id, spec, labels=labels, created_at=created_at)))

    def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        """All boxes with these labels, the oldest first."""
        return self._loop.run(self._provider.find(labels))

    def attach(self, id: str) -> SyncBox:
        """A handle on a box, running or stopped."""
        return self._box(self._loop.run(self._provider.attach(id)))

    def probe(self, id: str) -> Liveness:
        """Whether the box is there."""
        return self._loop.run(self._provider.probe(id))

    def remove(self, id: str) -> int:
        """Delete a box by id; says how many bytes that freed."""
        return self._loop.run(self._provider.remove(id))

    def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        """All snapshots with these labels, the oldest first."""
        return self._loop.run(self._provider.snapshots(labels))

    def snapshot(self, id: str) -> Snapshot:
        return self._loop.run(self._provider.snapshot(id))

    def delete_snapshot(self, id: str) -> int:
        """Forget a snapshot; says how many bytes that freed."""
        return self._loop.run(self._provider.delete_snapshot(id))

    def export_snapshot(self, id: str) -> SyncIterator[bytes]:
        """The snapshot by value, as a stream that `import_snapshot` takes."""
        return SyncIterator(self._provider.export_snapshot(id), self._loop)

    def import_snapshot(self, stream: Iterable[bytes]) -> Snapshot:
        return self._loop.run(self._provider.import_snapshot(_pieces(stream)))

    def create_volume(self, name: str) -> Volume:
        return self._loop.run(self._provider.create_volume(name))

    def volumes(self) -> list[Volume]:
        return self._loop.run(self._provider.volumes())

    def delete_volume(self, name: str) -> int:
        """Says how many bytes that freed."""
        return self._loop.run(self._provider.delete_volume(name))

    def sweep(self, keep: Collection[str] | None = None) -> Swept:
        """Remove what something that died halfway left behind."""
        return self._loop.run(self._provider.sweep(keep))

    def diagnose(self, id: str | None = None) -> list[Step]:
        return self._loop.run(self._provider.diagnose(id))

    def _box(self, box: Box) -> SyncBox:
        return SyncBox(box, self._loop)

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncBox:
    """A handle on a box. Closing the handle (`with` does) lets go of it; the box lives on until it is deleted.

    `loop` is the loop that the box was made on, and is its owner's to close.
    """

    def __init__(self, box: Box, loop: LoopThread) -> None:
        self._box = box
        self._loop = loop
        self.files = SyncFiles(box.files, loop)

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def info(self) -> BoxInfo:
        """As of when this handle was made."""
        return self._box.info

    @property
    def spec(self) -> BoxSpec:
        return self._box.spec

    @property
    def labels(self) -> Mapping[str, str]:
        return self._box.labels

    def __repr__(self) -> str:
        return f"<SyncBox {self.id} of {self.info.provider}>"

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: bytes | Iterable[bytes] = b"",
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Completed:
        """Run a command to its end. It and its group are killed when the call is interrupted or times out."""
        running = self._box.exec(
            argv,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin if isinstance(stdin, bytes) else _pieces(stdin),
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            max_output=max_output,
        )
        return self._loop.run(running)

    def spawn(
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
    ) -> SyncProcess:
        """Start a command that needs nobody: it goes on, and its output is kept, whoever comes and goes."""
        spawning = self._box.spawn(argv, env=env, cwd=cwd, stdin=stdin, pty=pty, rows=rows, columns=columns, tree=tree)
        return SyncProcess(self._loop.run(spawning), self._loop)

    def python(self) -> tuple[str, ...]:
        """What runs our own code in this box."""
        return self._loop.run(self._box.python())

    def process(self, id: str) -> SyncProcess:
        """A process that was spawned in this box, by whomever."""
        return SyncProcess(self._loop.run(self._box.process(id)), self._loop)

    def processes(self) -> list[ProcessInfo]:
        """All that were spawned in this box, the oldest first."""
        return self._loop.run(self._box.processes())

    def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> SyncChannel:
        """Start a command and talk to it: bytes to its stdin, bytes from its stdout."""
        return SyncChannel(self._loop.run(self._box.channel(argv, env=env, cwd=cwd)), self._loop)

    def connect(self, port: int) -> SyncConnection[Connection]:
        """A connection to a port that something in the box listens on."""
        return SyncConnection(self._loop.run(self._box.connect(port)), self._loop)

    def preview(self, port: int) -> Preview:
        """Where a browser finds that port."""
        return self._loop.run(self._box.preview(port))

    def set_network(self, policy: NetworkPolicy) -> None:
        """Change what the box may reach, from now on."""
        self._loop.run(self._box.set_network(policy))

    def open_door(self) -> str:
        """Let what runs in the box ask Holdfast itself: returns the URL in the box."""
        return self._loop.run(self._box.open_door())

    def power(self) -> Power:
        return self._loop.run(self._box.power())

    def stop(self) -> None:
        """End every process. Files stay."""
        self._loop.run(self._box.stop())

    def start(self) -> None:
        """Start a stopped box on its files, or let a paused one go on."""
        self._loop.run(self._box.start())

    def pause(self) -> None:
        """Hold every process, until `start`."""
        self._loop.run(self._box.pause())

    def delete(self) -> Deleted:
        """Remove the box and everything of its own. Snapshots and volumes stay."""
        return self._loop.run(self._box.delete())

    def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Keep the files as they are now. Running processes go on."""
        return self._loop.run(self._box.snapshot(labels=labels))

    def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Another box with the same spec and files."""
        return SyncBox(self._loop.run(self._box.fork(id=id, labels=labels)), self._loop)

    def metrics(self) -> Metrics:
        return self._loop.run(self._box.metrics())

    def activity(self) -> Metrics:
        """The metrics without what takes long to find out, such as `disk`."""
        return self._loop.run(self._box.activity())

    def limits_hit(self) -> list[LimitHit]:
        """The limits that ended processes in the box, as far as the provider knows."""
        return self._loop.run(self._box.limits_hit())

    def ping(self) -> list[Step]:
        """The path to the box and through it, step by step, each timed."""
        return self._loop.run(self._box.ping())

    def close(self) -> None:
        """Let go of this handle. The box lives on."""
        self._loop.run(self._box.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncProcess:
    """A spawned process. It and its output outlive this object."""

    def __init__(self, process: Process, loop: LoopThread) -> None:
        self._process = process
        self._loop = loop

    @property
    def id(self) -> str:
        return self._process.id

    @property
    def argv(self) -> tuple[str, ...]:
        return self._process.argv

    @property
    def pty(self) -> bool:
        return self._process.pty

    def info(self) -> ProcessInfo:
        return self._loop.run(self._process.info())

    def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        """What is there from `offset` on, at most `limit` bytes; empty where nothing (more) is, yet."""
        return self._loop.run(self._process.read(stream, offset, limit))

    def output(self, stream: Stream = "stdout", offset: int = 0) -> SyncIterator[Chunk]:
        """Everything from `offset` on, as it comes, until the process has ended and all was read."""
        return SyncIterator(self._process.output(stream, offset), self._loop)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises `TimeoutError` (the process goes on), or `ProcessLost`."""
        return self._loop.run(self._process.wait(timeout))

    def write(self, data: bytes) -> None:
        """Bytes for its stdin."""
        self._loop.run(self._process.write(data))

    def close_stdin(self) -> None:
        self._loop.run(self._process.close_stdin())

    def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        self._loop.run(self._process.signal(number))

    def resize(self, rows: int, columns: int) -> None:
        self._loop.run(self._process.resize(rows, columns))

    def kill(self) -> None:
        self._loop.run(self._process.kill())


class SyncConnection(Generic[ConnectionT]):
    """Bytes both ways. `with` closes it."""

    def __init__(self, connection: ConnectionT, loop: LoopThread) -> None:
        self._connection = connection
        self._loop = loop

    def read(self, limit: int = 1 << 16) -> bytes:
        """Some bytes; empty at the end."""
        return self._loop.run(self._connection.read(limit))

    def write(self, data: bytes) -> None:
        self._loop.run(self._connection.write(data))

    def close_write(self) -> None:
        """Tell the other side that nothing more comes."""
        self._loop.run(self._connection.close_write())

    def close(self) -> None:
        self._loop.run(self._connection.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncChannel(SyncConnection[Channel]):
    """Stdin and stdout of a process that lives as long as this channel is open. Closing it kills the process."""

    def wait(self) -> int:
        """The exit code."""
        return self._loop.run(self._connection.wait())

    @property
    def stderr(self) -> bytes:
        """The last 64 KB of what it printed there."""
        return self._connection.stderr


class SyncFiles:
    """Files of a box. Relative paths start at the box's workdir."""

    def __init__(self, files: Files, loop: LoopThread) -> None:
        self._files = files
        self._loop = loop

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The file, or a part of it."""
        return self._loop.run(self._files.read(path, offset=offset, length=length))

    def stream(self, path: str, *, offset: int = 0) -> SyncIterator[bytes]:
        """The file, piece by piece."""
        return SyncIterator(self._files.stream(path, offset=offset), self._loop)

    def write(self, path: str, data: bytes | Iterable[bytes], *, mode: int = 0o644) -> None:
        """Write the whole file, or nothing of it."""
        given = data if isinstance(data, bytes) else _pieces(data)
        self._loop.run(self._files.write(path, given, mode=mode))

    def list(self, path: str = ".") -> Sequence[FileInfo]:
        """What is in a folder, sorted by name."""
        return self._loop.run(self._files.list(path))

    def stat(self, path: str) -> FileInfo:
        return self._loop.run(self._files.stat(path))

    def exists(self, path: str) -> bool:
        return self._loop.run(self._files.exists(path))

    def mkdir(self, path: str) -> None:
        """Make the folder and those above it."""
        self._loop.run(self._files.mkdir(path))

    def move(self, source: str, target: str) -> None:
        self._loop.run(self._files.move(source, target))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self._loop.run(self._files.delete(path, recursive=recursive))

    def chmod(self, path: str, mode: int) -> None:
        self._loop.run(self._files.chmod(path, mode))

    def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10_000) -> Sequence[FileInfo]:
        """Everything below a folder whose name, or path from there, matches a glob."""
        return self._loop.run(self._files.find(path, pattern, limit=limit))

    def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1_000
    ) -> Sequence[Match]:
        """Lines with a text (or a regular expression) in the text files below a folder."""
        return self._loop.run(self._files.search(pattern, path, glob=glob, regex=regex, limit=limit))

    def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        """Replace a text (or a regular expression) in these files; says where how often."""
        return self._loop.run(self._files.replace(pattern, replacement, paths, regex=regex))

    def upload(self, source: Path, path: str) -> None:
        """Put a file or folder of this machine into the box, as `path`."""
        self._loop.run(self._files.upload(source, path))

    def download(self, path: str, target: Path) -> None:
        """Bring a file or folder of the box to this machine, as `target`, which must not exist yet."""
        self._loop.run(self._files.download(path, target))

    def upload_tar(self, archive: Iterable[bytes], path: str) -> None:
        """Unpack a tar archive, as it comes, into a folder."""
        self._loop.run(self._files.upload_tar(_pieces(archive), path))

    def download_tar(self, path: str) -> SyncIterator[bytes]:
        """A file or folder as a tar archive."""
        return SyncIterator(self._files.download_tar(path), self._loop)
