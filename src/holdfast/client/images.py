"""The images that boxes start from: `client.images`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.api.box.records import Freed
from holdfast.api.errors import Unreachable
from holdfast.api.images import Image, ImageConfig, ImageList, NewImage, NewPull, RegistryCredentials
from holdfast.client.connection import ServerConnection, encode_json
from holdfast.client.progress_lines import follow_progress
from holdfast.client.resource import LONG_SECONDS, Resource

if TYPE_CHECKING:
    from holdfast.api.progress import Progress


class Images:
    """The images of a server's providers. Raises `ImageNotFound` for unknown names."""

    def __init__(self, connection: ServerConnection) -> None:
        self._images = Resource(connection, "/v1/images")

    async def get(self, name: str, *, provider: str = "local") -> Image:
        """Returns an image by name or digest."""
        answer = await self._images.ask("GET", f"/{quote(name)}", parameters=[("provider", provider)])
        return answer.read(Image.from_json)

    async def import_archive(
        self, name: str, archive: AsyncIterable[bytes] | bytes, *, provider: str = "local"
    ) -> Image:
        """Import a root filesystem tarball, an OCI layout or the output of `docker save`, compressed or not.

        Raises `HostileArchive`, `BadArchive` or `NoSpace`. A failed import leaves nothing behind.
        """
        async with self._images.exchange(
            "POST", "/import", parameters=[("name", name), ("provider", provider)], body=archive, silence=LONG_SECONDS
        ) as response:
            return Image.from_json(json.loads(await response.aread()))

    async def pull(
        self,
        name: str,
        *,
        save_as: str | None = None,
        credentials: tuple[str, str] | None = None,
        insecure: bool = False,
        provider: str = "local",
        progress: Progress | None = None,
    ) -> Image:
        """Pull an image from a registry by its Docker name. It is saved under that name or `save_as`.

        The server fetches it. `credentials` are a user name and a password for the registry; they are used for this
        pull only and not stored. `insecure` allows plain HTTP, which is always allowed on loopback. Raises
        `NotInRegistry`, `RegistryRefused`, `RegistryFailed`, `HostileArchive`, `BadArchive` or `NoSpace`.
        """
        asked = None if credentials is None else RegistryCredentials(username=credentials[0], password=credentials[1])
        new = NewPull(name=name, save_as=save_as, insecure=insecure, provider=provider, credentials=asked)
        body = encode_json(new.to_request())
        media_type = "application/json"
        async with self._images.exchange(
            "POST", "/pull", body=body, media_type=media_type, silence=LONG_SECONDS
        ) as response:
            if (last := await follow_progress(response, progress)) is not None:
                return Image.from_json(last["image"])
        raise Unreachable(
            f"{self._images.url} closed the connection before the image was pulled",
            hint="pull it again: downloaded layers are kept",
        )

    async def from_snapshot(
        self,
        snapshot: str,
        name: str,
        *,
        config: ImageConfig | None = None,
        labels: Mapping[str, str] | None = None,
        provider: str = "local",
    ) -> Image:
        """Name a snapshot's files as an image. Without a config, uses that of the snapshot's image."""
        new = NewImage(snapshot=snapshot, name=name, provider=provider, labels=dict(labels or {}), config=config)
        answer = await self._images.ask("POST", "", new.to_request(), timeout=LONG_SECONDS)
        return answer.read(Image.from_json)

    async def remove(self, name: str, *, provider: str = "local") -> int:
        """Remove a name. Returns the bytes freed."""
        parameters = [("provider", provider)]
        answer = await self._images.ask(
            "DELETE", f"/{quote(name)}", parameters=parameters, repeatable=False, timeout=LONG_SECONDS
        )
        return answer.read(Freed.from_json).freed

    # Last, so that `list` means the builtin everywhere above.
    async def list(self, *, provider: str = "local") -> list[Image]:
        """Returns all images, sorted by name."""
        answer = await self._images.ask("GET", parameters=[("provider", provider)])
        return list(answer.read(ImageList.from_json).images)
