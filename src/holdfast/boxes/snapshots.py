"""A box's files at one moment. Kept by its provider, with a manifest; boxes and later snapshots share its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Holding(StrEnum):
    REFERENCE = "reference"
    """Shares its data with other snapshots, or lies with the provider."""
    VALUE = "value"
    """Has all of its data, and can be carried elsewhere."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: str
    provider: str
    kind: str
    """What the provider made it of (`layers`, `copy`, `image`): another kind cannot be restored there."""
    holding: Holding
    box: str
    """The box that it was taken of."""
    parent: str | None
    """The snapshot that it builds on."""
    size: int
    """Bytes that it adds to its parent's."""
    created_at: int
    labels: Mapping[str, str] = field(default_factory=dict)
