"""The contract of an image store: a provider's named root filesystems, which boxes start from.

An image consists of layers, which images and boxes share by digest, and some configuration. Names are references such
as `holdfast/base` or `debian:12`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Mapping
from typing import Final

from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import ImageNotFound, InvalidSpec, Unsupported
from holdfast.api.images import Image, ImageConfig

_REFERENCE: Final = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
)


DEFAULT_IMAGE: Final = "holdfast/default"
"""What boxes of a provider start from that name no image. Only providers that cannot import images have this name."""
PACKAGES: Final = "packages:"
"""The start of an image that is only declared, for providers that build it themselves: `packages:numpy pandas>=2`."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PACKAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]<>=!~-]*(,[<>=!~]+[A-Za-z0-9.*]+)*")


def check_reference(name: str) -> str:
    if len(name) > 255 or not _REFERENCE.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} cannot name an image", hint="lower case, as in holdfast/base, with a tag if you like: debian:12"
        )
    return name


def declared_packages(name: str) -> list[str] | None:
    """Returns the Python packages of an image that is only declared; None for any other. Raises `InvalidSpec`."""
    if not name.startswith(PACKAGES):
        return None
    packages = name.removeprefix(PACKAGES).split()
    for each in packages:
        if not _PACKAGE.fullmatch(each):
            raise InvalidSpec(f"{each[:80]!r} is no Python package", hint="for example packages:numpy pandas>=2")
    return packages


def local_name(name: str) -> str:
    """Returns the canonical form of an image's name on this machine.

    `debian:latest` and `docker.io/library/debian` become `debian`. A digest becomes a tag: `debian@sha256:12…` becomes
    `debian:sha256-12…`. Raises `InvalidSpec` if the name is malformed.
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


async def would_pull(images: ImageStore | None, name: str) -> bool:
    """Returns whether the provider of these images would pull one by itself for a new box, from wherever its name
    leads. Then a user has to have named it.
    """
    if images is None:
        return True
    try:
        await images.get(name)
    except ImageNotFound:
        return not images.takes_pulled
    except HoldfastError:
        return True  # not a name of this store, such as one with a digest
    return False


class ImageStore(ABC):
    """Methods raise `ImageNotFound` for unknown names."""

    @property
    def takes_pulled(self) -> bool:
        """Whether Holdfast pulls images for it (`import_pulled`). False where the provider pulls them by itself."""
        return False

    @property
    def takes_archives(self) -> bool:
        """Whether it has all images that boxes can start from, and takes new ones (`import_archive`). False where it
        only names snapshots, and other names are for the provider to find."""
        return True

    @abstractmethod
    async def list(self) -> list[Image]:
        """Returns all images, sorted by name."""

    @abstractmethod
    async def get(self, name: str) -> Image: ...

    @abstractmethod
    async def import_archive(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        """Import a root filesystem, an OCI layout or the output of `docker save`, as a tar stream, optionally
        compressed. An existing name moves to the new image.

        Raises `HostileArchive`, and then leaves nothing behind.
        """

    @abstractmethod
    async def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        """Create an image from a snapshot. Files are shared, not copied. `config` defaults to that of its image."""

    @abstractmethod
    async def remove(self, name: str) -> int:
        """Remove a name. Returns the bytes freed. Layers that are still in use stay."""

    async def import_pulled(self, name: str, archive: AsyncIterable[bytes], digest: str) -> Image:
        """Import an OCI layout from a registry, and record its digest there in `Image.pulled`."""
        raise Unsupported("this provider pulls images itself", hint="name the image when you create the box")
