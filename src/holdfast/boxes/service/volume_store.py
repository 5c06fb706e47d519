"""Volumes: folders that boxes mount, and that outlive them."""

from __future__ import annotations

from holdfast.api.box.snapshots import Volume
from holdfast.api.box.spec import check_name
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.provider import Provider, Providers
from holdfast.boxes.service.pool import Pool


class VolumeStore:
    """The volumes of one service, of every provider that has them."""

    def __init__(self, providers: Providers, pool: Pool) -> None:
        self._providers = providers
        self._pool = pool

    async def all(self, provider: str) -> list[Volume]:
        return await self._with_volumes(provider).volumes()

    async def create(self, name: str, provider: str) -> Volume:
        check_name(name, "volume")
        return await self._with_volumes(provider).create_volume(name)

    async def delete(self, name: str, provider: str) -> int:
        found = self._with_volumes(provider)
        await self._pool.drain_volume(provider, name)
        return await found.delete_volume(name)

    def _with_volumes(self, name: str) -> Provider:
        provider = self._providers.named(name)
        require(name, provider.capabilities, Capability.VOLUMES)
        return provider
