"""The contract of a store of images: root filesystems that boxes begin with, by name, kept by a provider.

An image is layers, shared by digest between images and boxes, and a little configuration. Names are references such as
`holdfast/base` or `debian:12`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.boxes.errors import InvalidSpec

_REFERENCE: Final = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
)


def check_reference(name: str) -> str:
    if len(name) > 255 or not _REFERENCE.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} cannot name an image", hint="lower case, as in holdfast/base, with a tag if you like: debian:12"
        )
    return name


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image asks for its processes."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"env": dict(self.env), "workdir": self.workdir, "user": self.user}


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    digest: str
    """`sha256:…` over its layers and configuration: two images of one digest are the same."""
    layers: tuple[str, ...]
    """Digests, the lowest first."""
    size: int
    """Bytes on disk, of all layers; what other images share is counted, too."""
    created_at: int
    config: ImageConfig = field(default_factory=ImageConfig)
    labels: Mapping[str, str] = field(default_factory=dict)


class ImageStore(ABC):
    """Raises `ImageNotFound` for names that it does not know."""

    @abstractmethod
    async def list(self) -> list[Image]:
        """By name."""

    @abstractmethod
    async def get(self, name: str) -> Image: ...

    @abstractmethod
    async def import_archive(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        """An archive as a stream: a root filesystem tarball, an OCI layout or what `docker save` writes, as tar, plain
        or compressed. A name that there is moves to the new image. Raises `HostileArchive`, and leaves nothing then."""

    @abstractmethod
    async def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        """Name a snapshot's files as an image. They are shared, not copied. Without a config: that of its image."""

    @abstractmethod
    async def remove(self, name: str) -> int:
        """Forget a name; says how many bytes that freed. Layers that something else refers to stay."""
