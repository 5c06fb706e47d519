"""The records of boxes and snapshots at Modal, in files of the home.

At Modal a sandbox that has ended is no more than an image, which has neither name nor tags. So what a box is, and which
sandbox or image has its files now, is kept here. A lock per box keeps processes on one home apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.namespace import namespace_of
from holdfast.providers.record_files import BoxLocks, RecordFiles
from holdfast.providers.snapshot_records import SnapshotRecords
from holdfast.providers.stored_record import StoredRecord

SNAPSHOT_KIND: Final = "modal-image"


class State(StrEnum):
    CREATING = "creating"
    """On its way. Left over by a crash if nobody holds its lock."""
    RUNNING = "running"
    """Its files are in `sandbox`."""
    STOPPED = "stopped"
    """Its files are in `image`."""


@dataclass(frozen=True, slots=True)
class BoxRecord(StoredRecord):
    id: str
    spec: BoxSpec
    labels: Mapping[str, str]
    created_at: int
    state: State
    snapshot: str | None = None
    """The snapshot that it was restored from."""
    sandbox: str | None = None
    image: str | None = None
    """Has its files, while it is stopped."""
    base: str | None = None
    """The image that its sandbox was started from, unless that is of a registry."""
    python: str = ""
    """The interpreter of its guest."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of every command, as the sandbox has it."""
    parent: str | None = None
    """The last snapshot of its files."""
    started_at: int = 0
    """When its sandbox was started, in UTC milliseconds. 0 if an earlier version did that."""
    kept: str | None = None
    """An image with its files as they were at `kept_at`, while its sandbox runs: it may end by itself."""
    kept_at: int = 0
    size: int = 0
    """Bytes of its files, as of the last snapshot or stop."""


class Records:
    """All records of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boxes = RecordFiles(folder / "boxes")
        self.snapshots = SnapshotRecords(folder / "snapshots")
        self.locks = BoxLocks(folder / "locks")

    def prepare(self) -> str:
        """Make the folders. Returns the namespace, which tells the sandboxes of this home from those of others."""
        for each in (self._boxes, self.snapshots, self.locks):
            each.prepare()
        return namespace_of(self._folder)

    def box(self, id: str) -> BoxRecord | None:
        found = self._boxes.read(id)
        return None if found is None else BoxRecord.from_json(found)

    def boxes(self) -> list[BoxRecord]:
        return [BoxRecord.from_json(each) for each in self._boxes.all()]

    def write_box(self, record: BoxRecord) -> BoxRecord:
        self._boxes.write(record.id, record.to_json())
        return record

    def remove_box(self, id: str) -> None:
        self._boxes.remove(id)

    def is_used(self, image: str) -> bool:
        """Returns whether a box or a snapshot needs an image."""
        return any(image in (each.image, each.base, each.kept) for each in self.boxes()) or any(
            image == each.reference for each in self.snapshots.all()
        )
