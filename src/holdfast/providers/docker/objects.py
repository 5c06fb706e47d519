"""Names and labels of Holdfast's objects at a Docker daemon. Plain values and their parsing.

Labels of Docker objects cannot change. So each change of a box is stored in the labels of an empty volume, and the
latest applies.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.api.box.spec import BoxSpec
from holdfast.providers.stored_record import StoredRecord

NAMESPACE: Final = "holdfast.docker.ground"
"""The namespace of the object. The label is older than the word, and stays so that objects are found again."""
KIND: Final = "holdfast.docker.kind"
BOX: Final = "holdfast.docker.box"
RECORD: Final = "holdfast.docker.record"
MAKER: Final = "holdfast.docker.maker"
"""The process that creates the object. While it lives, other processes do not remove the object."""
NONCE: Final = "holdfast.docker.nonce"
"""Docker returns an existing volume to a request to create one. This tells which request created it."""
ABANDONED_SECONDS: Final = 900.0
"""After this time, an unfinished object of a process on another machine counts as abandoned."""
SNAPSHOT_KIND: Final = "docker-image"


class Kind:
    BOX = "box"
    HELPER = "helper"
    """A container for a short task."""
    CHANGE = "change"
    """A volume whose labels store a change of a box."""
    PART = "part"
    """A volume that binds a folder of another one, for one box."""
    VOLUME = "volume"
    SNAPSHOT = "snapshot"
    FORK = "fork"
    """An image between a box and its fork."""
    IMAGE = "image"
    GUEST = "guest"
    """A volume with the guest and its interpreter."""


# --- makers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Maker:
    """A process that creates objects."""

    machine: str
    """Boot and process namespace."""
    pid: int
    began: int
    """Start of the process in the kernel's ticks: process ids are reused."""
    at: int
    """Seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.machine}/{self.pid}/{self.began}/{self.at}"

    @classmethod
    def parse(cls, text: str) -> Maker | None:
        parts = text.split("/")
        try:
            return cls(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))
        except (IndexError, ValueError):
            return None

    @classmethod
    def this(cls) -> Maker:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
        return cls(f"{boot}.{namespace}", os.getpid(), _began(os.getpid()) or 0, int(time.time()))


def _began(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def is_abandoned(label: str | None, me: Maker, now: float) -> bool:
    """Returns whether the process that was creating something will not finish it."""
    maker = Maker.parse(label or "")
    if maker is None:
        return True
    if maker.machine == me.machine:
        return _began(maker.pid) != maker.began
    return now - maker.at > ABANDONED_SECONDS


# --- names ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Names:
    namespace: str

    def labels(self, kind: str, **more: str) -> dict[str, str]:
        return {NAMESPACE: self.namespace, KIND: kind, **more}

    def box(self, id: str) -> str:
        return f"holdfast-{self.namespace}-{id}"

    def helper(self, nonce: str) -> str:
        return f"holdfast-{self.namespace}.helper.{nonce}"

    def change(self, id: str, number: int) -> str:
        return f"{self.box(id)}.change.{number}"

    def part(self, id: str, number: int) -> str:
        return f"{self.box(id)}.part.{number}"

    def volume(self, name: str) -> str:
        return f"holdfast-{self.namespace}.volume.{name}"

    def kept(self, nonce: str) -> str:
        """Returns the name of an image without other names, while a box uses it."""
        return f"{self.kept_prefix}{nonce}"

    @property
    def kept_prefix(self) -> str:
        return f"holdfast-{self.namespace}/kept:"

    def snapshot(self, id: str) -> str:
        return f"holdfast-{self.namespace}/snapshot:{id}"


# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BoxRecord(StoredRecord):
    """The description of a box in its labels."""

    id: str
    spec: BoxSpec
    labels: Mapping[str, str]
    created_at: int
    snapshot: str | None = None
    change: int = 0
    """How many changes the box has had."""


def latest(record: BoxRecord, changes: Iterable[Mapping[str, Any]]) -> BoxRecord:
    """Returns the current state of a box, given the volumes with its changes."""
    for change in changes:
        labels = change.get("Labels") or {}
        number = str(change.get("Name", "")).rpartition(".")[2]
        if labels.get(BOX) != record.id or not number.isdigit() or int(number) <= record.change:
            continue
        document = BoxRecord.from_text(labels.get(RECORD, ""))
        if document is not None and document.id == record.id:
            record = replace(document, change=int(number))
    return record


def snapshot_to_text(snapshot: Snapshot) -> str:
    """Without quotes or spaces, which Docker does not accept in a list of changes to an image."""
    document = {
        "id": snapshot.id,
        "box": snapshot.box,
        "size": snapshot.size,
        "createdAt": snapshot.created_at,
        "labels": dict(snapshot.labels),
    }
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


def snapshot_from_text(provider: str, text: str) -> Snapshot | None:
    try:
        document = json.loads(base64.urlsafe_b64decode(text.encode()))
        return Snapshot(
            str(document["id"]),
            provider,
            SNAPSHOT_KIND,
            Holding.VALUE,
            str(document["box"]),
            None,
            int(document["size"]),
            int(document["createdAt"]),
            {str(name): str(value) for name, value in document["labels"].items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error):
        return None
