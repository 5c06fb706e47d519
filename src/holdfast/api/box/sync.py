"""Boxes for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.api.box.process import MAX_OUTPUT
from holdfast.sync_twin import SyncHandle, SyncIterator, feed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from holdfast.api.box.box import Box, BoxInfo, Deleted, LimitHit, Metrics, Power
    from holdfast.api.box.files import FileInfo, Files, Match, Replaced
    from holdfast.api.box.network import NetworkPolicy
    from holdfast.api.box.process import Channel, Chunk, Completed, Connection, Process, ProcessInfo, Sink, Stream
    from holdfast.api.box.records import Preview, Step
    from holdfast.api.box.snapshots import Snapshot
    from holdfast.api.box.spec import BoxSpec


class SyncBox(SyncHandle):
    """`Box` for code without `await`."""

    _async: Box

    @property
    def id(self) -> str:
        return self._async.id

    @property
    def info(self) -> BoxInfo:
        """As of when this handle was created."""
        return self._async.info

    @property
    def files(self) -> SyncFiles:
        return SyncFiles._wrap(self._async.files, self)

    @property
    def tools(self) -> str | None:
        """Path in the box of the programs that its host provides (`holdfast.harnesses.installation`), if any."""
        return self._async.tools

    @property
    def spec(self) -> BoxSpec:
        return self._async.spec

    @property
    def labels(self) -> Mapping[str, str]:
        return self._async.labels

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
        """Run a command and wait for it. Kills its process group if the call is cancelled or times out.

        `stdin` is the whole input, or a stream of it. `env` is added to the environment of the box.
        Raises `CannotExecute`, `ExecTimeout` or `OutputTooLarge`.
        """
        return self._loop.run(
            self._async.exec(
                argv,
                env=env,
                cwd=cwd,
                timeout=timeout,
                stdin=feed(stdin),
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                max_output=max_output,
            )
        )

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
        """Start a command in the background. It keeps running and its output is kept after the caller disconnects.

        With `tree`, all descendants of the command are killed when it exits, including those that left its process
        group, and `wait` returns only after that.
        """
        return SyncProcess._wrap(
            self._loop.run(
                self._async.spawn(argv, env=env, cwd=cwd, stdin=stdin, pty=pty, rows=rows, columns=columns, tree=tree)
            ),
            self,
        )

    def python(self) -> tuple[str, ...]:
        """Returns the command that starts Python 3.9 or newer in this box, for Holdfast's own code.

        The image of the box does not need to contain a Python.
        """
        return self._loop.run(self._async.python())

    def process(self, id: str) -> SyncProcess:
        """Returns a process that any caller spawned in this box. Raises `ProcessNotFound`."""
        return SyncProcess._wrap(self._loop.run(self._async.process(id)), self)

    def processes(self) -> list[ProcessInfo]:
        """Returns all processes spawned in this box, oldest first."""
        return self._loop.run(self._async.processes())

    def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> SyncChannel:
        """Start a command and connect to its stdin and stdout."""
        return SyncChannel._wrap(self._loop.run(self._async.channel(argv, env=env, cwd=cwd)), self)

    def connect(self, port: int) -> SyncConnection:
        """Connect to a port in the box. Raises `ConnectRefused` if nothing listens on it."""
        return SyncConnection._wrap(self._loop.run(self._async.connect(port)), self)

    def preview(self, port: int) -> Preview:
        """Returns the URL at which a browser reaches a port of the box."""
        return self._loop.run(self._async.preview(port))

    def set_network(self, policy: NetworkPolicy) -> None:
        """Change what the box may reach. Takes effect immediately."""
        self._loop.run(self._async.set_network(policy))

    def open_guest_api(self) -> str:
        """Let processes in the box use the guest API, under any network policy. Returns its URL inside the box.

        The API stays open until the box or the server stops. Opening it twice has no effect.
        """
        return self._loop.run(self._async.open_guest_api())

    def power(self) -> Power:
        """Raises `BoxGone`."""
        return self._loop.run(self._async.power())

    def stop(self) -> None:
        """End every process and keep the files. Does nothing if the box is stopped."""
        self._loop.run(self._async.stop())

    def start(self) -> None:
        """Start a stopped box with its files, or resume a paused one. Does nothing if the box runs."""
        self._loop.run(self._async.start())

    def pause(self) -> None:
        """Freeze every process until `start`. Calls to a paused box wait or fail."""
        self._loop.run(self._async.pause())

    def delete(self) -> Deleted:
        """Delete the box and its files. Snapshots and volumes stay. Deleting twice has no effect."""
        return self._loop.run(self._async.delete())

    def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Save the files of the box as they are now. Processes keep running."""
        return self._loop.run(self._async.snapshot(labels=labels))

    def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Create another box with the same spec and files."""
        return SyncBox._wrap(self._loop.run(self._async.fork(id=id, labels=labels)), self)

    def metrics(self) -> Metrics:
        return self._loop.run(self._async.metrics())

    def activity(self) -> Metrics:
        """Returns the metrics that are cheap to read, without `disk` for example. Called often, for many boxes."""
        return self._loop.run(self._async.activity())

    def limits_hit(self) -> list[LimitHit]:
        """Returns the limits for which processes in the box were killed, if the provider knows. Wakes no box."""
        return self._loop.run(self._async.limits_hit())

    def ping(self) -> list[Step]:
        """Test the connection to the box step by step and time each step. Stops at the first failure."""
        return self._loop.run(self._async.ping())

    def close(self) -> None:
        """Close this handle. The box keeps running."""
        self._loop.run(self._async.close())

    def __enter__(self) -> Self:
        return self

    def _leave(self) -> None:
        self.close()


class SyncProcess(SyncHandle):
    """`Process` for code without `await`."""

    _async: Process

    @property
    def id(self) -> str:
        return self._async.id

    @property
    def argv(self) -> tuple[str, ...]:
        return self._async.argv

    @property
    def pty(self) -> bool:
        return self._async.pty

    def info(self) -> ProcessInfo:
        return self._loop.run(self._async.info())

    def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Returns the available output from `offset`, at most `limit` bytes. Empty if there is none yet."""
        return self._loop.run(self._async.read(stream, offset, limit))

    def output(self, stream: Stream = "stdout", offset: int = 0) -> SyncIterator[Chunk]:
        """Yields output from `offset` as it arrives, until the process has ended and all of it was read."""
        return SyncIterator._wrap(self._async.output(stream, offset), self)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises `ProcessLost` if it is unknown. A `TimeoutError` does not end the process."""
        return self._loop.run(self._async.wait(timeout))

    def write(self, data: bytes) -> None:
        """Write to stdin. Works only for processes spawned with `stdin=True` or a pty."""
        self._loop.run(self._async.write(data))

    def close_stdin(self) -> None:
        self._loop.run(self._async.close_stdin())

    def signal(self, number: int) -> None:
        """Send a signal to the process group. Does nothing if the process has ended."""
        self._loop.run(self._async.signal(number))

    def resize(self, rows: int, columns: int) -> None:
        self._loop.run(self._async.resize(rows, columns))

    def kill(self) -> None:
        self._loop.run(self._async.kill())


class SyncConnection(SyncHandle):
    """`Connection` for code without `await`."""

    _async: Connection

    def read(self, limit: int = 1 << 16) -> bytes:
        """Returns some bytes, or none at the end of the stream."""
        return self._loop.run(self._async.read(limit))

    def write(self, data: bytes) -> None:
        self._loop.run(self._async.write(data))

    def close_write(self) -> None:
        """Signal the end of the data to the other side."""
        self._loop.run(self._async.close_write())

    def close(self) -> None:
        self._loop.run(self._async.close())

    def __enter__(self) -> Self:
        return self

    def _leave(self) -> None:
        self.close()


class SyncChannel(SyncConnection):
    """`Channel` for code without `await`."""

    _async: Channel

    def wait(self) -> int:
        """Wait for the process to end. Returns its exit code."""
        return self._loop.run(self._async.wait())

    @property
    def stderr(self) -> bytes:
        """The last 64 KB that the process wrote to stderr."""
        return self._async.stderr


class SyncFiles(SyncHandle):
    """`Files` for code without `await`."""

    _async: Files

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Returns the file or a part of it. Raises `OutputTooLarge` beyond `MAX_READ`."""
        return self._loop.run(self._async.read(path, offset=offset, length=length))

    def stream(self, path: str, *, offset: int = 0) -> SyncIterator[bytes]:
        """Yields the file in chunks."""
        return SyncIterator._wrap(self._async.stream(path, offset=offset), self)

    def write(self, path: str, data: bytes | Iterable[bytes], *, mode: int = 420) -> None:
        """Write a file atomically: readers see the old content until the new one is complete.

        Creates missing parent folders.
        """
        self._loop.run(self._async.write(path, feed(data), mode=mode))

    def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Returns the contents of a folder, sorted by name."""
        return self._loop.run(self._async.list(path))

    def stat(self, path: str) -> FileInfo:
        """Does not follow a symbolic link at the end of the path."""
        return self._loop.run(self._async.stat(path))

    def exists(self, path: str) -> bool:
        return self._loop.run(self._async.exists(path))

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. Does nothing if the folder exists."""
        self._loop.run(self._async.mkdir(path))

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder. Replaces an existing file at the target, but never a folder."""
        self._loop.run(self._async.move(source, target))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, link or empty folder, or with `recursive` any folder. Never follows links."""
        self._loop.run(self._async.delete(path, recursive=recursive))

    def chmod(self, path: str, mode: int) -> None:
        self._loop.run(self._async.chmod(path, mode))

    def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10000) -> Sequence[FileInfo]:
        """Returns everything below a folder whose name or relative path matches a glob, sorted. Follows no links."""
        return self._loop.run(self._async.find(path, pattern, limit=limit))

    def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1000
    ) -> Sequence[Match]:
        """Returns lines that contain a string (or match a regular expression) in text files below a folder."""
        return self._loop.run(self._async.search(pattern, path, glob=glob, regex=regex, limit=limit))

    def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        """Replace a string (or a regular expression) in files, each atomically. Returns the number of replacements."""
        return self._loop.run(self._async.replace(pattern, replacement, paths, regex=regex))

    def upload(self, source: Path, path: str) -> None:
        """Copy a file or folder from this machine to `path` in the box."""
        self._loop.run(self._async.upload(source, path))

    def download(self, path: str, target: Path) -> None:
        """Copy a file or folder from the box to `target` on this machine, which must not exist.

        Raises `HostileArchive` for paths outside the target, and for anything but files, folders and links.
        """
        self._loop.run(self._async.download(path, target))

    def upload_tar(self, archive: Iterable[bytes], path: str) -> None:
        """Unpack a tar archive into a folder while it is received."""
        self._loop.run(self._async.upload_tar(feed(archive), path))

    def download_tar(self, path: str) -> SyncIterator[bytes]:
        """Yields a file or folder as a tar archive. The box controls the bytes, so unpack them with care."""
        return SyncIterator._wrap(self._async.download_tar(path), self)
