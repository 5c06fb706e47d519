"""The contract of a store of images: root filesystems that boxes begin with, by name, kept by a provider.

An image is layers, shared by digest between images and boxes, and a little configuration. Names are references such as
`holdfast/base` or `debian:12`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Mapping
from typing import Final

from holdfast.api.images import Image as Image
from holdfast.api.images import ImageConfig as ImageConfig
from holdfast.boxes.errors import InvalidSpec, Unsupported

_REFERENCE: Final = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
)


_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def check_reference(name: str) -> str:
    if len(name) > 255 or not _REFERENCE.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} cannot name an image", hint="lower case, as in holdfast/base, with a tag if you like: debian:12"
        )
    return name


def local_name(name: str) -> str:
    """The one form of an image's name on this machine.

    `debian:latest` and `docker.io/library/debian` are `debian`. A name with a digest becomes a tag that says so:
    `debian@sha256:12…` is `debian:sha256-12…`. Raises `InvalidSpec` for what cannot name an image.
    """
    short = name.removeprefix("docker.io/")
    if short != name:
        short = short.removeprefix("library/")
    repository, at, digest = short.partition("@")
    if at:
        if not _DIGEST.fullmatch(digest):
            raise InvalidSpec(f"{name[:300]!r} has no sha256 digest after the @")
        folder, slash, last = repository.rpartition("/")
        short = f"{folder}{slash}{last.partition(':')[0]}:{digest.replace(':', '-')}"
    return check_reference(short).removesuffix(":latest")


class ImageStore(ABC):
    """Raises `ImageNotFound` for names that it does not know."""

    @property
    def takes_pulled(self) -> bool:
        """Whether Holdfast pulls images for it (`import_pulled`). False where the provider pulls them by itself."""
        return False

    @abstractmethod
    async def list(self) -> list[Image]:
        """By name."""

    @abstractmethod
    async def get(self, name: str) -> Image: ...

    @abstractmethod
    async def import_archive(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        """Import an archive from a stream: a root filesystem tarball, an OCI layout or what `docker save` writes, as
        tar, plain or compressed. An existing name moves to the new image.

        Raises `HostileArchive`, and leaves nothing behind then.
        """

    @abstractmethod
    async def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        """Name a snapshot's files as an image. They are shared, not copied. Without a config: that of its image."""

    @abstractmethod
    async def remove(self, name: str) -> int:
        """Forget a name; says how many bytes that freed. Layers that something else refers to stay."""

    async def import_pulled(self, name: str, archive: AsyncIterable[bytes], digest: str) -> Image:
        """Import an OCI layout that was pulled from a registry, and keep the digest it has there: `Image.pulled`."""
        raise Unsupported("this provider pulls images by itself", hint="name the image where the box is created")
