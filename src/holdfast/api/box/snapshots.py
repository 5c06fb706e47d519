"""Snapshots and volumes: files that outlive the box they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.api.box.records import BoxOwner
from holdfast.api.box.spec import BoxSpec
from holdfast.api.document import Document
from holdfast.api.limits import Labels, ProviderName, VolumeName


class Holding(StrEnum):
    REFERENCE = "reference"
    """Shares its data with other snapshots, or its data is with the provider."""
    VALUE = "value"
    """Contains all of its data, and can be copied elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot(Document):
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot(Document):
    """A box's files at one moment. Boxes and later snapshots share its layers."""

    id: str
    provider: str
    kind: str
    """What the provider made it of (`layers`, `copy`, `image`). A provider restores only its own kind."""
    holding: Holding
    box: str
    """The box that it was taken from."""
    parent: str | None
    """The snapshot that it builds on."""
    size: int
    """Bytes that it adds to its parent."""
    created_at: int
    """UTC milliseconds."""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotList(Document):
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Document):
    spec: BoxSpec | None = None
    """Defaults to the spec of the snapshot's box."""
    owner: BoxOwner = field(default_factory=BoxOwner)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVolume(Document):
    name: VolumeName
    provider: ProviderName = "local"


@dataclass(frozen=True, slots=True)
class Volume(Document):
    """Files that outlive boxes, mounted by name."""

    name: str
    created_at: int
    size: int | None = None
    """Bytes. None if not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeList(Document):
    volumes: tuple[Volume, ...]
