"""Daytona's volumes over ours. A record gives each an id; the files are in a volume of the same name."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Any, Final

from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.errors.boxes import VolumeExists, VolumeInUse, VolumeNotFound
from holdfast.boxes.service.boxes import Boxes
from holdfast.compat.daytona.http.errors import ApiError, conflict, not_found
from holdfast.compat.daytona.models import MountedVolume
from holdfast.compat.daytona.records import Record, RecordStore
from holdfast.compat.daytona.sandbox_record import timestamp

KIND: Final = "volume"
_MOST: Final = 1000
_OUR_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Volumes:
    """The volumes of one tenant, at the provider that boxes have by default."""

    def __init__(self, boxes: Boxes, records: RecordStore) -> None:
        self._boxes = boxes
        self._records = records
        self._provider = BoxSpec().provider
        self._creating = asyncio.Lock()

    async def create(self, name: str) -> Record:
        id = str(uuid.uuid4())
        ours = name if _OUR_NAME.fullmatch(name) else f"daytona-{id}"
        now = self._boxes.clock()
        record = Record(KIND, id, name, {"volume": ours, "provider": self._provider}, now, now)
        async with self._creating:
            if await self._records.count(self._boxes.tenant, KIND) >= _MOST:
                raise ApiError(403, f"this server keeps at most {_MOST} volumes")
            if await self._records.find(self._boxes.tenant, KIND, name) is not None:
                raise conflict(f"Volume with name {name} already exists")
            try:
                await self._boxes.create_volume(ours, self._provider)
            except VolumeExists:
                raise conflict(f"Volume with name {name} already exists, outside of the Daytona API") from None
            await self._records.insert(self._boxes.tenant, record)
        return record

    async def find(self, id_or_name: str) -> Record:
        record = await self._records.find(self._boxes.tenant, KIND, id_or_name)
        if record is None:
            raise not_found(f"Volume with name or ID {id_or_name[:200]} not found")
        return record

    async def delete(self, id: str) -> None:
        record = await self.find(id)
        try:
            await self._boxes.delete_volume(record.document["volume"], record.document["provider"])
        except VolumeNotFound:
            pass
        except VolumeInUse as error:
            raise conflict(error.message) from None
        await self._records.remove(self._boxes.tenant, KIND, record.id)

    async def mounts(self, wanted: list[MountedVolume]) -> tuple[VolumeMount, ...]:
        """Returns mounts for a box. Volumes are named by id or name, as the SDK allows both."""
        mounts = []
        for each in wanted:
            volume = (await self.find(each.volume_id)).document["volume"]
            mounts.append(VolumeMount(volume, each.mount_path.rstrip("/"), each.subpath or ""))
        return tuple(mounts)

    async def list(self) -> list[Record]:
        return await self._records.list(self._boxes.tenant, KIND)


def volume_json(record: Record, organization: str, *, state: str = "ready") -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "organizationId": organization,
        "state": state,
        "createdAt": timestamp(record.created_at),
        "updatedAt": timestamp(record.changed_at),
        "lastUsedAt": timestamp(record.changed_at),
        "errorReason": None,
    }
