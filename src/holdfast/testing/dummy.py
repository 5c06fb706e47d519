"""A provider for the tests of everything above providers: keeps the contract, in a folder, without a sandbox.

Two of them on one folder, in one process or in two, see the same boxes. Commands run on the host, in the box's folder,
with the rights of whoever runs the test. Failures and delays are made to order: `fail_next`, `at`, `liveness`.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from holdfast.api.box.box import Box, BoxInfo, Deleted, Liveness, Metrics, Power, Wake
from holdfast.api.box.process import MAX_OUTPUT, Channel, Completed, Connection, Process, ProcessInfo, Sink
from holdfast.api.box.records import Preview, Step
from holdfast.api.box.snapshots import Holding, Snapshot, Volume
from holdfast.api.box.spec import BoxSpec, check_name
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    InvalidSpec,
    SnapshotNotFound,
    Unsupported,
    VolumeExists,
    VolumeInUse,
    VolumeNotFound,
    WrongSnapshot,
)
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.labels import POOL, matches
from holdfast.boxes.network_policy import GUEST_API_URL
from holdfast.boxes.provider import Provider, Swept
from holdfast.guest.init import tree
from holdfast.testing.dummy_files import DummyFiles, Root
from holdfast.testing.dummy_processes import (
    Command,
    DummyProcess,
    connect,
    end_everything,
    held_still,
    open_channel,
    run,
    spawn,
    start,
)

Hook = Callable[[], Awaitable[None] | None]

CAPABILITIES: Final = frozenset(
    {
        Capability.STOP,
        Capability.SNAPSHOTS,
        Capability.FORK,
        Capability.EXPORT,
        Capability.VOLUMES,
        Capability.NETWORK_NONE,  # so that the default spec can be had; nothing is cut off
        Capability.NETWORK_OPEN,
        Capability.DETACHED,
        Capability.CONNECT,
        Capability.PREVIEW,
        Capability.POOL,
    }
)


class DummyProvider(Provider):
    """Boxes in a folder.

    `calls` counts what was asked of it. `at["create.half"] = hook` calls (and awaits) the hook there; the points are
    the names of the methods and, with work done halfway or whole, `create.half`, `create.made`, `hand_over.done`,
    `remove.half`, `remove.done`, `snapshot.half`.
    """

    snapshot_kind = "copy"

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "dummy",
        capabilities: frozenset[Capability] = CAPABILITIES,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.folder = folder
        self.clock = clock
        self.liveness: dict[str, Liveness] = {}
        """What `probe` returns for a box instead of the truth. A box that is `unknown` cannot be attached either."""
        self.guest_api = GUEST_API_URL
        """The URL at which its boxes reach Holdfast. They share our loopback; a real box has its own."""
        self.at: dict[str, Hook] = {}
        self.calls: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        """By box: the commands that a caller in this process waits for."""
        self.connections: Counter[str] = Counter()
        self._failures: defaultdict[str, deque[BaseException]] = defaultdict(deque)

    def fail_next(self, point: str, error: BaseException) -> None:
        """Raise this error the next time that this point is reached. Several errors are raised in order."""
        self._failures[point].append(error)

    def heal(self) -> None:
        """Cancel all pending failures."""
        self._failures.clear()

    async def point(self, name: str) -> None:
        self.calls[name] += 1
        if self._failures[name]:
            raise self._failures[name].popleft()
        if (hook := self.at.get(name)) is not None and inspect.isawaitable(result := hook()):
            await result

    # --- boxes ---

    async def open(self) -> None:
        for name in ("boxes", "making", "removing", "snapshots", "volumes"):
            _make_folder(self.folder / name)

    async def close(self) -> None:
        return None

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        await self.point("create")
        return await self._make(spec, id, labels or {}, None)

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        await self.point("restore")
        require(self.name, self.capabilities, Capability.SNAPSHOTS)
        found = _read_snapshot(self.folder / "snapshots" / _safe(snapshot))
        if found.kind != self.snapshot_kind:
            raise WrongSnapshot(f"snapshot {snapshot} is of kind {found.kind}, {self.name} takes {self.snapshot_kind}")
        if not _exists(self.folder / "snapshots" / snapshot / "files"):
            raise WrongSnapshot(f"snapshot {snapshot} is damaged: its files are missing")
        return await self._make(spec, id, labels or {}, snapshot)

    async def _make(self, spec: BoxSpec, id: str, labels: Mapping[str, str], snapshot: str | None) -> Box:
        check_name(id, "box")
        require(self.name, self.capabilities, *needed(spec))
        for each in spec.volumes:
            if not _exists(self.folder / "volumes" / each.volume):
                raise VolumeNotFound(f"there is no volume {each.volume}", hint="create it first")
            volume = self.folder / "volumes" / each.volume
            if not _resolved(volume / each.subpath).is_relative_to(_resolved(volume)):
                raise InvalidSpec(f"subpath {each.subpath} of volume {each.volume} leads out of it")
            if each.read_only:
                raise Unsupported(f"provider {self.name} has no read-only volumes", hint="nothing here is confined")
        making, made = self.folder / "making" / id, self.folder / "boxes" / id
        with _making(making, id):
            if _exists(made):
                raise BoxConflict(f"there is a box {id} already")
            document = {
                "spec": spec.to_json(),
                "labels": {**spec.labels, **labels},
                "power": Power.RUNNING.value,
                "created_at": self.clock(),
                "snapshot": snapshot,
            }
            source = None if snapshot is None else self.folder / "snapshots" / snapshot / "files"
            _fill(making, document, source)
            self._lay_out(making / "files", spec)
            await self.point("create.half")
            making.rename(made)
        try:
            await self.point("create.made")
        except BaseException:
            await self.remove(id)
            raise
        return self._handle(id)

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        await self.point("hand_over")
        require(self.name, self.capabilities, Capability.POOL, *needed(spec))
        place = self.place(id)
        with _alone_at(place):
            document = self.document(id)
            if document["labels"].get(POOL) != spec.hash:
                raise BoxConflict(f"box {id} is not in the pool any more, or was made for another spec")
            (place / "active").unlink(missing_ok=True)
            changes = {"spec": spec.to_json(), "labels": {**spec.labels, **labels}, "created_at": created_at}
            _write(place / "box.json", {**document, **changes})
        _touch(self.root(self.describe(id)).place(spec.workdir))
        await self.point("hand_over.done")
        if document["power"] != Power.RUNNING:
            raise BoxStopped(f"box {id} is stopped")
        return self._handle(id)

    def _lay_out(self, root: Path, spec: BoxSpec) -> None:
        for path in ("/tmp", spec.workdir):
            (root / path[1:]).mkdir(parents=True, exist_ok=True)
        (root / "etc").mkdir(exist_ok=True)
        shutil.copyfile("/etc/passwd", root / "etc/passwd")  # files and commands agree on what a machine has
        for path, place in self._mounts(spec).items():
            place.mkdir(parents=True, exist_ok=True)
            link = root / path[1:]
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_symlink() or not link.is_dir():
                link.unlink(missing_ok=True)
            else:
                shutil.rmtree(link)
            link.symlink_to(place)

    def _mounts(self, spec: BoxSpec) -> dict[str, Path]:
        return {each.path: self.folder / "volumes" / each.volume / each.subpath for each in spec.volumes}

    def _handle(self, id: str, wake: Wake | None = None) -> DummyBox:
        return DummyBox(self, self.describe(id), wake)

    def describe(self, id: str) -> BoxInfo:
        """Raises `BoxNotFound`."""
        document = self.document(id)
        return BoxInfo(
            id,
            self.name,
            BoxSpec.from_json(document["spec"]),
            document["labels"],
            Power(document["power"]),
            document["created_at"],
            document["snapshot"],
        )

    def document(self, id: str) -> dict[str, Any]:
        try:
            return cast("dict[str, Any]", json.loads((self.place(id) / "box.json").read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            raise BoxNotFound(f"there is no box {id}") from None

    def place(self, id: str) -> Path:
        return self.folder / "boxes" / _safe(id)

    def root(self, info: BoxInfo) -> Root:
        return Root(self.place(info.id) / "files", info.spec.workdir, self._mounts(info.spec))

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        await self.point("find")
        found = []
        for id in _names(self.folder / "boxes"):
            try:
                info = self.describe(id)
            except BoxNotFound:
                continue  # removed since it was listed
            if matches(info.labels, labels or {}):
                found.append(info)
        return sorted(found, key=lambda info: (info.created_at, info.id))

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        await self.point("attach")
        match self.liveness.get(id):
            case Liveness.UNKNOWN:
                raise BoxUnreachable(f"box {id} does not answer")
            case Liveness.GONE:
                raise BoxGone(f"box {id} is gone")
        return self._handle(id, wake)

    async def probe(self, id: str) -> Liveness:
        await self.point("probe")
        if (said := self.liveness.get(id)) is not None:
            return said
        return Liveness.LIVE if _exists(self.place(id) / "box.json") else Liveness.GONE

    async def remove(self, id: str) -> int:
        await self.point("remove")
        freed = 0
        for place in (self.place(id), self.folder / "making" / id):
            if not _exists(place):
                continue
            await end_everything(place)
            removing = self.folder / "removing" / new_id(id)
            try:
                place.rename(removing)
            except FileNotFoundError:
                continue  # another process removed it first
            await end_everything(removing)  # what was started meanwhile; nothing can start from here on
            await self.point("remove.half")
            freed += _remove(removing)
        await self.point("remove.done")
        return freed

    # --- snapshots ---

    async def keep(self, box: BoxInfo, labels: Mapping[str, str]) -> Snapshot:
        await self.point("snapshot")
        require(self.name, self.capabilities, Capability.SNAPSHOTS)
        id = new_id("s")
        with _making(self.folder / "making" / id, id):
            with held_still(self.place(box.id)):
                _fill(self.folder / "making" / id, {}, self.place(box.id) / "files")
            size = _size(self.folder / "making" / id / "files")
            await self.point("snapshot.half")
            # It contains all of its data, so it has no parent.
            return self._keep(id, {"box": box.id, "parent": None, "size": size, "labels": dict(labels)})

    def _keep(self, id: str, document: dict[str, Any]) -> Snapshot:
        making = self.folder / "making" / id
        document = {"kind": self.snapshot_kind, "provider": self.name, "created_at": self.clock(), **document}
        (making / "box.json").unlink(missing_ok=True)
        (making / "snapshot.json").write_text(json.dumps(document))
        making.rename(self.folder / "snapshots" / id)
        return _read_snapshot(self.folder / "snapshots" / id)

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        await self.point("snapshots")
        found = []
        for id in _names(self.folder / "snapshots"):
            try:
                snapshot = _read_snapshot(self.folder / "snapshots" / id)
            except SnapshotNotFound:
                continue  # deleted since it was listed
            if matches(snapshot.labels, labels or {}):
                found.append(snapshot)
        return sorted(found, key=lambda each: (each.created_at, each.id))

    async def snapshot(self, id: str) -> Snapshot:
        return _read_snapshot(self.folder / "snapshots" / _safe(id))

    async def delete_snapshot(self, id: str) -> int:
        await self.point("delete_snapshot")
        await self.snapshot(id)
        removing = self.folder / "removing" / id
        (self.folder / "snapshots" / id).rename(removing)
        return _remove(removing)

    async def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        place = self.folder / "snapshots" / _safe(id)
        _read_snapshot(place)
        yield (place / "snapshot.json").read_bytes() + b"\n"
        with tempfile.TemporaryFile() as archive:
            tree.pack(str(place / "files"), cast("BinaryIO", archive))
            archive.seek(0)
            while piece := archive.read(1 << 18):
                yield piece

    async def import_snapshot(self, stream: AsyncIterable[bytes]) -> Snapshot:
        require(self.name, self.capabilities, Capability.EXPORT)
        id = new_id("s")
        with tempfile.TemporaryFile() as archive, _making(self.folder / "making" / id, id):
            async for piece in stream:
                archive.write(piece)
            archive.seek(0)
            try:
                document = json.loads(archive.readline(1 << 20))
                if document["kind"] != self.snapshot_kind:
                    raise WrongSnapshot(
                        f"a snapshot of kind {document['kind']}, {self.name} takes {self.snapshot_kind}"
                    )
                made = {"parent": None, **{name: document[name] for name in ("box", "size", "labels")}}
                files = self.folder / "making" / id / "files"
                tree.unpack_item(cast("BinaryIO", archive), str(files), links="anywhere")
            except (ValueError, KeyError, TypeError) as error:
                raise WrongSnapshot(f"the stream is not a snapshot: {error}") from None
            return self._keep(id, made)

    # --- volumes ---

    async def create_volume(self, name: str) -> Volume:
        check_name(name, "volume")
        try:
            (self.folder / "volumes" / name).mkdir()
        except FileExistsError:
            raise VolumeExists(f"there is a volume {name} already") from None
        return Volume(name, self.clock())

    async def volumes(self) -> list[Volume]:
        places = [self.folder / "volumes" / name for name in _names(self.folder / "volumes")]
        return [Volume(place.name, _born(place), _size(place)) for place in places]

    async def delete_volume(self, name: str) -> int:
        check_name(name, "volume")
        if not _exists(self.folder / "volumes" / name):
            raise VolumeNotFound(f"there is no volume {name}")
        for info in await self.find():
            if any(each.volume == name for each in info.spec.volumes):
                raise VolumeInUse(f"box {info.id} mounts volume {name}", hint="delete the box first")
        removing = self.folder / "removing" / new_id(name)
        (self.folder / "volumes" / name).rename(removing)
        return _remove(removing)

    # --- housekeeping ---

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        await self.point("sweep")
        removed, freed = [], 0
        for name in _names(self.folder / "making"):
            place = self.folder / "making" / name
            if not name.endswith(".lock") and _abandoned(place):
                freed += _remove(place)
                removed.append(f"half-made {name}")
        for name in _names(self.folder / "removing"):
            freed += _remove(self.folder / "removing" / name)
            removed.append(f"half-removed {name}")
        for info in await self.find() if keep is not None else ():
            if info.id not in (keep or ()):
                freed += await self.remove(info.id)
                removed.append(f"box {info.id}")
        return Swept(tuple(removed), freed)

    async def diagnose(self, id: str | None = None) -> list[Step]:
        await self.point("diagnose")
        if id is not None:
            try:
                async with await self.attach(id) as box:
                    return await box.ping()
            except BoxError as error:
                return [Step("attach", False, 0.0, error.message, "look whether it is in the list of boxes")]
        began = time.perf_counter()
        there = _exists(self.folder / "boxes")
        next_step = None if there else "open the provider"
        return [Step("folder", there, (time.perf_counter() - began) * 1000, str(self.folder), next_step)]


class DummyBox(Box):
    def __init__(self, provider: DummyProvider, info: BoxInfo, wake: Wake | None = None) -> None:
        self.id = info.id
        self.info = info
        self._provider = provider
        self._wake = wake
        self.files = DummyFiles(lambda: self._running())
        self._place = provider.place(info.id)

    def _document(self) -> dict[str, Any]:
        try:
            return self._provider.document(self.id)
        except BoxNotFound:
            raise BoxGone(f"box {self.id} is gone") from None

    def _running(self) -> Root:
        power = self._document()["power"]
        if power != Power.RUNNING:
            raise BoxStopped(f"box {self.id} is {power}", hint="start it first")
        return self._provider.root(self.info)

    async def _awake(self) -> Root:
        try:
            return self._running()
        except BoxStopped:
            if self._wake is None or not await self._wake():
                raise
        return self._running()

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        home = self._place / "files"
        return {"PATH": os.defpath, "HOME": str(home), "TMPDIR": str(home / "tmp"), **self.spec.env, **(more or {})}

    def _cwd(self, root: Root, cwd: str | None) -> Path:
        try:
            return root.place(cwd or self.spec.workdir)
        except OSError:
            return root.folder / "no such folder"

    @contextmanager
    def _counted(self, counter: Counter[str]) -> Iterator[None]:
        counter[self.id] += 1
        try:
            yield
        finally:
            counter[self.id] -= 1
            self._note_end()

    def _note_end(self) -> None:
        if _exists(self._place):
            (self._place / "active").write_text(str(self._provider.clock()))

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
        root = await self._awake()
        await self._provider.point("exec")
        with self._counted(self._provider.running):
            command = await self._start(root, argv, env, cwd)
            return await run(command, argv[0], timeout, stdin, on_stdout, on_stderr, max_output)

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
        root = await self._awake()
        await self._provider.point("spawn")
        if pty:
            require(self._provider.name, self._provider.capabilities, Capability.PTY)
        folder = self._place / "processes" / new_id("p")
        environment, place = self._environment(env), self._cwd(root, cwd)
        return await spawn(folder, argv, environment, place, stdin, tree, self._provider.clock)

    async def open_guest_api(self) -> str:
        await self._awake()
        await self._provider.point("open_guest_api")
        return self._provider.guest_api

    async def python(self) -> tuple[str, ...]:
        await self._awake()
        return (sys.executable,)

    async def process(self, id: str) -> Process:
        self._document()
        return DummyProcess.of(self._place / "processes" / _safe(id), self._provider.clock)

    async def processes(self) -> list[ProcessInfo]:
        self._document()
        found = [await (await self.process(name)).info() for name in _names(self._place / "processes")]
        return sorted(found, key=lambda info: (info.started_at, info.id))

    async def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Channel:
        root = await self._awake()
        await self._provider.point("channel")
        starting = self._start(root, argv, env, cwd)
        return await open_channel(starting, self._opened(self._provider.connections))

    async def _start(self, root: Root, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None) -> Command:
        command = await start(self._place, argv, self._environment(env), self._cwd(root, cwd))
        try:
            self._running()  # the box may have been stopped before the command was registered
        except BoxError:
            await command.end()
            raise
        return command

    def _opened(self, counter: Counter[str]) -> Callable[[], None]:
        """Count something as open until the returned function is called."""
        counter[self.id] += 1

        def closed() -> None:
            counter[self.id] -= 1
            self._note_end()

        return closed

    async def connect(self, port: int) -> Connection:
        require(self._provider.name, self._provider.capabilities, Capability.CONNECT)
        await self._awake()
        await self._provider.point("connect")
        if not isinstance(port, int) or not 0 < port < 65536:
            raise InvalidSpec(f"port {port!r}: between 1 and 65535")
        return await connect(port, self._opened(self._provider.connections))

    async def preview(self, port: int) -> Preview:
        self._document()
        return Preview(f"http://127.0.0.1:{port}/")

    async def power(self) -> Power:
        return Power(self._document()["power"])

    async def stop(self) -> None:
        document = self._document()
        await self._provider.point("stop")
        _write(self._place / "box.json", {**document, "power": Power.STOPPED.value})
        await end_everything(self._place)

    async def start(self) -> None:
        document = self._document()
        await self._provider.point("start")
        _write(self._place / "box.json", {**document, "power": Power.RUNNING.value})

    async def pause(self) -> None:
        """Pauses in name only: running commands continue, new ones are refused. Tests claim it if they need it."""
        require(self._provider.name, self._provider.capabilities, Capability.PAUSE)
        self._running()
        document = self._document()
        await self._provider.point("pause")
        _write(self._place / "box.json", {**document, "power": Power.PAUSED.value})

    async def delete(self) -> Deleted:
        return Deleted(await self._provider.remove(self.id))

    async def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        self._document()
        return await self._provider.keep(self.info, labels or {})

    async def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> Box:
        require(self._provider.name, self._provider.capabilities, Capability.FORK)
        self._document()
        kept = await self._provider.keep(self.info, {})
        try:
            return await self._provider.restore(kept.id, self.spec, id=id or new_id("b"), labels=labels)
        finally:
            await self._provider.delete_snapshot(kept.id)

    async def metrics(self) -> Metrics:
        self._running()
        await self._provider.point("metrics")
        running = sum(1 for each in await self.processes() if each.ended_at is None and each.exit_code is None)
        running += self._provider.running[self.id]
        connections = self._provider.connections[self.id]
        idle = 0.0
        if not running and not connections:
            idle = max(0.0, (self._provider.clock() - self._last_active()) / 1000)
        return Metrics(running, connections, idle, disk=_size(self._place))

    def _last_active(self) -> int:
        ended = [_ended_at(self._place / "processes" / name) for name in _names(self._place / "processes")]
        with suppress(FileNotFoundError):
            ended.append(int((self._place / "active").read_text()))
        return max(ended, default=self.info.created_at)

    async def ping(self) -> list[Step]:
        steps = []
        began = time.perf_counter()
        power = await self.power()
        steps.append(Step("folder", True, (time.perf_counter() - began) * 1000, str(self._place)))
        if power is Power.STOPPED:
            return [*steps, Step("running", False, 0.0, "it is stopped", "start it")]
        began = time.perf_counter()
        done = await self.exec(["true"])
        return [*steps, Step("exec", done.ok, (time.perf_counter() - began) * 1000)]

    async def close(self) -> None:
        return None


# --- the folder ---


def _safe(id: str) -> str:
    """Returns an id as a file name. No box has an id that leaves the folder."""
    return id if id and "/" not in id and id not in (".", "..") and "\0" not in id else "no-such-id"


def _resolved(place: Path) -> Path:
    return place.resolve()


def _exists(place: Path) -> bool:
    return place.exists()


def _make_folder(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)


def _names(place: Path) -> list[str]:
    try:
        return sorted(each.name for each in place.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _born(place: Path) -> int:
    return int(place.stat().st_ctime * 1000)


def _ended_at(process: Path) -> int:
    try:
        return int((process / "ended.json").stat().st_mtime * 1000)
    except FileNotFoundError:
        return 0


def _write(place: Path, document: dict[str, Any]) -> None:
    beside = place.with_name(new_id("new"))
    beside.write_text(json.dumps(document))
    beside.rename(place)


@contextmanager
def _alone_at(place: Path) -> Iterator[None]:
    """Locks a box for a moment, across processes."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise BoxNotFound(f"there is no box {place.name}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _touch(place: Path) -> None:
    os.utime(place)


@contextmanager
def _making(place: Path, id: str) -> Iterator[None]:
    """Create a folder to make something in. It is removed at the end, unless it was moved to its place."""
    with place.with_name(f"{id}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BoxConflict(f"another process is creating {id}") from None
        try:
            place.mkdir()
            yield
        except FileExistsError:
            raise BoxConflict(f"{id} exists already, but is incomplete") from None
        finally:
            if place.exists():
                _remove(place)
            place.with_name(f"{id}.lock").unlink(missing_ok=True)


def _abandoned(place: Path) -> bool:
    try:
        with place.with_name(f"{place.name}.lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False


def _fill(place: Path, document: dict[str, Any], source: Path | None) -> None:
    (place / "box.json").write_text(json.dumps(document))
    if source is None:
        (place / "files").mkdir()
    else:
        try:
            shutil.copytree(source, place / "files", symlinks=True, ignore=_no_files)
        except shutil.Error as errors:
            # The box may run while it is copied, so files may vanish meanwhile.
            if any("[Errno 2]" not in str(why) for _, _, why in errors.args[0]):
                raise


def _no_files(folder: str, names: list[str]) -> list[str]:
    """Returns sockets, pipes and devices, which cannot be copied."""
    kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name in names if not any(kind((Path(folder) / name).lstat().st_mode) for kind in kinds)]


def _read_snapshot(place: Path) -> Snapshot:
    try:
        document = json.loads((place / "snapshot.json").read_bytes())
    except FileNotFoundError:
        raise SnapshotNotFound(f"there is no snapshot {place.name}") from None
    return Snapshot(
        place.name,
        document["provider"],
        document["kind"],
        Holding.VALUE,
        document["box"],
        document["parent"],
        document["size"],
        document["created_at"],
        document["labels"],
    )


def _size(place: Path) -> int:
    """Returns the bytes of all files. Files that vanish meanwhile do not count."""
    total = 0
    for folder, _, files in os.walk(place):
        for name in files:
            try:
                total += (Path(folder) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def _remove(place: Path) -> int:
    """Deletes a tree, including folders without write permission. Returns the bytes freed."""
    freed = _size(place)
    for _ in range(10):
        for folder, folders, _ in os.walk(place):
            for name in folders:
                inner = Path(folder) / name
                if not inner.is_symlink():
                    inner.chmod(0o700)
        shutil.rmtree(place, ignore_errors=True)
        if not place.exists():
            break
    return freed
