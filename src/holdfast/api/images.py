"""Images that boxes start from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from holdfast.api.document import Document, Limits
from holdfast.api.limits import ImageName, Labels, Password, PathText, ProviderName, SnapshotId, Variables


@dataclass(frozen=True, slots=True)
class ImageConfig(Document):
    """The defaults of an image for its processes."""

    env: Variables = field(default_factory=dict)
    workdir: PathText | None = None
    user: Annotated[str, Limits(min_length=1, max_length=128)] | None = None


@dataclass(frozen=True, slots=True)
class Image(Document):
    name: str
    digest: str
    """`sha256:…` of its layers and configuration. Two images with the same digest are identical."""
    layers: tuple[str, ...]
    """Digests, lowest layer first."""
    size: int
    """Bytes on disk of all layers, including those that other images share."""
    created_at: int
    """UTC milliseconds."""
    config: ImageConfig = field(default_factory=ImageConfig)
    labels: dict[str, str] = field(default_factory=dict)
    pulled: str | None = None
    """Its digest in the registry. None if it was not pulled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageList(Document):
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewImage(Document):
    """Create an image from a snapshot."""

    snapshot: SnapshotId
    name: ImageName
    provider: ProviderName = "local"
    config: ImageConfig | None = None
    """Defaults to that of the snapshot's image."""
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryCredentials(Document):
    """The user of the registry."""

    username: Annotated[str, Limits(min_length=1, max_length=256, pattern=r"^[^:\x00-\x1f]+$")]
    password: Password = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPull(Document):
    """Pull an image from a registry."""

    name: Annotated[str, Limits(min_length=1, max_length=400)]
    """A name as Docker understands it: `debian:12`, `ghcr.io/team/app:1`, `localhost:5000/app@sha256:…`."""
    save_as: ImageName | None = None
    """The local name, if it is not the same."""
    provider: ProviderName = "local"
    credentials: RegistryCredentials | None = None
    insecure: bool = False
    """Allow plain HTTP if the registry does not support TLS. On loopback it is always allowed."""
