"""Where images are built: boxes, snapshots and images of one provider.

Implemented by a provider in this process, and by a server through its client (`holdfast.client.image_build`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Final, Protocol

from holdfast.api.box.box import Box
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.boxes import BoxError, ImageNotFound, SnapshotNotFound, Unsupported
from holdfast.api.ids import new_id
from holdfast.api.images import Image, ImageConfig
from holdfast.boxes.provider import Provider

BUILD: Final = "image-build"
"""Label: the hash of the step that a snapshot is the result of, or of everything that an image was built from."""
BUILD_OF: Final = "image-build-of"
"""Label: the name of the image."""
_IDLE_SECONDS: Final = 900
"""A build that was killed leaves a box, which is deleted after this idle time."""
_OUTPUT: Final = 64 * 1024


class BuildHost(Protocol):
    provider: str

    async def image(self, name: str) -> Image:
        """Raises `ImageNotFound`."""

    async def import_image(self, name: str, archive: AsyncIterable[bytes]) -> Image: ...

    async def name_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig, labels: Mapping[str, str]
    ) -> Image: ...

    async def remove_image(self, name: str) -> None: ...

    async def create(self, spec: BoxSpec) -> Box: ...

    async def restore(self, snapshot: str, spec: BoxSpec) -> Box: ...

    async def snapshots(self) -> list[Snapshot]: ...

    async def delete_snapshot(self, id: str) -> None: ...


def build_spec(host: BuildHost, image: str, network: NetworkPolicy, name: str) -> BoxSpec:
    """Returns the spec of the box that an image is built in."""
    return BoxSpec(
        provider=host.provider,
        image=image,
        network=network,
        lifetime=Lifetime.EPHEMERAL,
        idle_seconds=_IDLE_SECONDS,
        labels={BUILD_OF: name},
    )


@contextlib.asynccontextmanager
async def temporary_box(box: Box) -> AsyncIterator[Box]:
    """Yields a box and deletes it at the end, whatever happens."""
    try:
        yield box
    except BaseException:
        # The original error matters more than the box, which is deleted when it has been idle.
        with contextlib.suppress(BoxError):
            await box.delete()
        raise
    else:
        await box.delete()
    finally:
        await box.close()


async def image_or_none(host: BuildHost, name: str) -> Image | None:
    with contextlib.suppress(ImageNotFound):
        return await host.image(name)
    return None


class LastOutput:
    """The end of a command's output, both streams in order of arrival."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        self._kept += data
        del self._kept[:-_OUTPUT]

    @property
    def data(self) -> bytes:
        return bytes(self._kept)


class ProviderBuildHost:
    """A provider in this process. Does not own the provider."""

    def __init__(self, provider: Provider) -> None:
        if provider.images is None:
            raise Unsupported(f"provider {provider.name} keeps no images")
        self.provider = provider.name
        self._provider = provider
        self._images = provider.images

    async def image(self, name: str) -> Image:
        return await self._images.get(name)

    async def import_image(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        return await self._images.import_archive(name, archive)

    async def name_snapshot(self, snapshot: str, name: str, *, config: ImageConfig, labels: Mapping[str, str]) -> Image:
        return await self._images.from_snapshot(snapshot, name, config=config, labels=labels)

    async def remove_image(self, name: str) -> None:
        with contextlib.suppress(ImageNotFound):
            await self._images.remove(name)

    async def create(self, spec: BoxSpec) -> Box:
        return await self._provider.create(spec, id=new_id("b"))

    async def restore(self, snapshot: str, spec: BoxSpec) -> Box:
        return await self._provider.restore(snapshot, spec, id=new_id("b"))

    async def snapshots(self) -> list[Snapshot]:
        return await self._provider.snapshots()

    async def delete_snapshot(self, id: str) -> None:
        with contextlib.suppress(SnapshotNotFound):
            await self._provider.delete_snapshot(id)
