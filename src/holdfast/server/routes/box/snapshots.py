"""REST: snapshots of boxes, and volumes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from holdfast.api.box.records import BoxRecord, Freed
from holdfast.api.box.snapshots import NewSnapshot, NewVolume, Restore, Snapshot, SnapshotList, Volume, VolumeList
from holdfast.api.errors.boxes import SnapshotNotFound
from holdfast.api.limits import BoxId, BoxKey, ProviderName, SnapshotId, VolumeName
from holdfast.boxes.provider import Provider
from holdfast.boxes.service.boxes import Boxes
from holdfast.server.routes.box.views import box_record, chosen_owner
from holdfast.server.routes.requests import BOX_ERRORS, OCTETS, began, binary_answer, binary_body
from holdfast.server.routes.services import UseBoxes

router = APIRouter(prefix="/v1", responses=BOX_ERRORS)


@router.post("/boxes/{id}/snapshots", status_code=201, tags=["snapshots"])
async def take_snapshot(id: BoxId, boxes: UseBoxes, new: NewSnapshot | None = None) -> Snapshot:
    """Create a snapshot of the files of a box."""
    return await boxes.snapshot(id, new.labels if new is not None else {})


@router.get("/snapshots", tags=["snapshots"])
async def list_snapshots(boxes: UseBoxes, box: BoxId | None = None, key: BoxKey | None = None) -> SnapshotList:
    """List snapshots, oldest first."""
    return SnapshotList(snapshots=tuple(await boxes.snapshots(box=box, key=key)))


@router.post("/snapshots/import", status_code=201, tags=["snapshots"], openapi_extra=binary_body())
async def import_snapshot(request: Request, boxes: UseBoxes, provider: ProviderName = "local") -> Snapshot:
    """Import a snapshot that was exported from this or another server."""
    return await boxes.provider(provider).import_snapshot(request.stream())


@router.delete("/snapshots/{id}", tags=["snapshots"])
async def delete_snapshot(id: SnapshotId, boxes: UseBoxes) -> Freed:
    """Delete a snapshot. Files that are still in use stay."""
    return Freed(freed=await boxes.delete_snapshot(id))


@router.post("/snapshots/{id}/restore", status_code=201, tags=["snapshots"])
async def restore_snapshot(id: SnapshotId, boxes: UseBoxes, restore: Restore | None = None) -> BoxRecord:
    """Create a box that starts with the files of a snapshot."""
    wanted = restore or Restore()
    return box_record(await boxes.restore(id, wanted.spec, owner=chosen_owner(wanted.owner)))


@router.get(
    "/snapshots/{id}/export",
    tags=["snapshots"],
    response_class=StreamingResponse,
    responses=binary_answer("The exported snapshot."),
)
async def export_snapshot(id: SnapshotId, boxes: UseBoxes) -> StreamingResponse:
    """Export a snapshot as a stream that can be imported elsewhere."""
    provider = await _provider_of(boxes, id)
    return StreamingResponse(await began(provider.export_snapshot(id)), media_type=OCTETS)


async def _provider_of(boxes: Boxes, id: str) -> Provider:
    for snapshot in await boxes.snapshots():
        if snapshot.id == id:
            return boxes.provider(snapshot.provider)
    raise SnapshotNotFound(f"there is no snapshot {id}", hint="list snapshots with holdfast box snapshots")


@router.get("/volumes", tags=["volumes"])
async def list_volumes(boxes: UseBoxes, provider: ProviderName = "local") -> VolumeList:
    """List volumes."""
    return VolumeList(volumes=tuple(await boxes.volumes(provider)))


@router.post("/volumes", status_code=201, tags=["volumes"])
async def create_volume(new: NewVolume, boxes: UseBoxes) -> Volume:
    """Create a volume: files that outlive boxes, mounted by name."""
    return await boxes.create_volume(new.name, new.provider)


@router.delete("/volumes/{name}", tags=["volumes"])
async def delete_volume(
    name: VolumeName, boxes: UseBoxes, provider: Annotated[ProviderName, Query()] = "local"
) -> Freed:
    """Delete a volume and its files."""
    return Freed(freed=await boxes.delete_volume(name, provider))
