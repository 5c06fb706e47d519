"""What is kept apart from boxes: snapshots of their files, and volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.errors import SnapshotNotFound
from holdfast.boxes.labels import KEY, RESERVED, TENANT, refuse_reserved
from holdfast.boxes.provider import Provider, Volume
from holdfast.boxes.snapshots import Snapshot
from holdfast.boxes.spec import check_labels, check_name

if TYPE_CHECKING:
    from holdfast.boxes.service.boxes import Boxes


class SnapshotStore:
    """The snapshots and volumes of one service."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def snapshot(self, id: str, labels: Mapping[str, str] | None) -> Snapshot:
        row = await self._boxes.live(id)
        given = dict(labels or {})
        refuse_reserved(given)
        require(row.provider, self._boxes.provider(row.provider).capabilities, Capability.SNAPSHOTS)
        ours = {name: value for name, value in row.labels.items() if name.startswith(RESERVED)}
        check_labels({**given, **ours})
        with self._boxes.using(id):
            async with await self._boxes.peek(id) as box:
                return await box.snapshot(labels={**given, **ours})

    async def snapshots(self, *, box: str | None, key: str | None) -> list[Snapshot]:
        found: list[Snapshot] = []
        for provider in self._with_snapshots():
            found += await provider.snapshots({KEY: key} if key is not None else None)
        ours = [each for each in found if self._is_ours(each) and (box is None or each.box == box)]
        return sorted(ours, key=lambda each: (each.created_at, each.id))

    async def delete_snapshot(self, id: str) -> int:
        found = await self.find(id)
        return await self._boxes.provider(found.provider).delete_snapshot(id)

    async def find(self, id: str) -> Snapshot:
        for provider in self._with_snapshots():
            try:
                found = await provider.snapshot(id)
            except SnapshotNotFound:
                continue
            if self._is_ours(found):
                return found
        raise SnapshotNotFound(f"there is no snapshot {id}")

    def _is_ours(self, snapshot: Snapshot) -> bool:
        return snapshot.labels.get(TENANT, "default") == self._boxes.tenant

    def _with_snapshots(self) -> Iterator[Provider]:
        return (each for each in self._boxes.providers.values() if Capability.SNAPSHOTS in each.capabilities)

    async def volumes(self, provider: str) -> list[Volume]:
        return await self._with_volumes(provider).volumes()

    async def create_volume(self, name: str, provider: str) -> Volume:
        check_name(name, "volume")
        return await self._with_volumes(provider).create_volume(name)

    async def delete_volume(self, name: str, provider: str) -> int:
        found = self._with_volumes(provider)
        await self._boxes.pool.drain_volume(provider, name)
        return await found.delete_volume(name)

    def _with_volumes(self, name: str) -> Provider:
        provider = self._boxes.provider(name)
        require(name, provider.capabilities, Capability.VOLUMES)
        return provider
