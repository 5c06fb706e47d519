"""Images that boxes begin with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from holdfast.api.document import Document, Limits
from holdfast.api.limits import ImageName, Labels, Password, PathText, ProviderName, SnapshotId, Variables


@dataclass(frozen=True, slots=True)
class ImageConfig(Document):
    """What an image asks for its processes."""

    env: Variables = field(default_factory=dict)
    workdir: PathText | None = None
    user: Annotated[str, Limits(min_length=1, max_length=128)] | None = None


@dataclass(frozen=True, slots=True)
class Image(Document):
    name: str
    digest: str
    """`sha256:…` over its layers and configuration: two images of one digest are the same."""
    layers: tuple[str, ...]
    """Digests, the lowest first."""
    size: int
    """Bytes on disk, of all layers; what other images share is counted, too."""
    created_at: int
    """UTC milliseconds."""
    config: ImageConfig = field(default_factory=ImageConfig)
    labels: dict[str, str] = field(default_factory=dict)
    pulled: str | None = None
    """The digest that the registry has it under. None if it was not pulled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageList(Document):
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewImage(Document):
    """A snapshot that is to be an image."""

    snapshot: SnapshotId
    name: ImageName
    provider: ProviderName = "local"
    config: ImageConfig | None = None
    """That of the snapshot's own image, if none is given."""
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryCredentials(Document):
    """Who asks the registry."""

    username: Annotated[str, Limits(min_length=1, max_length=256, pattern=r"^[^:\x00-\x1f]+$")]
    password: Password = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPull(Document):
    """An image in a registry that is wanted here."""

    name: Annotated[str, Limits(min_length=1, max_length=400)]
    """As Docker understands it: `debian:12`, `ghcr.io/team/app:1`, `localhost:5000/app@sha256:…`."""
    save_as: ImageName | None = None
    """Its name here, if not the same."""
    provider: ProviderName = "local"
    credentials: RegistryCredentials | None = None
    insecure: bool = False
    """Plain HTTP if the registry does not speak TLS. On loopback that is so without asking."""
