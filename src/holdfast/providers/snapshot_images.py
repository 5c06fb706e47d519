"""Images of a cloud that keeps snapshots: names for some of them, which the home notes.

Such a cloud takes no root filesystems. An image is built there in a box that starts from the cloud's own image, which
is `DEFAULT_IMAGE` here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.api.errors.boxes import ImageNotFound, SnapshotInUse, Unsupported
from holdfast.api.ids import now_ms
from holdfast.api.images import Image, ImageConfig
from holdfast.boxes.images import DEFAULT_IMAGE, ImageStore, local_name
from holdfast.providers.record_files import RecordFiles
from holdfast.providers.snapshot_records import SnapshotRecords


class SnapshotImages(ImageStore):
    """The images of one home. A snapshot that has a name is not deleted."""

    def __init__(self, provider: str, folder: Path, snapshots: SnapshotRecords) -> None:
        self._provider = provider
        self._files = RecordFiles(folder)
        self._snapshots = snapshots

    @property
    def takes_archives(self) -> bool:
        return False

    def prepare(self) -> None:
        self._files.prepare()

    def reference(self, name: str) -> str | None:
        """Returns what has the files of an image at the cloud, or None if the name is not one of ours."""
        found = self._files.read(_id(name))
        kept = None if found is None else self._snapshots.find(str(found["snapshot"]))
        return None if kept is None else kept.reference

    def check_unused(self, snapshot: str) -> None:
        """Raises `SnapshotInUse`."""
        for each in self._files.all():
            if each["snapshot"] == snapshot:
                name = each["image"]["name"]
                raise SnapshotInUse(f"snapshot {snapshot} is image {name}", hint=f"holdfast image remove {name}")

    async def list(self) -> list[Image]:
        found = await asyncio.to_thread(self._files.all)
        return sorted((Image.from_json(each["image"]) for each in found), key=lambda image: image.name)

    async def get(self, name: str) -> Image:
        if name == DEFAULT_IMAGE:
            return Image(DEFAULT_IMAGE, _digest(self._provider), (), 0, 0)
        found = await asyncio.to_thread(self._files.read, _id(name))
        if found is None or self.reference(name) is None:
            raise ImageNotFound(
                f"provider {self._provider} has no image {name} of this home", hint="holdfast image list"
            )
        return Image.from_json(found["image"])

    async def import_archive(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        raise Unsupported(
            f"provider {self._provider} takes no root filesystems", hint="name an image that it can find itself"
        )

    async def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        kept = self._snapshots.get(snapshot)
        made = Image(local_name(name), _digest(kept.reference), (), kept.total, now_ms(), config or ImageConfig())
        made = replace(made, labels=dict(labels or {}))
        document = {"snapshot": kept.id, "image": made.to_json()}
        await asyncio.to_thread(self._files.write, _id(name), document)
        return made

    async def remove(self, name: str) -> int:
        """Returns 0: the snapshot stays, and can be deleted now."""
        if not await asyncio.to_thread(self._files.remove, _id(name)):
            raise ImageNotFound(f"provider {self._provider} has no image {name} of this home")
        return 0


def _id(name: str) -> str:
    return "i-" + hashlib.sha256(local_name(name).encode()).hexdigest()[:24]


def _digest(reference: str) -> str:
    """Snapshots of a cloud do not change, so their names tell them apart."""
    return f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"
