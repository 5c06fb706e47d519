"""Snapshots: files that outlive the box they came from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from holdfast.api.box.records import RESERVED
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import check_labels
from holdfast.api.errors.boxes import BoxError, SnapshotNotFound
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.labels import CHECKPOINT, KEY, TENANT, refuse_reserved
from holdfast.boxes.provider import Provider
from holdfast.boxes.service.idle.idleness import Activity
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.service.states import BoxStates
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

_LIST_SECONDS: Final = 60.0


class SnapshotStore:
    """The snapshots of one service, of every provider that has them."""

    def __init__(self, registry: Registry, providers: Providers, activity: Activity, states: BoxStates) -> None:
        self._registry = registry
        self._providers = providers
        self._activity = activity
        self._states = states

    async def take(self, id: str, labels: Mapping[str, str] | None, checkpoint: str | None = None) -> Snapshot:
        row = await self._registry.get_live(id)
        given = dict(labels or {})
        refuse_reserved(given)
        require(row.provider, self._providers.of(row).capabilities, Capability.SNAPSHOTS)
        ours = {name: value for name, value in row.labels.items() if name.startswith(RESERVED)}
        if checkpoint is not None:
            ours[CHECKPOINT] = checkpoint
        check_labels({**given, **ours})
        with self._activity.using(id):
            async with await self._states.peek(id) as box:
                return await box.snapshot(labels={**given, **ours})

    async def all(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        found: list[Snapshot] = []
        for provider in self._with_snapshots():
            found += await provider.snapshots({KEY: key} if key is not None else None)
        ours = [each for each in found if self._is_ours(each) and (box is None or each.box == box)]
        return sorted(ours, key=lambda each: (each.created_at, each.id))

    async def checkpoints(self, at: str | None, labels: Mapping[str, str]) -> list[Snapshot]:
        found: list[Snapshot] = []
        for provider in self._with_snapshots():
            if at in (None, provider.name):
                try:
                    async with time_limit(_LIST_SECONDS):
                        found += await provider.snapshots(labels)
                except (BoxError, TimeoutError) as error:
                    log.warning("cannot list the checkpoints of provider %s: %s", provider.name, error)
        ours = [each for each in found if CHECKPOINT in each.labels and self._is_ours(each)]
        return sorted(ours, key=lambda each: (each.created_at, each.id))

    async def find(self, id: str, at: str | None = None) -> Snapshot:
        """`at` is the name of its provider, if that is known."""
        for provider in self._with_snapshots():
            if at is not None and provider.name != at:
                continue
            try:
                found = await provider.snapshot(id)
            except SnapshotNotFound:
                continue
            if self._is_ours(found):
                return found
        raise SnapshotNotFound(f"there is no snapshot {id}")

    async def delete(self, id: str) -> int:
        found = await self.find(id)
        return await self._providers.named(found.provider).delete_snapshot(id)

    def _is_ours(self, snapshot: Snapshot) -> bool:
        return snapshot.labels.get(TENANT, "default") == self._registry.tenant

    def _with_snapshots(self) -> list[Provider]:
        return [each for each in self._providers.values() if Capability.SNAPSHOTS in each.capabilities]
