"""The snapshots that boxes hibernate with. If the provider loses the box, it is restored from its snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from holdfast.api.box.box import Box
from holdfast.api.box.records import RESERVED
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.errors.boxes import SnapshotNotFound
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import HIBERNATION
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.providers import Providers


class SleepSnapshots:
    """The hibernation snapshots of all providers that support snapshots."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers

    async def take(self, box: Box, row: BoxRow) -> None:
        """Take a snapshot, and remove the one of the previous hibernation."""
        provider = self._providers.of(row)
        if Capability.SNAPSHOTS not in provider.capabilities:
            return
        ours = {name: value for name, value in row.labels.items() if name.startswith(RESERVED)}
        taken = await box.snapshot(labels={**ours, HIBERNATION: row.id})
        await _remove(row.id, provider, but=taken.id)

    async def of(self, row: BoxRow) -> Snapshot | None:
        """Returns the latest snapshot of a box."""
        provider = self._providers.of(row)
        if Capability.SNAPSHOTS not in provider.capabilities:
            return None
        found = await provider.snapshots({HIBERNATION: row.id})
        return max(found, key=lambda each: (each.created_at, each.id), default=None)

    async def remove_of(self, row: BoxRow) -> int:
        """Remove the snapshots of a deleted box. Returns the bytes freed."""
        return await _remove(row.id, self._providers.of(row))

    async def remove(self, snapshots: Iterable[Snapshot]) -> int:
        """Remove these snapshots. Returns the bytes freed."""
        freed = 0
        for each in snapshots:
            with suppress(SnapshotNotFound):
                freed += await self._providers.named(each.provider).delete_snapshot(each.id)
        return freed


async def _remove(id: str, provider: Provider, *, but: str | None = None) -> int:
    if Capability.SNAPSHOTS not in provider.capabilities:
        return 0
    freed = 0
    for each in await provider.snapshots({HIBERNATION: id}):
        if each.id != but:
            with suppress(SnapshotNotFound):
                freed += await provider.delete_snapshot(each.id)
    return freed
