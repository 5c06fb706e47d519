"""Builds images on a server: implements what `holdfast.images` needs with this client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Mapping
from typing import TYPE_CHECKING

from holdfast.api.box.box import Box
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import ImageNotFound, SnapshotNotFound
from holdfast.api.images import Image, ImageConfig

if TYPE_CHECKING:
    from holdfast.client.client import Client


class ServerBuildHost:
    """A `holdfast.images.BuildHost`. Owns nothing; the client must outlive it."""

    def __init__(self, client: Client, provider: str = "local") -> None:
        self.provider = provider
        self._client = client

    async def image(self, name: str) -> Image:
        return await self._client.images.get(name, provider=self.provider)

    async def import_image(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        return await self._client.images.import_archive(name, archive, provider=self.provider)

    async def name_snapshot(self, snapshot: str, name: str, *, config: ImageConfig, labels: Mapping[str, str]) -> Image:
        return await self._client.images.from_snapshot(
            snapshot, name, config=config, labels=labels, provider=self.provider
        )

    async def remove_image(self, name: str) -> None:
        with contextlib.suppress(ImageNotFound):
            await self._client.images.remove(name, provider=self.provider)

    async def create(self, spec: BoxSpec) -> Box:
        return await self._client.boxes.open((await self._client.boxes.create(spec)).box.id)

    async def restore(self, snapshot: str, spec: BoxSpec) -> Box:
        return await self._client.boxes.open((await self._client.boxes.restore(snapshot, spec)).id)

    async def snapshots(self) -> list[Snapshot]:
        return [each for each in await self._client.boxes.snapshots() if each.provider == self.provider]

    async def delete_snapshot(self, id: str) -> None:
        with contextlib.suppress(SnapshotNotFound):
            await self._client.boxes.delete_snapshot(id)
