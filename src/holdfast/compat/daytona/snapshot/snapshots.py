"""Daytona's snapshots: named beginnings of sandboxes. One is an image, a build, or the files of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from typing import Any, Final

from holdfast.api.errors.boxes import BoxError, SnapshotNotFound
from holdfast.boxes.service.boxes import Boxes
from holdfast.compat.daytona.http.errors import ApiError, api_error, bad_request, conflict, not_found, not_supported
from holdfast.compat.daytona.models import NewSnapshot
from holdfast.compat.daytona.records import Record, RecordStore
from holdfast.compat.daytona.sandbox_record import build_info, timestamp
from holdfast.compat.daytona.snapshot.build_log import BuildLog
from holdfast.compat.daytona.snapshot.images import Images, Origin

KIND: Final = "snapshot"
DEFAULT: Final = "daytona-small"
GENERAL: Final = {DEFAULT: (1, 1, 3), "daytona-medium": (2, 4, 8), "daytona-large": (4, 8, 10)}
"""Snapshots that everybody has, with their cores and gigabytes of memory and disk. Their files are the provider's."""
_MOST: Final = 10_000
log = logging.getLogger(__name__)


class Snapshots:
    """The snapshots of one tenant. Owns the tasks that make them, from the request to `close`."""

    def __init__(self, boxes: Boxes, records: RecordStore, images: Images) -> None:
        self._boxes = boxes
        self._records = records
        self._images = images
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.logs: dict[str, BuildLog] = {}

    async def open(self) -> None:
        """Note the snapshots whose making ended with an earlier server."""
        for record in await self._own():
            if record.document["state"] in ("building", "pulling", "removing"):
                await self._change(record.id, state="error", error="the server stopped while it was made")

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def find(self, id_or_name: str) -> Record:
        if id_or_name in GENERAL:
            return _general(id_or_name)
        record = await self._records.find(self._boxes.tenant, KIND, id_or_name)
        if record is None:
            raise not_found(f"Snapshot {id_or_name[:200]} not found")
        return record

    async def all(self) -> list[Record]:
        """Newest first, and then those that everybody has."""
        return [*await self._own(), *map(_general, GENERAL)]

    async def _own(self) -> list[Record]:
        return await self._records.list(self._boxes.tenant, KIND)

    async def origin(self, record: Record) -> Origin:
        """Returns what a new sandbox begins with."""
        document = record.document
        if document["state"] != "active":
            raise bad_request(f"Snapshot {record.name} is {document['state']}, not active")
        if record.name in GENERAL:
            return Origin()
        await self._change(record.id, used_at=self._boxes.clock())
        return Origin(
            document["image"],
            document["box_snapshot"],
            document["env"],
            document["workdir"],
            document.get("user"),
            tuple(document["entrypoint"]),
        )

    async def create(self, new: NewSnapshot, provider: str) -> Record:
        """Answers at once. The SDK asks again until the snapshot is active."""
        if new.gpu:
            raise not_supported("this server has no GPUs")
        if new.build_info is None and not new.image_name:
            raise bad_request("either imageName or buildInfo is needed")
        if new.image_name and not _has_tag(new.image_name):
            raise bad_request(f"image {new.image_name[:200]} needs a tag or a digest, and not the tag latest")
        dockerfile = new.build_info.dockerfile_content if new.build_info else None
        small = GENERAL[DEFAULT]
        record = await self._insert(
            new.name,
            state="building" if dockerfile else "pulling",
            image=new.image_name,
            dockerfile=dockerfile,
            entrypoint=new.entrypoint or [],
            cpu=new.cpu or small[0],
            memory=new.memory or small[1],
            disk=new.disk or small[2],
            limited=[name for name in ("cpu", "memory", "disk") if getattr(new, name)],
        )
        build_log = self.logs[record.id] = BuildLog()
        while len(self.logs) > 100:
            self.logs.pop(next(iter(self.logs)))
        task = asyncio.create_task(self._make(record, provider, build_log), name=f"snapshot {record.id}")
        self._tasks[record.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(record.id, None))
        if dockerfile is None:
            # Images that are here already are ready at once. A build goes on, so that its log can be followed.
            await asyncio.wait([task], timeout=0.2)
        return await self.find(record.id)

    async def of_sandbox(self, sandbox: str, box: str, name: str, like: dict[str, Any]) -> Record:
        """Take a snapshot of a sandbox's files. `like` has its resources and its image."""
        if name in GENERAL or await self._records.find(self._boxes.tenant, KIND, name) is not None:
            raise conflict(f"Snapshot with name {name} already exists")
        taken = await self._boxes.snapshot(box)
        try:
            return await self._insert(
                name, state="active", source=sandbox, box_snapshot=taken.id, size=taken.size, **like
            )
        except ApiError:
            await self._boxes.delete_snapshot(taken.id)
            raise

    async def delete(self, id_or_name: str) -> None:
        if id_or_name in GENERAL:
            raise ApiError(403, f"Snapshot {id_or_name} is everybody's and cannot be deleted")
        record = await self.find(id_or_name)
        if (task := self._tasks.get(record.id)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        taken = record.document["box_snapshot"]
        if taken and not record.document["dockerfile"]:  # builds are kept, for the same Dockerfile
            with contextlib.suppress(SnapshotNotFound):
                await self._boxes.delete_snapshot(taken)
        await self._records.remove(self._boxes.tenant, KIND, record.id)

    async def activate(self, id_or_name: str) -> Record:
        record = await self.find(id_or_name)
        if record.document["state"] == "active":
            raise bad_request(f"Snapshot {record.name} is already active")
        if record.document["state"] != "inactive":
            raise bad_request(f"Snapshot {record.name} cannot be activated: it is {record.document['state']}")
        return await self._change(record.id, state="active")

    async def deactivate(self, id_or_name: str) -> None:
        if id_or_name in GENERAL:
            raise ApiError(403, f"Snapshot {id_or_name} is everybody's and cannot be deactivated")
        record = await self.find(id_or_name)
        if record.document["state"] != "active":
            raise bad_request(f"Snapshot {record.name} is not active")
        await self._change(record.id, state="inactive")

    async def _make(self, record: Record, provider: str, build_log: BuildLog) -> None:
        document = record.document
        try:
            if document["dockerfile"]:
                origin = await self._images.built(document["dockerfile"], provider, build_log.add)
            else:
                origin = await self._images.named(document["image"], provider, build_log.add)
            await self._change(
                record.id,
                state="active",
                image=origin.image,
                box_snapshot=origin.snapshot,
                env=origin.env,
                workdir=origin.workdir,
                user=origin.user,
                entrypoint=document["entrypoint"] or list(origin.entrypoint),
            )
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not isinstance(error, (ApiError, BoxError)):
                log.exception("snapshot %s could not be made", record.id)
            message = api_error(error).message
            build_log.add(message)
            state = "build_failed" if document["dockerfile"] else "error"
            with contextlib.suppress(ApiError):  # it may have been deleted meanwhile
                await self._change(record.id, state=state, error=message)
        finally:
            build_log.end()

    async def _insert(self, name: str, **document: Any) -> Record:
        if await self._records.count(self._boxes.tenant, KIND) >= _MOST:
            raise ApiError(403, f"this server keeps at most {_MOST} snapshots")
        now = self._boxes.clock()
        whole = {**_EMPTY, **document}
        record = Record(KIND, str(uuid.uuid4()), name, whole, now, now)
        if name in GENERAL or not await self._records.insert(self._boxes.tenant, record):
            raise conflict(f"Snapshot with name {name} already exists")
        return record

    async def _change(self, id: str, **changes: Any) -> Record:
        changed = await self._records.change(
            self._boxes.tenant, KIND, id, lambda document: {**document, **changes}, self._boxes.clock()
        )
        if changed is None:
            raise not_found(f"Snapshot {id} not found")
        return changed


_EMPTY: Final[dict[str, Any]] = {
    "state": "active",
    "image": None,
    "box_snapshot": None,
    "dockerfile": None,
    "entrypoint": [],
    "env": {},
    "workdir": None,
    "cpu": 1,
    "memory": 1,
    "disk": 3,
    "limited": [],
    "size": 0,
    "error": None,
    "source": None,
    "used_at": None,
}


def _general(name: str) -> Record:
    cpu, memory, disk = GENERAL[name]
    limited = [] if name == DEFAULT else ["cpu", "memory", "disk"]
    document = {**_EMPTY, "cpu": cpu, "memory": memory, "disk": disk, "limited": limited}
    return Record(KIND, name, name, document, 0, 0)


def _has_tag(image: str) -> bool:
    last = image.rpartition("/")[2]
    return "@" in last or (":" in last and not last.endswith(":latest"))


def snapshot_json(record: Record, organization: str) -> dict[str, Any]:
    document = record.document
    shown: dict[str, Any] = {
        "id": record.id,
        "organizationId": organization,
        "general": record.name in GENERAL,
        "name": record.name,
        "imageName": document["image"] or "",
        "state": document["state"],
        "size": round(document["size"] / (1 << 30), 3),
        "entrypoint": document["entrypoint"],
        "cpu": document["cpu"],
        "gpu": 0,
        "mem": document["memory"],
        "disk": document["disk"],
        "errorReason": document["error"],
        "createdAt": timestamp(record.created_at),
        "updatedAt": timestamp(record.changed_at),
        "lastUsedAt": timestamp(document["used_at"] or record.created_at),
        "sourceSandboxId": document["source"],
        "sandboxClass": "container",
        "ref": record.id,
    }
    if document["dockerfile"]:
        shown["buildInfo"] = build_info(document["dockerfile"], record)
    return shown
