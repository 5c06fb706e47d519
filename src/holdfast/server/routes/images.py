"""REST: images that boxes begin with."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field, SecretStr, StringConstraints

from holdfast.api.boxes import Freed
from holdfast.api.limits import Labels, PathText, ProviderName, SnapshotId, Variables
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.errors import Unsupported
from holdfast.boxes.images import Image, ImageConfig, ImageStore
from holdfast.boxes.service.boxes import Boxes
from holdfast.images.registry.authentication import Credentials
from holdfast.server.routes.box_requests import BOX_ERRORS, began, binary_body
from holdfast.server.routes.progress_lines import NDJSON, ProgressLines
from holdfast.server.routes.schemas import Model
from holdfast.server.routes.services import Use, UseBoxes

router = APIRouter(prefix="/v1", responses=BOX_ERRORS)

ImageName = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class ImageConfigModel(Model):
    env: Variables = Field(default_factory=dict)
    workdir: PathText | None = None
    user: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None


class ImageModel(Model):
    name: str
    digest: str
    layers: list[str]
    """The lowest first."""
    size: int
    """Bytes on disk."""
    created_at: int
    config: ImageConfigModel
    labels: dict[str, str]
    pulled: str | None
    """The digest that the registry has it under, where it was pulled."""

    @classmethod
    def of(cls, image: Image) -> ImageModel:
        config = image.config
        return cls.model_construct(
            name=image.name,
            digest=image.digest,
            layers=list(image.layers),
            size=image.size,
            created_at=image.created_at,
            config=ImageConfigModel.model_construct(env=dict(config.env), workdir=config.workdir, user=config.user),
            labels=dict(image.labels),
            pulled=image.pulled,
        )


class ImageList(Model):
    images: list[ImageModel]


class NewImage(Model):
    """A snapshot that is to be an image."""

    snapshot: SnapshotId
    name: ImageName
    provider: ProviderName = "local"
    config: ImageConfigModel | None = None
    """That of the snapshot's own image, where none is given."""
    labels: Labels = Field(default_factory=dict)


class RegistryCredentials(Model):
    """Who asks the registry."""

    username: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^:\x00-\x1f]+$")]
    password: SecretStr

    def read(self) -> Credentials:
        return Credentials(self.username, self.password.get_secret_value())


class NewPull(Model):
    """An image in a registry that is wanted here."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=400)]
    """As Docker understands it: `debian:12`, `ghcr.io/team/app:1`, `localhost:5000/app@sha256:…`."""
    save_as: ImageName | None = None
    """Its name here, if not the same."""
    provider: ProviderName = "local"
    credentials: RegistryCredentials | None = None
    insecure: bool = False
    """Plain HTTP where the registry does not speak TLS. On loopback that is so without asking."""


@router.get("/images", tags=["images"])
async def list_images(boxes: UseBoxes, provider: Annotated[ProviderName, Query()] = "local") -> ImageList:
    """List images, by name."""
    return ImageList(images=[ImageModel.of(each) for each in await _store(boxes, provider).list()])


@router.post("/images", status_code=201, tags=["images"])
async def name_snapshot(new: NewImage, boxes: UseBoxes) -> ImageModel:
    """Name a snapshot's files as an image. They are shared, not copied."""
    told = new.config
    config = None if told is None else ImageConfig(told.env, told.workdir, told.user)
    store = _store(boxes, new.provider)
    return ImageModel.of(await store.from_snapshot(new.snapshot, new.name, config=config, labels=new.labels))


@router.post("/images/import", status_code=201, tags=["images"], openapi_extra=binary_body())
async def import_image(
    request: Request,
    boxes: UseBoxes,
    name: Annotated[ImageName, Query()],
    provider: Annotated[ProviderName, Query()] = "local",
) -> ImageModel:
    """Take in an archive: a root filesystem tarball, an OCI layout or what `docker save` writes, compressed or not."""
    return ImageModel.of(await _store(boxes, provider).import_archive(name, request.stream()))


@router.post(
    "/images/pull",
    tags=["images"],
    response_class=Response,
    responses={200: {"description": "A line of JSON each: progress, then the image.", "content": {NDJSON: {}}}},
)
async def pull_image(new: NewPull, services: Use, boxes: UseBoxes) -> Response:
    """Pull an image from a registry. Lines tell what happens: `{"type": "begin", "step", "detail", "total"}`,
    `{"type": "advance", "amount"}`, `{"type": "end"}`, `{"type": "skip", "step", "detail"}`; the last line is
    `{"type": "image", "image"}` or `{"type": "error", "error"}`. Empty lines say that it goes on. A pull ends with its
    request; what came is kept for the next one. Credentials are used for this pull alone, and not kept."""
    store = _store(boxes, new.provider)
    puller = await services.puller.get()
    progress = ProgressLines()
    pulling = puller.pull(
        store,
        new.name,
        save_as=new.save_as,
        credentials=None if new.credentials is None else new.credentials.read(),
        insecure=new.insecure,
        progress=progress,
    )
    lines = services.shutdown.until_stopping(progress.lines(_image_line(pulling)))
    return StreamingResponse(await began(lines), media_type=NDJSON)


@router.get("/images/{name:path}", tags=["images"])
async def get_image(
    name: ImageName, boxes: UseBoxes, provider: Annotated[ProviderName, Query()] = "local"
) -> ImageModel:
    """One image, by name or digest."""
    return ImageModel.of(await _store(boxes, provider).get(name))


@router.delete("/images/{name:path}", tags=["images"])
async def remove_image(name: ImageName, boxes: UseBoxes, provider: Annotated[ProviderName, Query()] = "local") -> Freed:
    """Forget a name. Boxes that began with the image go on; files that nothing needs any more are removed."""
    return Freed(freed=await _store(boxes, provider).remove(name))


async def _image_line(pulling: Awaitable[Image]) -> dict[str, Any]:
    image = ImageModel.of(await pulling).model_dump(mode="json", by_alias=True)
    return {"type": "image", "image": image}


def _store(boxes: Boxes, name: str) -> ImageStore:
    provider = boxes.provider(name)
    require(provider.name, provider.capabilities, Capability.IMAGES)
    if provider.images is None:
        raise Unsupported(f"provider {name} keeps no images", hint="give it the name of an image that it can find")
    return provider.images
