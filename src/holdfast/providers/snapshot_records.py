"""What the home notes about a snapshot that a cloud keeps, because the cloud has no place for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.api.errors.boxes import SnapshotNotFound
from holdfast.providers.record_files import RecordFiles


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    id: str
    reference: str
    """What has its files at the provider: the id of an image, the name of a snapshot."""
    box: str
    parent: str | None
    size: int
    """Bytes that it adds to its parent's."""
    total: int
    """Bytes of all its files."""
    created_at: int
    labels: Mapping[str, str]

    def describe(self, provider: str, kind: str) -> Snapshot:
        return Snapshot(
            self.id,
            provider,
            kind,
            Holding.REFERENCE,
            self.box,
            self.parent,
            self.size,
            self.created_at,
            dict(self.labels),
        )

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"labels": dict(self.labels)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**document)


class SnapshotRecords:
    """The snapshots of one home."""

    def __init__(self, folder: Path) -> None:
        self._files = RecordFiles(folder)

    def prepare(self) -> None:
        self._files.prepare()

    def get(self, id: str) -> SnapshotRecord:
        """Raises `SnapshotNotFound`."""
        found = self.find(id)
        if found is None:
            raise SnapshotNotFound(f"there is no snapshot {id}")
        return found

    def find(self, id: str) -> SnapshotRecord | None:
        found = self._files.read(id)
        return None if found is None else SnapshotRecord.from_json(found)

    def all(self) -> list[SnapshotRecord]:
        """The oldest first."""
        found = [SnapshotRecord.from_json(each) for each in self._files.all()]
        return sorted(found, key=lambda each: (each.created_at, each.id))

    def write(self, record: SnapshotRecord) -> None:
        self._files.write(record.id, record.to_json())

    def remove(self, id: str) -> None:
        """Raises `SnapshotNotFound`."""
        if not self._files.remove(id):
            raise SnapshotNotFound(f"there is no snapshot {id}")
