"""The common part of providers whose guests pass descriptors: boxes, snapshots and volumes in a local folder."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping

from holdfast.api.box.box import Box, BoxInfo, Liveness, Wake
from holdfast.api.box.records import Step
from holdfast.api.box.snapshots import Snapshot, Volume
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import (
    BoxError,
    BoxGone,
    BoxNotFound,
)
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.labels import matches
from holdfast.boxes.provider import Provider, Swept, is_box_id
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.diagnosis import diagnose_box
from holdfast.providers.host.disk import disk_guard, layers, volumes
from holdfast.providers.host.disk.data_dir import CREATING, DELETING
from holdfast.providers.host.disk.trash import Trash
from holdfast.providers.host.lifecycle import HostLifecycle
from holdfast.providers.host.power import BoxPower
from holdfast.providers.host.sandbox import Sandbox
from holdfast.providers.host.snapshots import SnapshotStore

log = logging.getLogger(__name__)


class GuestProvider(Provider):
    """Boxes with a guest that passes descriptors. The sandbox determines how they run."""

    snapshot_kind = layers.KIND

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.data_dir = sandbox.data_dir
        self.power = BoxPower(sandbox)
        self._trash = Trash(self.data_dir, sandbox.workers)
        self.snapshot_store = SnapshotStore(sandbox, self.power, self._trash)
        self.lifecycle = HostLifecycle(sandbox, self.power, self.snapshot_store, self._trash)

    async def open(self) -> None:
        self.lifecycle.open()

    async def close(self) -> None:
        await self.sandbox.workers.close()
        self.lifecycle.close()
        self.power.close()

    # --- boxes ---

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        return await self.lifecycle.create(spec, id, labels or {})

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        return await self.lifecycle.restore(snapshot, spec, id, labels or {})

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        return await self.lifecycle.hand_over(id, spec, labels, created_at)

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        records = sorted(self.data_dir.records(), key=lambda record: (record.created_at, record.id))
        return [self.power.describe(record) for record in records if matches(record.labels, labels or {})]

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        return self.lifecycle.handle(self.power.describe(self.power.record(id)), wake)

    async def probe(self, id: str) -> Liveness:
        try:
            self.power.record(id)
        except (BoxNotFound, BoxGone):
            return Liveness.GONE
        except OSError:
            return Liveness.UNKNOWN
        return Liveness.LIVE

    async def remove(self, id: str) -> int:
        return await self.lifecycle.remove(id)

    # --- snapshots ---

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        return await self.snapshot_store.all(labels or {})

    async def snapshot(self, id: str) -> Snapshot:
        return self.snapshot_store.get(id)

    async def snapshot_cost(self, id: str) -> int | None:
        return await self.snapshot_store.cost(self.power.record(id))

    async def delete_snapshot(self, id: str) -> int:
        return await self.snapshot_store.delete(id)

    async def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        require(self.name, self.capabilities, Capability.EXPORT)
        async with contextlib.aclosing(self.snapshot_store.export(id)) as pieces:
            async for piece in pieces:
                yield piece

    async def import_snapshot(self, stream: AsyncIterable[bytes]) -> Snapshot:
        require(self.name, self.capabilities, Capability.EXPORT)
        return await self.snapshot_store.import_(stream)

    # --- volumes ---

    async def create_volume(self, name: str) -> Volume:
        require(self.name, self.capabilities, Capability.VOLUMES)
        return volumes.create(self.data_dir, name)

    async def volumes(self) -> list[Volume]:
        return volumes.all_volumes(self.data_dir)

    async def delete_volume(self, name: str) -> int:
        require(self.name, self.capabilities, Capability.VOLUMES)
        moved = await self.sandbox.workers.on_disk(volumes.delete, self.data_dir, name)
        return await self._trash.remove([moved] if moved else [])

    # --- housekeeping ---

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        on_disk = self.sandbox.workers.on_disk
        removed: list[str] = []
        freed = 0
        for id in self.data_dir.ids():
            if self._why_remove(id, keep) is None and not await on_disk(self.sandbox.needs_repair, id):
                continue
            lock = None
            with contextlib.suppress(BoxNotFound):
                lock = self.data_dir.try_lock(id)
            if lock is None:
                continue  # another operation is changing it
            try:
                why = self._why_remove(id, keep)  # again, now that it is locked
                if why is not None:
                    freed += await to_the_end(self.lifecycle.take_down(id))
                    removed.append(f"box {id}: {why}")
                elif await on_disk(self.sandbox.needs_repair, id):
                    await to_the_end(self.sandbox.repair(id))
            except BoxError as error:
                log.warning("cannot sweep box %s: %s", id, error)
            finally:
                os.close(lock)
        freed += await self.snapshot_store.collect()
        for folder in (self.data_dir.volumes, self.data_dir.runtime):
            await on_disk(self.data_dir.tidy, folder)
        freed += await self._trash.clear()
        removed += await on_disk(self.sandbox.sweep_machine)
        return Swept(tuple(removed), freed)

    def _why_remove(self, id: str, keep: Collection[str] | None) -> str | None:
        folder = self.data_dir.box(id)
        if (folder / DELETING).exists():
            return "its deletion was interrupted"
        if (folder / CREATING).exists() or not (folder / "box.json").exists():
            return "its creation was interrupted"
        if keep is not None and id not in keep:
            return "it is unknown to the server"
        return None

    async def diagnose(self, id: str | None = None) -> list[Step]:
        steps = await self._diagnose_provider()
        if id is not None and all(step.ok for step in steps):
            steps += await diagnose_box(self, id)
            steps += self._diagnose_disk(id) if is_box_id(id) else []
        return steps

    async def _diagnose_provider(self) -> list[Step]:
        begin = time.perf_counter()
        usable = self.data_dir.boxes.is_dir() and os.access(self.data_dir.boxes, os.W_OK)
        taken = (time.perf_counter() - begin) * 1000
        next_step = None if usable else "make the folder writable for the server, and restart it"
        return [Step("boxes folder", usable, taken, str(self.data_dir.boxes), next_step)]

    def _diagnose_disk(self, id: str) -> list[Step]:
        why = disk_guard.read_note(self.data_dir.box(id))
        if why is None:
            return []
        return [Step("disk", False, 0.0, f"its processes were ended: {why}", "make room in it, or give it more disk")]
