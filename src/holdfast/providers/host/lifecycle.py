"""Creates, changes and deletes boxes on this machine, and makes the handles to them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from holdfast.api.box.box import BoxInfo, Power, Wake
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec, check_labels
from holdfast.api.errors.boxes import (
    DISK_HINT,
    BoxConflict,
    BoxNotFound,
    BoxStopped,
    NoSpace,
    WrongSnapshot,
)
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.labels import POOL
from holdfast.boxes.network_policy import GUEST_API_URL
from holdfast.boxes.provider import check_known_id, check_new_id, is_box_id
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.host.box import LocalBox
from holdfast.providers.host.disk import layers
from holdfast.providers.host.disk.data_dir import CREATING, DELETING, PREPARED, BoxImage, BoxRecord, measure, updated
from holdfast.providers.host.disk.trash import Trash
from holdfast.providers.host.inotify import FileWatch
from holdfast.providers.host.power import BoxPower
from holdfast.providers.host.sandbox import Sandbox
from holdfast.providers.host.snapshots import SnapshotStore

_NOT_OPEN: Final = "the provider is not open: use it in `async with`, or await its open()"


@dataclass(frozen=True, slots=True)
class _NewBox:
    """A box that is being created. Its folder is marked and locked: a sweep that finds it unlocked deletes it."""

    record: BoxRecord
    lock: int


class HostLifecycle:
    """Owned by the provider, which opens and closes it."""

    def __init__(self, sandbox: Sandbox, power: BoxPower, snapshots: SnapshotStore, trash: Trash) -> None:
        self._sandbox = sandbox
        self._data_dir = sandbox.data_dir
        self._power = power
        self._snapshots = snapshots
        self._trash = trash
        self._watch: FileWatch | None = None

    def open(self) -> None:
        if self._watch is None:
            self._watch = FileWatch()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def handle(self, info: BoxInfo, wake: Wake | None = None) -> LocalBox:
        if self._watch is None:
            raise RuntimeError(_NOT_OPEN)
        return LocalBox(info, self, self._sandbox, self._watch, wake)

    def _require(self, *capabilities: Capability) -> None:
        require(self._sandbox.provider, self._sandbox.capabilities, *capabilities)

    # --- creating ---

    async def create(self, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> LocalBox:
        self._sandbox.check(spec)
        with contextlib.nullcontext() if spec.image is None else self._data_dir.layers_kept():
            first, image = self._sandbox.first_layers(spec)
            new = self._begin(spec, id, labels, first, None, image)
        return await self._complete(new)

    async def restore(self, snapshot: str, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> LocalBox:
        self._require(Capability.SNAPSHOTS)
        self._sandbox.check(spec)
        with self._data_dir.layers_kept():
            manifest = layers.read_manifest(self._data_dir, snapshot)
            for layer in manifest.layers:
                if not (self._data_dir.layers / layer / "files").is_dir():
                    raise WrongSnapshot(f"snapshot {snapshot} is damaged: its layer {layer} is missing")
            if spec.image is not None and manifest.image is None:
                raise WrongSnapshot(
                    f"snapshot {snapshot} is of a box without an image, but the new box has image {spec.image}",
                    hint="restore it without an image",
                )
            new = self._begin(spec, id, labels, manifest.layers, snapshot, manifest.image)
        return await self._complete(new)

    async def fork_box(self, id: str, new: str | None, labels: Mapping[str, str]) -> LocalBox:
        self._require(Capability.FORK)
        # Without a snapshot in between: if this process died, nothing would delete it.
        async with self._power.exclusive(id) as record:
            with self._data_dir.layers_kept():
                record, own_layers = await to_the_end(self._snapshots.freeze(record))
                begun = self._begin(record.spec, new or new_id("b"), labels, own_layers, None, record.image)
        return await self._complete(begun)

    def _begin(
        self,
        spec: BoxSpec,
        id: str,
        labels: Mapping[str, str],
        own_layers: tuple[str, ...],
        snapshot: str | None,
        image: BoxImage | None,
    ) -> _NewBox:
        check_new_id(id)
        check_labels(labels)
        record = updated(
            self._data_dir.new_record(id, spec, labels, now_ms()),
            layers=own_layers,
            began=len(own_layers),
            snapshot=snapshot,
            head=snapshot,
            image=image,
        )
        folder = self._data_dir.box(id)
        try:
            folder.mkdir(mode=0o711)
        except FileExistsError:
            raise BoxConflict(f"there is a local box {id} already") from None
        lock = self._data_dir.try_lock(id)
        if lock is None:
            raise BoxConflict(f"another process is creating box {id}")
        try:
            (folder / CREATING).touch()
            folder.chmod(0o711)
            (folder / "processes").mkdir(mode=0o700)
            self._sandbox.prepare_files(record)
            self._data_dir.write(record)
            if POOL in labels:
                (folder / PREPARED).touch(mode=0o600)
        except OSError as error:
            self._data_dir.discard(folder)
            os.close(lock)
            raise NoSpace(f"cannot create box {id}: {error}", hint=DISK_HINT) from None
        return _NewBox(record, lock)

    async def _complete(self, new: _NewBox) -> LocalBox:
        id = new.record.id
        try:
            try:
                await self._power.bring_up(new.record)
                (self._data_dir.box(id) / CREATING).unlink()
            except BaseException:
                await to_the_end(self.take_down(id))
                raise
        finally:
            os.close(new.lock)
        return self.handle(self._power.describe(new.record))

    async def hand_over(self, id: str, spec: BoxSpec, labels: Mapping[str, str], created_at: int) -> LocalBox:
        self._require(Capability.POOL)
        self._sandbox.check(spec)
        check_labels(labels)
        check_known_id(id, self._sandbox.provider)
        async with self._data_dir.locked(id):
            record = self._power.record(id)
            if record.labels.get(POOL) != spec.hash:
                raise BoxConflict(f"box {id} is no longer in the pool, or was created for another spec")
            changed = updated(record, spec=spec, labels={**spec.labels, **labels}, created_at=created_at)
            self._data_dir.write(changed)
            guest = self._sandbox.guest(id, created_at)
            if self._power.of_guest(guest) is not Power.RUNNING:
                raise BoxStopped(f"box {id} died before it was handed over")
            # The next request tells the guest when the box was created, so its idle time starts now.
            await self._sandbox.open_egress(guest, changed)
        return self.handle(
            BoxInfo(id, self._sandbox.provider, spec, changed.labels, Power.RUNNING, created_at, record.snapshot)
        )

    # --- changing ---

    def power(self, id: str) -> Power:
        return self._power.get(id)

    async def stop_box(self, id: str) -> None:
        await self._power.stop(id)

    async def start_box(self, id: str) -> None:
        await self._power.start(id)

    async def pause_box(self, id: str) -> None:
        await self._power.pause(id)

    async def snapshot_box(self, id: str, labels: Mapping[str, str]) -> Snapshot:
        self._require(Capability.SNAPSHOTS)
        async with self._power.exclusive(id) as record:
            return await to_the_end(self._snapshots.take(record, labels))

    async def set_network(self, id: str, policy: NetworkPolicy) -> None:
        """Change what a box may reach, on disk and immediately if it runs. A failure leaves it unchanged."""
        policy.check()
        self._require(Capability.NETWORK_LIVE, *needed(BoxSpec(network=policy)))
        async with self._power.exclusive(id) as record:
            changed = updated(record, spec=replace(record.spec, network=policy))
            self._data_dir.write(changed)
            guest = self._sandbox.guest(id)
            try:
                if guest.alive():
                    await self._sandbox.open_egress(guest, changed)
            except BaseException:
                self._data_dir.write(record)
                raise

    async def open_guest_api(self, id: str) -> str:
        async with self._power.exclusive(id) as record:
            await self._sandbox.open_guest_api(self._sandbox.guest(id), record)
        return GUEST_API_URL

    async def disk_use(self, id: str) -> int:
        """Returns the bytes on disk of a box, including its own layers."""
        folders = (self._data_dir.box(id), *layers.own(self._data_dir, self._data_dir.read(id)))
        return sum([await self._sandbox.workers.on_disk(measure, folder) for folder in folders])

    # --- deleting ---

    async def remove(self, id: str) -> int:
        if not is_box_id(id) or not self._data_dir.box(id).exists():
            return 0
        try:
            async with self._data_dir.locked(id):
                folder = self._data_dir.box(id)
                if not folder.exists():
                    return 0
                (folder / DELETING).touch()
                freed = await to_the_end(self.take_down(id))
        except (BoxNotFound, FileNotFoundError):
            return 0
        return freed + await self._snapshots.collect()

    async def take_down(self, id: str) -> int:
        """End a box and delete its files. Returns the bytes freed. The box is locked, or was never complete."""
        await self._power.end(id)
        return await self._trash.discard(self._data_dir.box(id))
