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
        """The kind of snapshot that `restore` takes."""
        return self._async.snapshot_kind

    @property
    def isolation(self) -> str:
        """What keeps its boxes apart from the machine, in a few words for people."""
        return self._async.isolation

    @property
    def images(self) -> SyncImageStore | None:
        """Where it keeps images, if it does."""
        return None if self._async.images is None else SyncImageStore._wrap(self._async.images, self)

    @property
    def edition(self) -> str:
        """Of what its boxes are made with now, beside images. One made ahead with another edition is out of date."""
        return self._async.edition

    def open(self) -> None:
        """Get ready. Raises `CannotIsolate` where this machine does not let us."""
        self._loop.run(self._async.open())

    def close(self) -> None:
        """Let go. Boxes and their processes go on."""
        self._end(self._async.close)

    def check_usable(self) -> None:
        """Raise what keeps this provider from working here at all, if anything does: before a row is written."""
        self._async.check_usable()

    def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Make a box and start it. Refuses what it cannot do before anything is made; what fails leaves nothing.

        `labels` are kept with the box beside those of its spec.
        """
        return SyncBox._wrap(self._loop.run(self._async.create(spec, id=id, labels=labels)), self)

    def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Make a box that begins with a snapshot's files. Raises `SnapshotNotFound`, `WrongSnapshot`."""
        return SyncBox._wrap(self._loop.run(self._async.restore(snapshot, spec, id=id, labels=labels)), self)

    def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> SyncBox:
        """Make a box that was made ahead, and labelled `POOL`, somebody's: these are its spec and labels from now on.

        The spec has the same hash. Only one of those who ask gets it: the others are told `BoxConflict`. What died
        halfway leaves the box either in the pool or handed over. `BoxStopped` and `BoxUnreachable` say that it is the
        asker's, and not alive: to be removed. To be taken out of the pool for any other purpose, it is handed over
        too; labels with `POOL` in them leave it there.
        """
        return SyncBox._wrap(
            self._loop.run(self._async.hand_over(id, spec, labels=labels, created_at=created_at)), self
        )

    def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        """All boxes with these labels, the oldest first: by `created_at`, and of one millisecond by their ids."""
        return self._loop.run(self._async.find(labels))

    def attach(self, id: str, *, wake: Wake | None = None) -> SyncBox:
        """A handle on a box, running or stopped. Raises `BoxNotFound`, `BoxGone`, `BoxUnreachable`.

        `wake` is called once by the handle, before it answers what is asked of it with `BoxStopped`.
        """
        return SyncBox._wrap(self._loop.run(self._async.attach(id, wake=wake)), self)

    def probe(self, id: str) -> Liveness:
        """Whether the box is there. Never raises for a box that cannot be reached: that is `unknown`."""
        return self._loop.run(self._async.probe(id))

    def remove(self, id: str) -> int:
        """Delete a box by id, whole or half made; says how many bytes that freed. One that is not there is fine."""
        return self._loop.run(self._async.remove(id))

    def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        """All snapshots with these labels, the oldest first."""
        return self._loop.run(self._async.snapshots(labels))

    def snapshot(self, id: str) -> Snapshot:
        """Raises `SnapshotNotFound`."""
        return self._loop.run(self._async.snapshot(id))

    def delete_snapshot(self, id: str) -> int:
        """Forget a snapshot; says how many bytes that freed. Data that something else refers to stays.

        Raises `SnapshotNotFound`.
        """
        return self._loop.run(self._async.delete_snapshot(id))

    def export_snapshot(self, id: str) -> SyncIterator[bytes]:
        """The snapshot by value, as a stream that `import_snapshot` takes."""
        return SyncIterator._wrap(self._async.export_snapshot(id), self)

    def import_snapshot(self, stream: Iterable[bytes]) -> Snapshot:
        """Raises `WrongSnapshot` where the stream is not one, or of another kind."""
        return self._loop.run(self._async.import_snapshot(feed(stream)))

    def create_volume(self, name: str) -> Volume:
        """Raises `VolumeExists`."""
        return self._loop.run(self._async.create_volume(name))

    def volumes(self) -> list[Volume]:
        return self._loop.run(self._async.volumes())

    def delete_volume(self, name: str) -> int:
        """Says how many bytes that freed. Raises `VolumeNotFound`, `VolumeInUse`."""
        return self._loop.run(self._async.delete_volume(name))

    def sweep(self, keep: Collection[str] | None = None) -> Swept:
        """Remove what something that died halfway left behind. With `keep`, also every box that is not among these ids.

        Never touches what another process is making right now.
        """
        return self._loop.run(self._async.sweep(keep))

    def diagnose(self, id: str | None = None) -> list[Step]:
        """What works and what does not, of the provider, or of one of its boxes, with the next step per failure."""
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
        """As of when this handle was made."""
        return self._async.info

    @property
    def files(self) -> SyncFiles:
        return SyncFiles._wrap(self._async.files, self)

    @property
    def tools(self) -> str | None:
        """Where it sees the programs that its machine has for boxes (`holdfast.harnesses.installation`), if it does."""
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
        """Run a command to its end. It and its group are killed when the call is cancelled or times out.

        `stdin` is all of its input, or pieces of it as they come. `env` is added to the box's own. Raises
        `CannotExecute`, `ExecTimeout`, `OutputTooLarge`.
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
        """Start a command that needs nobody: it goes on, and its output is kept, whoever comes and goes.

        With `tree`, its end is that of everything it started, wherever that went: what is left of it is killed, and
        only then has it ended for who waits.
        """
        return SyncProcess._wrap(
            self._loop.run(
                self._async.spawn(argv, env=env, cwd=cwd, stdin=stdin, pty=pty, rows=rows, columns=columns, tree=tree)
            ),
            self,
        )

    def python(self) -> tuple[str, ...]:
        """What runs our own code in this box: a Python of at least 3.9, as the first words of a command. The box's own
        programs need have none.
        """
        return self._loop.run(self._async.python())

    def process(self, id: str) -> SyncProcess:
        """A process that was spawned in this box, by whomever. Raises `ProcessNotFound`."""
        return SyncProcess._wrap(self._loop.run(self._async.process(id)), self)

    def processes(self) -> list[ProcessInfo]:
        """All that were spawned in this box, the oldest first."""
        return self._loop.run(self._async.processes())

    def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> SyncChannel:
        """Start a command and talk to it: bytes to its stdin, bytes from its stdout."""
        return SyncChannel._wrap(self._loop.run(self._async.channel(argv, env=env, cwd=cwd)), self)

    def connect(self, port: int) -> SyncConnection:
        """A connection to a port that something in the box listens on. Raises `ConnectRefused`."""
        return SyncConnection._wrap(self._loop.run(self._async.connect(port)), self)

    def preview(self, port: int) -> Preview:
        """Where a browser finds that port."""
        return self._loop.run(self._async.preview(port))

    def set_network(self, policy: NetworkPolicy) -> None:
        """Change what the box may reach, from now on."""
        self._loop.run(self._async.set_network(policy))

    def open_guest_api(self) -> str:
        """Open the guest API to what runs in the box, whatever its network policy is. Returns its URL in the box.

        It lasts until the box stops, or its server does. Opening it again is fine.
        """
        return self._loop.run(self._async.open_guest_api())

    def power(self) -> Power:
        """Raises `BoxGone`."""
        return self._loop.run(self._async.power())

    def stop(self) -> None:
        """End every process. Files stay. A stopped box stays stopped."""
        self._loop.run(self._async.stop())

    def start(self) -> None:
        """Start a stopped box on its files, or let a paused one go on. One that runs goes on running."""
        self._loop.run(self._async.start())

    def pause(self) -> None:
        """Hold every process, until `start`. What asks the box for something meanwhile waits, or is refused."""
        self._loop.run(self._async.pause())

    def delete(self) -> Deleted:
        """Remove the box and everything of its own. Snapshots and volumes stay. Deleting twice is fine."""
        return self._loop.run(self._async.delete())

    def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Keep the files as they are now. Running processes go on."""
        return self._loop.run(self._async.snapshot(labels=labels))

    def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Another box with the same spec and files."""
        return SyncBox._wrap(self._loop.run(self._async.fork(id=id, labels=labels)), self)

    def metrics(self) -> Metrics:
        return self._loop.run(self._async.metrics())

    def activity(self) -> Metrics:
        """The metrics without what takes long to find out, such as `disk`. Asked often, of many boxes."""
        return self._loop.run(self._async.activity())

    def limits_hit(self) -> list[LimitHit]:
        """The limits that ended processes in the box, as far as the provider knows. Wakes no box."""
        return self._loop.run(self._async.limits_hit())

    def ping(self) -> list[Step]:
        """The path to the box and through it, step by step, each timed. Stops at the first step that fails."""
        return self._loop.run(self._async.ping())

    def close(self) -> None:
        """Let go of this handle. The box lives on."""
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
        """What is there from `offset` on, at most `limit` bytes; empty where nothing (more) is, yet."""
        return self._loop.run(self._async.read(stream, offset, limit))

    def output(self, stream: Stream = "stdout", offset: int = 0) -> SyncIterator[Chunk]:
        """Everything from `offset` on, as it comes, until the process has ended and all was read."""
        return SyncIterator._wrap(self._async.output(stream, offset), self)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises `TimeoutError` (the process goes on), or `ProcessLost` where nobody saw the end."""
        return self._loop.run(self._async.wait(timeout))

    def write(self, data: bytes) -> None:
        """Bytes for its stdin. Only where it was spawned with `stdin=True` or a pty."""
        self._loop.run(self._async.write(data))

    def close_stdin(self) -> None:
        self._loop.run(self._async.close_stdin())

    def signal(self, number: int) -> None:
        """Send a signal to the process and its group. One that has ended takes no notice."""
        self._loop.run(self._async.signal(number))

    def resize(self, rows: int, columns: int) -> None:
        self._loop.run(self._async.resize(rows, columns))

    def kill(self) -> None:
        self._loop.run(self._async.kill())


class SyncConnection(SyncHandle):
    """`Connection` for code without `await`."""

    _async: Connection

    def read(self, limit: int = 1 << 16) -> bytes:
        """Some bytes; empty at the end."""
        return self._loop.run(self._async.read(limit))

    def write(self, data: bytes) -> None:
        self._loop.run(self._async.write(data))

    def close_write(self) -> None:
        """Tell the other side that nothing more comes."""
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
        """The exit code."""
        return self._loop.run(self._async.wait())

    @property
    def stderr(self) -> bytes:
        """The last 64 KB of what it printed there."""
        return self._async.stderr


class SyncFiles(SyncHandle):
    """`Files` for code without `await`."""

    _async: Files

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The file, or a part of it. Raises `OutputTooLarge` beyond `MAX_READ`."""
        return self._loop.run(self._async.read(path, offset=offset, length=length))

    def stream(self, path: str, *, offset: int = 0) -> SyncIterator[bytes]:
        """The file, piece by piece."""
        return SyncIterator._wrap(self._async.stream(path, offset=offset), self)

    def write(self, path: str, data: bytes | Iterable[bytes], *, mode: int = 420) -> None:
        """Write the whole file, or nothing of it: readers see the old one until the new one is complete.

        Folders on the way are made.
        """
        self._loop.run(self._async.write(path, feed(data), mode=mode))

    def list(self, path: str = ".") -> Sequence[FileInfo]:
        """What is in a folder, sorted by name."""
        return self._loop.run(self._async.list(path))

    def stat(self, path: str) -> FileInfo:
        """Does not follow a link at the end of the path."""
        return self._loop.run(self._async.stat(path))

    def exists(self, path: str) -> bool:
        return self._loop.run(self._async.exists(path))

    def mkdir(self, path: str) -> None:
        """Make the folder and those above it. One that is there is fine."""
        self._loop.run(self._async.mkdir(path))

    def move(self, source: str, target: str) -> None:
        """Rename, replacing a file that is at the target. A folder there is never replaced."""
        self._loop.run(self._async.move(source, target))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, a link, an empty folder; with `recursive`, a folder and all in it. Never follows links."""
        self._loop.run(self._async.delete(path, recursive=recursive))

    def chmod(self, path: str, mode: int) -> None:
        self._loop.run(self._async.chmod(path, mode))

    def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10000) -> Sequence[FileInfo]:
        """Everything below a folder whose name, or path from there, matches a glob. Sorted; links are not followed."""
        return self._loop.run(self._async.find(path, pattern, limit=limit))

    def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1000
    ) -> Sequence[Match]:
        """Lines with a text (or a regular expression) in the text files below a folder."""
        return self._loop.run(self._async.search(pattern, path, glob=glob, regex=regex, limit=limit))

    def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        """Replace a text (or a regular expression) in these files, each whole or not at all; says where how often."""
        return self._loop.run(self._async.replace(pattern, replacement, paths, regex=regex))

    def upload(self, source: Path, path: str) -> None:
        """Put a file or folder of this machine into the box, as `path`."""
        self._loop.run(self._async.upload(source, path))

    def download(self, path: str, target: Path) -> None:
        """Bring a file or folder of the box to this machine, as `target`, which must not exist yet.

        What would land outside of it, and things that are no files, folders or links, are refused: `HostileArchive`.
        """
        self._loop.run(self._async.download(path, target))

    def upload_tar(self, archive: Iterable[bytes], path: str) -> None:
        """Unpack a tar archive, as it comes, into a folder."""
        self._loop.run(self._async.upload_tar(feed(archive), path))

    def download_tar(self, path: str) -> SyncIterator[bytes]:
        """A file or folder as a tar archive. The bytes are the box's: whoever unpacks them has to distrust them."""
        return SyncIterator._wrap(self._async.download_tar(path), self)


class SyncImageStore(SyncHandle):
    """`ImageStore` for code without `await`."""

    _async: ImageStore

    @property
    def takes_pulled(self) -> bool:
        """Whether Holdfast pulls images for it (`import_pulled`). False where the provider pulls them by itself."""
        return self._async.takes_pulled

    def list(self) -> list[Image]:
        """By name."""
        return self._loop.run(self._async.list())

    def get(self, name: str) -> Image:
        return self._loop.run(self._async.get(name))

    def import_archive(self, name: str, archive: Iterable[bytes]) -> Image:
        """Import an archive from a stream: a root filesystem tarball, an OCI layout or what `docker save` writes, as
        tar, plain or compressed. An existing name moves to the new image.

        Raises `HostileArchive`, and leaves nothing behind then.
        """
        return self._loop.run(self._async.import_archive(name, feed(archive)))

    def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        """Name a snapshot's files as an image. They are shared, not copied. Without a config: that of its image."""
        return self._loop.run(self._async.from_snapshot(snapshot, name, config=config, labels=labels))

    def remove(self, name: str) -> int:
        """Forget a name; says how many bytes that freed. Layers that something else refers to stay."""
        return self._loop.run(self._async.remove(name))

    def import_pulled(self, name: str, archive: Iterable[bytes], digest: str) -> Image:
        """Import an OCI layout that was pulled from a registry, and keep the digest it has there: `Image.pulled`."""
        return self._loop.run(self._async.import_pulled(name, feed(archive), digest))
