"""REST: images that boxes start with."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from holdfast.api.box.records import Freed
from holdfast.api.errors.boxes import Unsupported
from holdfast.api.images import Image, ImageList, NewImage, NewPull
from holdfast.api.limits import ImageName, ProviderName
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.images import ImageStore
from holdfast.boxes.service.boxes import Boxes
from holdfast.images.registry.authentication import Credentials
from holdfast.server.routes.progress_lines import NDJSON, ProgressLines
from holdfast.server.routes.requests import BOX_ERRORS, began, binary_body
from holdfast.server.routes.services import Use, UseBoxes

router = APIRouter(prefix="/v1", responses=BOX_ERRORS)


@router.get("/images", tags=["images"])
async def list_images(boxes: UseBoxes, provider: Annotated[ProviderName, Query()] = "local") -> ImageList:
    """List images, by name."""
    return ImageList(images=tuple(await _store(boxes, provider).list()))


@router.post("/images", status_code=201, tags=["images"])
async def name_snapshot(new: NewImage, boxes: UseBoxes) -> Image:
    """Create an image from a snapshot. The files are shared, not copied."""
    store = _store(boxes, new.provider)
    return await store.from_snapshot(new.snapshot, new.name, config=new.config, labels=new.labels)


@router.post("/images/import", status_code=201, tags=["images"], openapi_extra=binary_body())
async def import_image(
    request: Request,
    boxes: UseBoxes,
    name: Annotated[ImageName, Query()],
    provider: Annotated[ProviderName, Query()] = "local",
) -> Image:
    """Import an archive: a root filesystem tarball, an OCI layout or the output of `docker save`, compressed or not."""
    return await _store(boxes, provider).import_archive(name, request.stream())


@router.post(
    "/images/pull",
    tags=["images"],
    response_class=Response,
    responses={200: {"description": "Lines of JSON: progress, then the image.", "content": {NDJSON: {}}}},
)
async def pull_image(new: NewPull, services: Use, boxes: UseBoxes) -> Response:
    """Pull an image from a registry. The answer is lines: `{"type": "begin", "step", "detail", "total"}`,
    `{"type": "advance", "amount"}`, `{"type": "end"}`, `{"type": "skip", "step", "detail"}`; the last line is
    `{"type": "image", "image"}` or `{"type": "error", "error"}`. Empty lines mean that it is still in progress. A pull
    ends with its request; what was downloaded is kept for the next one. Credentials are used for this pull only, and
    not stored."""
    store = _store(boxes, new.provider)
    puller = await services.puller.get()
    progress = ProgressLines()
    login = new.credentials
    pulling = puller.pull(
        store,
        new.name,
        save_as=new.save_as,
        credentials=None if login is None else Credentials(login.username, login.password),
        insecure=new.insecure,
        progress=progress,
    )
    lines = services.shutdown.until_stopping(progress.lines(_image_line(pulling)))
    return StreamingResponse(await began(lines), media_type=NDJSON)


@router.get("/images/{name:path}", tags=["images"])
async def get_image(name: ImageName, boxes: UseBoxes, provider: Annotated[ProviderName, Query()] = "local") -> Image:
    """Get an image by name or digest."""
    return await _store(boxes, provider).get(name)


@router.delete("/images/{name:path}", tags=["images"])
async def remove_image(name: ImageName, boxes: UseBoxes, provider: Annotated[ProviderName, Query()] = "local") -> Freed:
    """Remove an image. Boxes that started from it keep working; files that nothing needs any more are deleted."""
    return Freed(freed=await _store(boxes, provider).remove(name))


async def _image_line(pulling: Awaitable[Image]) -> dict[str, Any]:
    return {"type": "image", "image": (await pulling).to_json()}


def _store(boxes: Boxes, name: str) -> ImageStore:
    provider = boxes.provider(name)
    require(provider.name, provider.capabilities, Capability.IMAGES)
    if provider.images is None:
        raise Unsupported(
            f"provider {name} does not store images", hint="use the name of an image that it can find itself"
        )
    return provider.images
