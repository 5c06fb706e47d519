"""The common part of providers whose guests pass descriptors: folders, lifecycle, snapshots and volumes of boxes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import logging
import os
import re
import signal
import time
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from holdfast.api.box_spec import BoxSpec, check_labels
from holdfast.api.boxes import Step
from holdfast.api.errors.boxes import (
    DISK_HINT,
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    CreateFailed,
    InvalidSpec,
    NoSpace,
    Unsupported,
    WrongSnapshot,
)
from holdfast.api.ids import new_id, now_ms
from holdfast.api.network import NetworkPolicy
from holdfast.api.snapshots import Snapshot, Volume
from holdfast.boxes.box import Box, BoxInfo, Liveness, Power, Wake
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.labels import HIBERNATION, POOL, matches
from holdfast.boxes.network_policy import Traffic
from holdfast.boxes.provider import Provider, Swept
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.guest_answers import GuestRefused, number_in
from holdfast.providers.host import layer_copy, layers, limits, volumes
from holdfast.providers.host.box import LocalBox
from holdfast.providers.host.data_dir import (
    CREATING,
    DELETING,
    HELD,
    PREPARED,
    SEALED,
    SEALING,
    BoxImage,
    BoxRecord,
    DataDir,
    measure,
    remove_tree,
    updated,
)
from holdfast.providers.host.disk_guard import NOTE
from holdfast.providers.host.guest_client import PAUSED, GuestClient, Pulses
from holdfast.providers.host.inotify import FileWatch
from holdfast.providers.host.trash import Trash
from holdfast.providers.pipes import Pipe, on_own_thread

log = logging.getLogger(__name__)

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_START_SECONDS: Final = 30.0
_GRACE_MS: Final = 1500
_SPAWN_SECONDS: Final = 60.0
"""Nobody takes longer to write down a process that is about to start."""
_DISK_THREADS: Final = 4
_COLLECT_TRIES: Final = 50
_COLLECT_PAUSE: Final = 0.02
_LOG_BYTES: Final = 2000
_SEAL_TRIES: Final = 10
_SEAL_PAUSE: Final = 0.02
P = ParamSpec("P")
T = TypeVar("T")


class GuestProvider(Provider):
    """Boxes with a guest that passes descriptors, in a folder of this machine."""

    capabilities: frozenset[Capability] = frozenset()
    snapshot_kind = layers.KIND
    tools: str | None = None
    """Where boxes see the programs that this machine has for them."""
    other_user: bool = False
    """Whether processes in boxes are of another user than this one."""

    def __init__(self, data_dir: DataDir) -> None:
        self.data_dir = data_dir
        self._disk: ThreadPoolExecutor | None = None
        self._starts = asyncio.Semaphore(2 * (os.cpu_count() or 1) + 2)
        self._watch: FileWatch | None = None
        self._pulses = Pulses()
        self._background: set[asyncio.Task[Any]] = set()
        self._trash = Trash(data_dir, self.on_disk, self._later)

    @property
    def watch(self) -> FileWatch:
        if self._watch is None:
            raise RuntimeError("the provider is not open: use it in `async with`, or await its open()")
        return self._watch

    async def open(self) -> None:
        if self._watch is None:
            self._watch = FileWatch()

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._disk is not None:
            self._disk.shutdown(wait=False)
            self._disk = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._pulses.close()

    async def on_disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what may take long on threads of its own: reading a small file must not wait for a large removal."""
        if self._disk is None:
            self._disk = ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="holdfast-disk")
        return await asyncio.get_running_loop().run_in_executor(self._disk, functools.partial(work, *args, **kwargs))

    # --- what differs ---

    @abstractmethod
    async def launch(self, record: BoxRecord) -> int:
        """Start a box's guest; says its first process. Whether it comes up shows on its socket."""

    async def confine(self, record: BoxRecord, pid: int) -> None:
        """Put a process of a box that comes up under the box's limits, before anything of the user's runs in it."""

    async def open_egress(self, guest: GuestClient, record: BoxRecord) -> None:
        """Open a box's way to the network as far as its policy says, before anything of the user's runs in it."""

    def traffic(self, id: str) -> Traffic | None:
        """What went through a box's way out, where it has one."""
        return None

    @abstractmethod
    def workdir(self, info: BoxInfo) -> str: ...

    @abstractmethod
    def environment(self, info: BoxInfo) -> dict[str, str]: ...

    def explain(self, id: str) -> BoxError:
        """Why a box did not come up."""
        return CreateFailed(f"box {id} did not come up: {self.start_log(id)}")

    def check(self, spec: BoxSpec) -> None:
        """Refuse what cannot be, before anything is made."""
        require(self.name, self.capabilities, *needed(spec))

    def beginning(self, spec: BoxSpec) -> tuple[tuple[str, ...], BoxImage | None]:
        """The layers that a new box begins with, and its image. Raises `ImageNotFound`."""
        return (), None

    def recover(self, record: BoxRecord) -> BoxRecord:
        """Put a box that does not run in order before it is started."""
        return layers.recover(self.data_dir, record)

    async def seal(self, guest: GuestClient) -> bool:
        """Make the files of a box that runs read-only for everybody, for good. False where somebody writes to them."""
        return False

    async def copy_files(self, source: int, target: int) -> dict[str, Any]:
        """Copy a folder that a box may change into an empty one that it cannot, following no link: `Launcher.copy`."""
        raise Unsupported(f"provider {self.name} cannot copy the files of a running box")

    async def hold(self, id: str) -> None:
        """Hold every process of a box. Only called where `pause` is claimed."""

    async def go_on(self, id: str) -> None:
        """The inverse of `hold`. A box that is not held is fine."""

    def held_activity(self, id: str) -> dict[str, Any] | None:
        """What there is to say of a paused box, whose guest cannot say it; None where it is not paused."""
        return None

    def usage(self, id: str) -> limits.GroupUsage:
        return limits.GroupUsage()

    def release(self, id: str) -> None:
        """Give back what a box that does not run still holds of the machine."""

    # --- making ---

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self.check(spec)
        with contextlib.nullcontext() if spec.image is None else self.data_dir.layers_kept():
            first, image = self.beginning(spec)
            begun = self._begin(spec, id, labels or {}, first, None, image)
        return await self._complete(begun)

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        require(self.name, self.capabilities, Capability.SNAPSHOTS)
        self.check(spec)
        with self.data_dir.layers_kept():
            manifest = layers.read_manifest(self.data_dir, snapshot)
            for layer in manifest.layers:
                if not (self.data_dir.layers / layer / "files").is_dir():
                    raise WrongSnapshot(f"snapshot {snapshot} is damaged: its layer {layer} is missing")
            if spec.image is not None and manifest.image is None:
                raise WrongSnapshot(
                    f"snapshot {snapshot} is of a box without an image, but the new box has image {spec.image}",
                    hint="restore it without an image",
                )
            begun = self._begin(spec, id, labels or {}, manifest.layers, snapshot, manifest.image)
        return await self._complete(begun)

    def _begin(
        self,
        spec: BoxSpec,
        id: str,
        labels: Mapping[str, str],
        own_layers: tuple[str, ...],
        snapshot: str | None,
        image: BoxImage | None,
    ) -> tuple[BoxRecord, int]:
        """The box's folder, marked as being made and locked: whoever finds it so and unlocked removes it."""
        if not _ID.fullmatch(id):
            raise InvalidSpec(f"{id!r} cannot be the id of a box: lower case letters, digits and -, at most 63")
        check_labels(labels)
        record = updated(
            self.data_dir.new_record(id, spec, labels, now_ms()),
            layers=own_layers,
            began=len(own_layers),
            snapshot=snapshot,
            head=snapshot,
            image=image,
        )
        folder = self.data_dir.box(id)
        try:
            folder.mkdir(mode=0o711)
        except FileExistsError:
            raise BoxConflict(f"there is a local box {id} already") from None
        lock = self.data_dir.try_lock(id)
        if lock is None:
            raise BoxConflict(f"another process is creating box {id}")
        try:
            (folder / CREATING).touch()
            folder.chmod(0o711)
            (folder / "processes").mkdir(mode=0o700)
            self.prepare_files(record)
            self.data_dir.write(record)
            if POOL in labels:
                (folder / PREPARED).touch(mode=0o600)
        except OSError as error:
            self.data_dir.discard(folder)
            os.close(lock)
            raise NoSpace(f"cannot create box {id}: {error}", hint=DISK_HINT) from None
        return record, lock

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        require(self.name, self.capabilities, Capability.POOL)
        self.check(spec)
        check_labels(labels)
        _check_id(id, self.name)
        async with self.data_dir.locked(id):
            record = self._record(id)
            if record.labels.get(POOL) != spec.hash:
                raise BoxConflict(f"box {id} is no longer in the pool, or was created for another spec")
            changed = updated(record, spec=spec, labels={**spec.labels, **labels}, created_at=created_at)
            self.data_dir.write(changed)
            guest = GuestClient(id, self.data_dir.box(id), created_at)
            if self._power(guest) is not Power.RUNNING:
                raise BoxStopped(f"box {id} died before it was handed over")
            # Its guest hears of it with the first request: its idle time began now, its folders are as old as it is.
            await self.open_egress(guest, changed)
        return LocalBox(self, BoxInfo(id, self.name, spec, changed.labels, Power.RUNNING, created_at, record.snapshot))

    def prepare_files(self, record: BoxRecord) -> None:
        folder = self.data_dir.box(record.id)
        self.data_dir.make_folder(folder / "upper")
        self.data_dir.make_folder(folder / "work", 0o700)

    async def _complete(self, begun: tuple[BoxRecord, int]) -> Box:
        record, lock = begun
        folder = self.data_dir.box(record.id)
        try:
            try:
                await self._bring_up(record)
                (folder / CREATING).unlink()
            except BaseException:
                await to_the_end(self._take_down(record.id))
                raise
        finally:
            os.close(lock)
        return LocalBox(self, self.describe(record))

    async def _take_down(self, id: str) -> int:
        """End a box and remove it. It is locked, or was never whole."""
        guest = GuestClient(id, self.data_dir.box(id))
        await self.end(guest)
        self._pulses.forget(id)
        self.release(id)
        moved = self.data_dir.discard(self.data_dir.box(id))
        return await self._trash.remove([moved] if moved else [])

    async def end(self, guest: GuestClient) -> None:
        await guest.kill()

    async def _bring_up(self, record: BoxRecord) -> None:
        """Start the guest and hear from it. Only so many at once: more would make each slower, and none faster."""
        async with self._starts:
            guest = GuestClient(record.id, self.data_dir.box(record.id), record.created_at)
            self._forget_seal(record.id)
            # The kernel takes longer to move a process than to start one: it does so while the rest goes on.
            confining = asyncio.ensure_future(self.confine(record, await self.launch(record)))
            try:
                request = {"op": "ping", "workdir": self.workdir(self.describe(record))}
                await guest.ask(request, seconds=_START_SECONDS)
                await confining
                pid = guest.pid()
                if pid is None:
                    raise BoxStopped(f"box {record.id} stopped right after its start")
                await self.confine(record, pid)
                await self.open_egress(guest, record)
            except GuestRefused as refused:
                raise InvalidSpec(f"box {record.id} cannot work in {record.spec.workdir}: {refused}") from None
            except (BoxStopped, BoxUnreachable):
                raise self.explain(record.id) from None
            finally:
                await asyncio.wait([confining])  # whoever takes a failed start down finds everything in its place
                if not confining.cancelled():
                    confining.exception()

    def start_log(self, id: str) -> str:
        try:
            with (self.data_dir.box(id) / "start.log").open("rb") as log:  # what a box says there is not bounded
                return log.read(_LOG_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    # --- finding ---

    def describe(self, record: BoxRecord) -> BoxInfo:
        return BoxInfo(
            record.id,
            self.name,
            record.spec,
            record.labels,
            self._power(GuestClient(record.id, self.data_dir.box(record.id))),
            record.created_at,
            record.snapshot,
        )

    def _power(self, guest: GuestClient) -> Power:
        if not self._lives(guest):
            return Power.STOPPED
        return Power.PAUSED if guest.paused else Power.RUNNING

    def _lives(self, guest: GuestClient) -> bool:
        if self._pulses.beats(guest.box):
            return True
        try:
            with guest.connect() as connection:
                self._pulses.take(guest.box, connection)
        except (BoxStopped, BoxGone):
            return False
        except BoxError:
            return True  # it does not keep up, or cannot be reached by us: somebody is there
        return True

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        records = sorted(self.data_dir.records(), key=lambda record: (record.created_at, record.id))
        return [self.describe(record) for record in records if matches(record.labels, labels or {})]

    def _record(self, id: str) -> BoxRecord:
        _check_id(id, self.name)
        if not self.data_dir.whole(id):
            raise BoxNotFound(f"there is no {self.name} box {id}")
        return self.data_dir.read(id)

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        return LocalBox(self, self.describe(self._record(id)), wake)

    async def probe(self, id: str) -> Liveness:
        try:
            self._record(id)
        except (BoxNotFound, BoxGone):
            return Liveness.GONE
        except OSError:
            return Liveness.UNKNOWN
        return Liveness.LIVE

    def power(self, id: str) -> Power:
        try:
            return self.describe(self._record(id)).power
        except BoxNotFound:
            raise BoxGone(f"box {id} is gone") from None

    # --- life ---

    @contextlib.asynccontextmanager
    async def _alone(self, id: str) -> AsyncIterator[BoxRecord]:
        """Alone at a whole box."""
        try:
            self._record(id)
            async with self.data_dir.locked(id):
                yield self._record(id)
        except BoxNotFound:
            raise BoxGone(f"box {id} is gone") from None

    async def stop_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.STOP)
        async with self._alone(id):
            await to_the_end(self._stop(id))

    async def _stop(self, id: str) -> None:
        guest = GuestClient(id, self.data_dir.box(id))
        await self._resume(guest)
        with contextlib.suppress(BoxStopped, BoxUnreachable, GuestRefused):
            await guest.ask({"op": "shut_down", "grace": _GRACE_MS}, seconds=_GRACE_MS / 1000 + 1)
            await guest.ask({"op": "kill_all", "number": signal.SIGKILL.value}, seconds=_GRACE_MS / 1000)
            await self._seal(guest)
        await self.end(guest)
        self.release(id)

    async def _seal(self, guest: GuestClient) -> bool:
        """Prove that nobody can write to a box's files any more, before it ends. The proof is kept until it starts.

        What was killed just now may take a moment to let go of its files.
        """
        folder = self.data_dir.box(guest.box)
        (folder / SEALING).touch()
        for _ in range(_SEAL_TRIES):
            if await self.seal(guest):
                (folder / SEALING).rename(folder / SEALED)
                return True
            await asyncio.sleep(_SEAL_PAUSE)
        (folder / SEALING).unlink(missing_ok=True)
        return False

    def _forget_seal(self, id: str) -> None:
        for name in (SEALING, SEALED):
            (self.data_dir.box(id) / name).unlink(missing_ok=True)

    async def start_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.STOP)
        async with self._alone(id) as record:
            guest = GuestClient(id, self.data_dir.box(id))
            if not await self._is_up(guest):
                await self._start(record)
            elif guest.paused:
                await to_the_end(self._resume(guest))
                await self.open_egress(guest, record)

    async def _is_up(self, guest: GuestClient) -> bool:
        """Whether a box runs. One whose guest was killed does not; nothing of it is left once this returns."""
        if guest.alive():
            return True
        await to_the_end(self.end(guest))
        return False

    async def pause_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.PAUSE)
        async with self._alone(id):
            guest = GuestClient(id, self.data_dir.box(id))
            if not await self._is_up(guest):
                raise BoxStopped(f"box {id} is stopped", hint="there is nothing to pause")
            if not guest.paused:
                await to_the_end(self._pause(guest))

    async def _pause(self, guest: GuestClient) -> None:
        """Marked before it is held: what is held without a mark was forgotten by whoever copied it."""
        (self.data_dir.box(guest.box) / PAUSED).touch()
        try:
            await self.hold(guest.box)
        except BaseException:
            await self._resume(guest)
            raise

    async def _resume(self, guest: GuestClient) -> None:
        if guest.paused:
            await self.go_on(guest.box)
            (self.data_dir.box(guest.box) / PAUSED).unlink(missing_ok=True)

    async def _start(self, record: BoxRecord) -> None:
        (self.data_dir.box(record.id) / PAUSED).unlink(missing_ok=True)  # of a box that ended while it was held
        await self._up_or_down(self.recover(record))

    async def _up_or_down(self, record: BoxRecord) -> None:
        try:
            await self._bring_up(record)
        except BaseException:
            await to_the_end(self.end(GuestClient(record.id, self.data_dir.box(record.id))))
            raise

    async def set_network(self, id: str, policy: NetworkPolicy) -> None:
        """Change what a box may reach: on disk, and at once where it runs. What fails leaves it as it was."""
        policy.check()
        require(self.name, self.capabilities, Capability.NETWORK_LIVE, *needed(BoxSpec(network=policy)))
        async with self._alone(id) as record:
            changed = updated(record, spec=replace(record.spec, network=policy))
            self.data_dir.write(changed)
            guest = GuestClient(id, self.data_dir.box(id))
            try:
                if guest.alive():
                    await self.open_egress(guest, changed)
            except BaseException:
                self.data_dir.write(record)
                raise

    async def open_guest_api(self, id: str) -> None:
        raise Unsupported(
            f"boxes of provider {self.name} cannot reach Holdfast",
            hint="use provider local, through the server of its home",
        )

    async def remove(self, id: str) -> int:
        if not _ID.fullmatch(id) or not self.data_dir.box(id).exists():
            return 0
        try:
            async with self.data_dir.locked(id):
                folder = self.data_dir.box(id)
                if not folder.exists():
                    return 0
                (folder / DELETING).touch()
                freed = await to_the_end(self._take_down(id))
        except (BoxNotFound, FileNotFoundError):
            return 0
        return freed + await self._collect()

    # --- snapshots ---

    async def snapshot_box(self, id: str, labels: Mapping[str, str]) -> Snapshot:
        require(self.name, self.capabilities, Capability.SNAPSHOTS)
        async with self._alone(id) as record:
            return await to_the_end(self._snapshot(record, labels))

    async def _snapshot(self, record: BoxRecord, labels: Mapping[str, str]) -> Snapshot:
        data_dir = self.data_dir
        with data_dir.layers_kept():
            # A box that sleeps often would keep all that it ever overwrote, a layer for each sleep.
            deepest = layers.DEEPEST_ASLEEP if HIBERNATION in labels else layers.DEEPEST
            record, own_layers = await self._freeze(record, deepest)
            snapshot = await self.on_disk(layers.write_snapshot, data_dir, record, own_layers, labels)
            data_dir.write(updated(record, head=snapshot.id))
        return snapshot

    async def _freeze(self, record: BoxRecord, deepest: int) -> tuple[BoxRecord, tuple[str, ...]]:
        """Layers with all that a box holds now. It is locked, and so are the layers, until something refers to them."""
        data_dir = self.data_dir
        guest = GuestClient(record.id, data_dir.box(record.id))
        running = await self._is_up(guest)
        if not running:
            record = self.recover(record)
        if not layers.changed(data_dir, record):
            return record, record.layers
        # Only what nobody can write to is frozen as it is. Anything else is copied, and the copy is nobody's to write.
        if not (await self._idle(guest) and await self._seal(guest) if running else self._is_sealed(record.id)):
            return record, (*record.layers, await self._copy_top(record, running))
        if running:
            await self.end(guest)
        record = layers.freeze_top(data_dir, record)
        if len(record.layers) > deepest:
            try:
                record = await self.on_disk(layers.merge, data_dir, record, deepest)
                data_dir.write(record)
            except (OSError, RecursionError) as error:  # deeper than we can walk, say: it has its layers as they are
                log.warning("cannot merge the layers of box %s: %s", record.id, error)
        if running:
            await self._up_or_down(record)
        return record, record.layers

    async def _idle(self, guest: GuestClient) -> bool:
        try:
            answer = await guest.ask({"op": "activity"})
        except (BoxStopped, BoxUnreachable, GuestRefused):
            return False
        return number_in(answer, "processes") == 0 and number_in(answer, "connections") == 0

    def _is_sealed(self, id: str) -> bool:
        return (self.data_dir.box(id) / SEALED).exists()

    async def _copy_top(self, record: BoxRecord, running: bool) -> str:
        """A layer with what a box has written, which may be changed after. What runs is held still meanwhile."""

        async def copy(source: int, target: int) -> dict[str, Any]:
            async with self.held_still(record.id) if running else contextlib.nullcontext():
                return await self.copy_files(source, target)

        return await layer_copy.copy_top(self.data_dir, record.id, copy, self.on_disk, running=running)

    @contextlib.asynccontextmanager
    async def held_still(self, id: str) -> AsyncIterator[None]:
        guest = GuestClient(id, self.data_dir.box(id))
        (self.data_dir.box(id) / HELD).touch()
        try:
            try:
                # Not by halves. A process can arrange for its own awakening; then its files change, which is noticed.
                await guest.ask({"op": "kill_all", "number": 19})
            except GuestRefused as refused:
                raise BoxUnreachable(f"box {id} cannot be frozen: {refused}") from None
            yield
        finally:
            with contextlib.suppress(BoxError, GuestRefused):
                await to_the_end(self._let_go(guest))

    async def _let_go(self, guest: GuestClient) -> None:
        with contextlib.suppress(BoxStopped):  # nothing runs there any more
            await guest.ask({"op": "kill_all", "number": 18})
        (self.data_dir.box(guest.box) / HELD).unlink(missing_ok=True)

    async def fork_box(self, id: str, new: str | None, labels: Mapping[str, str]) -> Box:
        require(self.name, self.capabilities, Capability.FORK)
        # Without a snapshot in between: nothing would be left to forget it where we died.
        async with self._alone(id) as record:
            with self.data_dir.layers_kept():
                record, own_layers = await to_the_end(self._freeze(record, layers.DEEPEST))
                begun = self._begin(record.spec, new or new_id("b"), labels, own_layers, None, record.image)
        return await self._complete(begun)

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        found = await self.on_disk(layers.manifests, self.data_dir)
        return [each.snapshot for each in found if matches(each.snapshot.labels, labels or {})]

    async def snapshot(self, id: str) -> Snapshot:
        return layers.read_manifest(self.data_dir, id).snapshot

    async def delete_snapshot(self, id: str) -> int:
        layers.forget_snapshot(self.data_dir, id)
        return await self._collect()

    async def _collect(self) -> int:
        """Remove layers that nothing needs. Where somebody takes a snapshot all the while, a later sweep does."""
        for _ in range(_COLLECT_TRIES):
            moved = await self.on_disk(layers.collect, self.data_dir)
            if moved is not None:
                return await self._trash.remove(moved)
            await asyncio.sleep(_COLLECT_PAUSE)
        return 0

    async def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        require(self.name, self.capabilities, Capability.EXPORT)
        layers.read_manifest(self.data_dir, id)
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(read)
        pipe.widen()

        def export() -> None:
            with contextlib.suppress(BrokenPipeError), os.fdopen(write, "wb") as out:
                layers.export(self.data_dir, id, out)

        exporting = on_own_thread(export)
        try:
            while data := await pipe.read():
                yield data
        finally:
            pipe.close()
            await exporting

    async def import_snapshot(self, stream: AsyncIterable[bytes]) -> Snapshot:
        require(self.name, self.capabilities, Capability.EXPORT)
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(write)
        pipe.widen()

        def take() -> Snapshot:
            with io.open(read, "rb", buffering=1 << 18) as source:  # noqa: UP020
                return layers.import_(self.data_dir, source)

        taking = on_own_thread(take)
        try:
            with contextlib.suppress(BrokenPipeError):  # it refused: it says why
                async for piece in stream:
                    await pipe.write(piece)
            pipe.close()
            return await asyncio.shield(taking)
        finally:
            pipe.close()
            await asyncio.gather(taking, return_exceptions=True)

    # --- volumes ---

    async def create_volume(self, name: str) -> Volume:
        require(self.name, self.capabilities, Capability.VOLUMES)
        return volumes.create(self.data_dir, name)

    async def volumes(self) -> list[Volume]:
        return volumes.all_volumes(self.data_dir)

    async def delete_volume(self, name: str) -> int:
        require(self.name, self.capabilities, Capability.VOLUMES)
        moved = await self.on_disk(volumes.delete, self.data_dir, name)
        return await self._trash.remove([moved] if moved else [])

    # --- housekeeping ---

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        removed: list[str] = []
        freed = 0
        for id in self.data_dir.ids():
            why = self._why_remove(id, keep)
            if why is None and not await self.on_disk(self.ails, id):
                continue
            lock = None
            with contextlib.suppress(BoxNotFound):
                lock = self.data_dir.try_lock(id)
            if lock is None:
                continue  # somebody is at it
            try:
                why = self._why_remove(id, keep)  # as it is now, under the lock
                if why is not None:
                    freed += await to_the_end(self._take_down(id))
                    removed.append(f"box {id}: {why}")
                elif await self.on_disk(self.ails, id):
                    await to_the_end(self.mend(id))
            except BoxError as error:
                log.warning("cannot sweep box %s: %s", id, error)
            finally:
                os.close(lock)
        freed += await self._collect()
        for folder in (self.data_dir.volumes, self.data_dir.runtime):
            await self.on_disk(self.data_dir.tidy, folder)
        freed += await self._trash.clear()
        removed += await self.on_disk(self.sweep_machine)
        return Swept(tuple(removed), freed)

    def _why_remove(self, id: str, keep: Collection[str] | None) -> str | None:
        folder = self.data_dir.box(id)
        if (folder / DELETING).exists():
            return "its deletion was cut short"
        if (folder / CREATING).exists() or not (folder / "box.json").exists():
            return "its creation was cut short"
        if keep is not None and id not in keep:
            return "nobody knows it"
        return None

    def ails(self, id: str) -> bool:
        """Whether a whole box is not as it should be, unless somebody is at it: what died halfway leaves it so."""
        folder = self.data_dir.box(id)
        return (folder / HELD).exists() or self._is_half_sealed(id) or any(True for _ in _leftovers(folder))

    def _is_half_sealed(self, id: str) -> bool:
        """Whether somebody died while they ended a box: what runs there can perhaps not write any more."""
        folder = self.data_dir.box(id)
        return (folder / SEALING).exists() or (self._is_sealed(id) and GuestClient(id, folder).alive())

    async def mend(self, id: str) -> None:
        """Undo what left a box ailing, or finish it. The box is locked."""
        folder = self.data_dir.box(id)
        for path in _leftovers(folder):
            await self.on_disk(remove_tree, path) if path.is_dir() else path.unlink(missing_ok=True)
        if self._is_half_sealed(id):
            await self.end(GuestClient(id, folder))
            self.release(id)
            (folder / SEALING).unlink(missing_ok=True)
        if (folder / HELD).exists():
            with contextlib.suppress(BoxError, GuestRefused):
                await self._let_go(GuestClient(id, folder))

    def sweep_machine(self) -> list[str]:
        """Leftovers outside of the folder."""
        return []

    async def disk_use(self, id: str) -> int:
        own = layers.own(self.data_dir, self.data_dir.read(id))
        return sum([await self.on_disk(measure, folder) for folder in (self.data_dir.box(id), *own)])

    async def diagnose(self, id: str | None = None) -> list[Step]:
        steps = await self._diagnose_provider()
        if id is not None and all(step.ok for step in steps):
            try:
                box = await self.attach(id)
                steps += await box.ping()
                steps += self._diagnose_disk(id)
            except BoxError as error:
                steps.append(Step("box record", False, 0.0, error.message, error.hint or "holdfast box list --all"))
        return steps

    async def _diagnose_provider(self) -> list[Step]:
        begin = time.perf_counter()
        there = self.data_dir.boxes.is_dir() and os.access(self.data_dir.boxes, os.W_OK)
        taken = (time.perf_counter() - begin) * 1000
        next_step = None if there else "make the folder writable for the server, and restart it"
        return [Step("boxes folder", there, taken, str(self.data_dir.boxes), next_step)]

    def over_disk_limit(self, id: str) -> str | None:
        """Why the processes of a box were ended, where it holds too much on disk."""
        try:
            return (self.data_dir.box(id) / NOTE).read_text()
        except OSError:
            return None

    def _diagnose_disk(self, id: str) -> list[Step]:
        why = self.over_disk_limit(id)
        if why is None:
            return []
        return [Step("disk", False, 0.0, f"its processes were ended: {why}", "make room in it, or give it more disk")]


def _check_id(id: str, provider: str) -> None:
    """What is none is not looked for."""
    if not _ID.fullmatch(id):
        raise BoxNotFound(f"there is no {provider} box {id}")


def _leftovers(folder: Path) -> Iterator[Path]:
    """Of a box: what was cut short while it was written, and processes that were never started."""
    yield from folder.glob(".*")
    long_ago = time.time() - _SPAWN_SECONDS
    for path in folder.glob("processes/*"):
        with contextlib.suppress(FileNotFoundError):
            if not (path / "process.json").exists() and path.stat().st_mtime < long_ago:
                yield path
