"""Providers and boxes for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.boxes.process import MAX_OUTPUT
from holdfast.sync_twin import SyncHandle, SyncIterator, SyncOwner, feed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from holdfast.api.box_spec import BoxSpec
    from holdfast.api.boxes import Preview, Step
    from holdfast.api.files import FileInfo, Match, Replaced
    from holdfast.api.images import Image, ImageConfig
    from holdfast.api.network import NetworkPolicy
    from holdfast.api.processes import ProcessInfo
    from holdfast.api.snapshots import Snapshot, Volume
    from holdfast.boxes.box import Box, BoxInfo, Deleted, LimitHit, Liveness, Metrics, Power, Wake
    from holdfast.boxes.capabilities import Capability
    from holdfast.boxes.files import Files
    from holdfast.boxes.images import ImageStore
    from holdfast.boxes.process import Channel, Chunk, Completed, Connection, Process, Sink, Stream
    from holdfast.boxes.provider import Provider, Swept


class SyncProvider(SyncOwner):
    """`Provider` for code without `await`."""

    _async: Provider

    def __init__(self, provider: Provider) -> None:
        self._own(lambda: provider)

    @property
    def name(self) -> str:
        return self._async.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._async.capabilities

    @property
    def snapshot_kind(self) -> str:
        """The kind of snapshot that `restore` accepts."""
        return self._async.snapshot_kind

    @property
    def isolation(self) -> str:
        """A short description of what isolates its boxes from the machine."""
        return self._async.isolation

    @property
    def images(self) -> SyncImageStore | None:
        """Its image store, if it has one."""
        return None if self._async.images is None else SyncImageStore._wrap(self._async.images, self)

    @property
    def edition(self) -> str:
        """Version of what new boxes are created with, apart from images. A pooled box of another is out of date."""
        return self._async.edition

    def open(self) -> None:
        """Prepare the provider for use. Raises `CannotIsolate` if this machine does not allow sandboxes."""
        self._loop.run(self._async.open())

    def close(self) -> None:
        """Release the provider's resources. Boxes and their processes keep running."""
        self._end(self._async.close)

    def check_usable(self) -> None:
        """Raises an error if this provider cannot work on this machine. Called before a row is written."""
        self._async.check_usable()

    def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Create a box and start it. A failure leaves nothing behind.

        Raises `Unsupported` before it creates anything. `labels` are stored in addition to those of the spec.
        """
        return SyncBox._wrap(self._loop.run(self._async.create(spec, id=id, labels=labels)), self)

    def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Create a box with the files of a snapshot. Raises `SnapshotNotFound` or `WrongSnapshot`."""
        return SyncBox._wrap(self._loop.run(self._async.restore(snapshot, spec, id=id, labels=labels)), self)

    def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> SyncBox:
        """Hand over a pooled box (one labelled `POOL`): give it this spec, which has the same hash, and these labels.

        If several callers ask for the same box, one gets it and the others get `BoxConflict`. The change is atomic: an
        interruption leaves the box either in the pool or handed over. `BoxStopped` and `BoxUnreachable` mean that the
        caller got the box, but that it is dead and has to be removed. A box leaves the pool only in this way, whatever
        the purpose; labels that include `POOL` keep it in the pool.
        """
        return SyncBox._wrap(
            self._loop.run(self._async.hand_over(id, spec, labels=labels, created_at=created_at)), self
        )

    def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        """Returns all boxes with these labels, oldest first: ordered by `created_at`, then by id."""
        return self._loop.run(self._async.find(labels))

    def attach(self, id: str, *, wake: Wake | None = None) -> SyncBox:
        """Returns a handle to a box, running or stopped. Raises `BoxNotFound`, `BoxGone` or `BoxUnreachable`.

        The handle calls `wake` once before a method raises `BoxStopped`.
        """
        return SyncBox._wrap(self._loop.run(self._async.attach(id, wake=wake)), self)

    def probe(self, id: str) -> Liveness:
        """Returns whether the box exists. Returns `unknown`, and does not raise, if the box cannot be reached."""
        return self._loop.run(self._async.probe(id))

    def remove(self, id: str) -> int:
        """Delete a box, even one that was only partly created. Returns the bytes freed: 0 if there was no such box."""
        return self._loop.run(self._async.remove(id))

    def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        """Returns all snapshots with these labels, oldest first."""
        return self._loop.run(self._async.snapshots(labels))

    def snapshot(self, id: str) -> Snapshot:
        """Raises `SnapshotNotFound`."""
        return self._loop.run(self._async.snapshot(id))

    def delete_snapshot(self, id: str) -> int:
        """Delete a snapshot. Returns the bytes freed. Data that is still in use stays.

        Raises `SnapshotNotFound`.
        """
        return self._loop.run(self._async.delete_snapshot(id))

    def export_snapshot(self, id: str) -> SyncIterator[bytes]:
        """Yields the snapshot as a stream that `import_snapshot` accepts."""
        return SyncIterator._wrap(self._async.export_snapshot(id), self)

    def import_snapshot(self, stream: Iterable[bytes]) -> Snapshot:
        """Raises `WrongSnapshot` if the stream is not a snapshot, or one of another kind."""
        return self._loop.run(self._async.import_snapshot(feed(stream)))

    def create_volume(self, name: str) -> Volume:
        """Raises `VolumeExists`."""
        return self._loop.run(self._async.create_volume(name))

    def volumes(self) -> list[Volume]:
        return self._loop.run(self._async.volumes())

    def delete_volume(self, name: str) -> int:
        """Returns the bytes freed. Raises `VolumeNotFound` or `VolumeInUse`."""
        return self._loop.run(self._async.delete_volume(name))

    def sweep(self, keep: Collection[str] | None = None) -> Swept:
        """Remove what interrupted operations left behind. With `keep`, also remove every box not listed there.

        Never touches what another process is creating now.
        """
        return self._loop.run(self._async.sweep(keep))

    def diagnose(self, id: str | None = None) -> list[Step]:
        """Check the provider, or one of its boxes. Each failed step has a hint on what to do next."""
        return self._loop.run(self._async.diagnose(id))

    def __enter__(self) -> Self:
        self._enter(self._async.__aenter__())
        return self

    def _leave(self) -> None:
        self.close()


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


class SyncImageStore(SyncHandle):
    """`ImageStore` for code without `await`."""

    _async: ImageStore

    @property
    def takes_pulled(self) -> bool:
        """Whether Holdfast pulls images for it (`import_pulled`). False where the provider pulls them by itself."""
        return self._async.takes_pulled

    def list(self) -> list[Image]:
        """Returns all images, sorted by name."""
        return self._loop.run(self._async.list())

    def get(self, name: str) -> Image:
        return self._loop.run(self._async.get(name))

    def import_archive(self, name: str, archive: Iterable[bytes]) -> Image:
        """Import a root filesystem, an OCI layout or the output of `docker save`, as a tar stream, optionally
        compressed. An existing name moves to the new image.

        Raises `HostileArchive`, and then leaves nothing behind.
        """
        return self._loop.run(self._async.import_archive(name, feed(archive)))

    def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        """Create an image from a snapshot. Files are shared, not copied. `config` defaults to that of its image."""
        return self._loop.run(self._async.from_snapshot(snapshot, name, config=config, labels=labels))

    def remove(self, name: str) -> int:
        """Remove a name. Returns the bytes freed. Layers that are still in use stay."""
        return self._loop.run(self._async.remove(name))

    def import_pulled(self, name: str, archive: Iterable[bytes], digest: str) -> Image:
        """Import an OCI layout from a registry, and record its digest there in `Image.pulled`."""
        return self._loop.run(self._async.import_pulled(name, feed(archive), digest))
