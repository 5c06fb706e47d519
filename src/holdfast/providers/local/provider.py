"""Boxes on this machine, confined by bubblewrap."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from holdfast.api.box.box import Power
from holdfast.api.box.records import Step
from holdfast.api.errors.boxes import BoxError
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import Egress
from holdfast.providers.host.disk import layers
from holdfast.providers.host.disk.disk_guard import DiskGuard, Watched
from holdfast.providers.host.guest_provider import GuestProvider
from holdfast.providers.local.images import LocalImages
from holdfast.providers.local.sandbox import LocalSandbox

log = logging.getLogger(__name__)

_CONCURRENT: Final = 16
"""Boxes that are reconnected at a time when a server comes back."""


class LocalProvider(GuestProvider):
    """Boxes confined by bubblewrap. They outlive this object and the server."""

    name = "local"
    isolation = "bubblewrap, seccomp"
    takes_checkpoints = True
    capabilities: frozenset[Capability] = frozenset()
    images: LocalImages
    sandbox: LocalSandbox

    def __init__(self, home: Path, *, egress: Egress | None = None, box_disk: int | None = None) -> None:
        """`home` is the server's folder. Boxes are stored in `local` below it, and never see the rest.

        Without an `egress`, boxes have no network. If several providers on one home have one, the first serves the
        boxes. `box_disk` is how many bytes a box may have on disk if its spec has no limit.
        """
        super().__init__(LocalSandbox(self.name, home.absolute(), egress=egress, box_disk=box_disk))
        self.images = LocalImages(self.data_dir, self.snapshot_store.collect)
        self._guard: DiskGuard | None = None

    async def open(self) -> None:
        if self.sandbox.is_open:
            return
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        await super().open()
        await self.sandbox.open()
        self.edition = self.sandbox.mounted.folder.name
        self.capabilities = self.sandbox.capabilities
        self._guard = DiskGuard(self.data_dir.path, self._running, self.sandbox.kill_processes)
        if self.sandbox.serves_egress:
            self.sandbox.workers.in_background(self._reconnect())

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.close()
            self._guard = None
        await super().close()
        self.sandbox.close()

    def _running(self) -> list[Watched]:
        return [
            Watched(
                record.id,
                self.data_dir.box(record.id),
                self.sandbox.disk_limit(record.spec),
                tuple(layers.own(self.data_dir, record)),
                by_default=record.spec.disk is None,
            )
            for record in self.data_dir.records()
            if self.power.of_guest(self.sandbox.guest(record.id)) is Power.RUNNING
        ]

    async def _reconnect(self) -> None:
        """Serve the egress of boxes that kept running without a server. Their connections have been waiting."""
        cut_off = [record.id for record in self.data_dir.records() if self.sandbox.is_cut_off(record.id)]
        turns = asyncio.Semaphore(_CONCURRENT)

        async def reconnect(id: str) -> None:
            try:
                async with turns, self.power.exclusive(id) as record:
                    if self.sandbox.is_cut_off(id):
                        await self.sandbox.open_egress(self.sandbox.guest(id), record)
            except BoxError as error:
                log.warning("box %s has no egress: %s", id, error)

        await asyncio.gather(*(reconnect(id) for id in cut_off))

    async def _diagnose_provider(self) -> list[Step]:
        steps = await super()._diagnose_provider()
        backend = self.sandbox.backend
        detail = backend.kind if backend.why is None else f"{backend.kind}: {backend.why}"
        return [*steps, Step("limits", True, 0.0, detail)]
