"""The records of boxes and snapshots at Modal, in files of the home.

At Modal a sandbox that has ended is no more than an image, which has neither name nor tags. So what a box is, and which
sandbox or image has its files now, is kept here. A lock per box keeps processes on one home apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, InvalidSpec
from holdfast.time_limit import time_limit

SNAPSHOT_KIND: Final = "modal-image"
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LOCK_SECONDS: Final = 180.0
_LOCK_POLL: Final = 0.02


class State(StrEnum):
    CREATING = "creating"
    """On its way. Left over by a crash if nobody holds its lock."""
    RUNNING = "running"
    """Its files are in `sandbox`."""
    STOPPED = "stopped"
    """Its files are in `image`."""


@dataclass(frozen=True, slots=True)
class BoxRecord:
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
    size: int = 0
    """Bytes of its files, as of the last snapshot or stop."""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "spec": self.spec.to_json(),
            "labels": dict(self.labels),
            "createdAt": self.created_at,
            "state": self.state.value,
            "snapshot": self.snapshot,
            "sandbox": self.sandbox,
            "image": self.image,
            "base": self.base,
            "python": self.python,
            "environment": dict(self.environment),
            "parent": self.parent,
            "size": self.size,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            document["id"],
            BoxSpec.from_json(document["spec"]),
            document["labels"],
            document["createdAt"],
            State(document["state"]),
            document["snapshot"],
            document["sandbox"],
            document["image"],
            document["base"],
            document["python"],
            document["environment"],
            document["parent"],
            document["size"],
        )


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    id: str
    image: str
    box: str
    parent: str | None
    size: int
    """Bytes that it adds to its parent's."""
    total: int
    """Bytes of all its files."""
    created_at: int
    labels: Mapping[str, str]

    def describe(self, provider: str) -> Snapshot:
        return Snapshot(
            self.id,
            provider,
            SNAPSHOT_KIND,
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


class Records:
    """All records of one home. Small files, read whenever they are needed: another process may have changed them."""

    def __init__(self, folder: Path) -> None:
        self._boxes = folder / "boxes"
        self._snapshots = folder / "snapshots"
        self._locks = folder / "locks"
        self._note = folder / "namespace"

    def prepare(self) -> str:
        """Make the folders. Returns the namespace, which tells the sandboxes of this home from those of others."""
        for each in (self._boxes, self._snapshots, self._locks):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            fresh = self._note.with_name(f".namespace.{secrets.token_hex(4)}")
            fresh.write_text(secrets.token_hex(4))
            try:
                self._note.hardlink_to(fresh)
            finally:
                fresh.unlink()
        return self._note.read_text().strip()

    # --- boxes ---

    def box(self, id: str) -> BoxRecord | None:
        found = _read(self._boxes / f"{id}.json") if is_id(id) else None
        return None if found is None else BoxRecord.from_json(found)

    def boxes(self) -> list[BoxRecord]:
        return [BoxRecord.from_json(each) for each in _read_all(self._boxes)]

    def write_box(self, record: BoxRecord) -> BoxRecord:
        _write(self._boxes / f"{record.id}.json", record.to_json())
        return record

    def remove_box(self, id: str) -> None:
        (self._boxes / f"{id}.json").unlink(missing_ok=True)

    # --- snapshots ---

    def snapshot(self, id: str) -> SnapshotRecord | None:
        found = _read(self._snapshots / f"{id}.json") if is_id(id) else None
        return None if found is None else SnapshotRecord.from_json(found)

    def snapshots(self) -> list[SnapshotRecord]:
        return [SnapshotRecord.from_json(each) for each in _read_all(self._snapshots)]

    def write_snapshot(self, record: SnapshotRecord) -> None:
        _write(self._snapshots / f"{record.id}.json", record.to_json())

    def remove_snapshot(self, id: str) -> bool:
        """Returns whether there was one."""
        try:
            (self._snapshots / f"{id}.json").unlink()
        except FileNotFoundError:
            return False
        return True

    def is_used(self, image: str) -> bool:
        """Returns whether a box or a snapshot needs an image."""
        return any(image in (each.image, each.base) for each in self.boxes()) or any(
            image == each.image for each in self.snapshots()
        )

    # --- locks ---

    @contextlib.asynccontextmanager
    async def lock(self, id: str, seconds: float = _LOCK_SECONDS) -> AsyncIterator[None]:
        """Keep every other caller away from a box, in this process or another one.

        Raises `BoxConflict` if another caller does not finish in time.
        """
        path = self._locks / id
        try:
            async with time_limit(seconds):
                while (descriptor := _try_lock(path)) is None:  # noqa: ASYNC110 - another process may hold it
                    await asyncio.sleep(_LOCK_POLL)
        except TimeoutError:
            raise BoxConflict(f"another caller is changing box {id}") from None
        try:
            yield
        finally:
            if not (self._boxes / f"{id}.json").exists():
                path.unlink(missing_ok=True)
            os.close(descriptor)

    def is_locked(self, id: str) -> bool:
        path = self._locks / id
        if not path.exists():
            return False
        descriptor = _try_lock(path)
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def is_id(id: str) -> bool:
    return _ID.fullmatch(id) is not None


def check_id(id: str) -> None:
    if not is_id(id):
        raise InvalidSpec(f"{id!r} cannot be the id of a box: lower case letters, digits and -, at most 63")


def _try_lock(path: Path) -> int | None:
    """Returns a descriptor that holds the lock until it is closed, or None if another one does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:  # its holder may have removed the file meanwhile
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found


def _read_all(folder: Path) -> list[dict[str, Any]]:
    found = (_read(path) for path in folder.glob("*.json"))
    return [each for each in found if each is not None]


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a file as a whole: after a power cut, it has either the old content or the new."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(document).encode())
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
