"""REST: images that boxes begin with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field, StringConstraints

from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.errors import Unsupported
from holdfast.boxes.images import Image, ImageConfig, ImageStore
from holdfast.boxes.service.boxes import Boxes
from holdfast.server.routes.box_requests import BOX_ERRORS, binary_body
from holdfast.server.routes.box_schemas import Freed, PathText, ProviderName, SnapshotId, Variables
from holdfast.server.routes.schemas import Labels, Model
from holdfast.server.routes.services import UseBoxes

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


def _store(boxes: Boxes, name: str) -> ImageStore:
    provider = boxes.provider(name)
    require(provider.name, provider.capabilities, Capability.IMAGES)
    if provider.images is None:
        raise Unsupported(f"provider {name} keeps no images", hint="give it the name of an image that it can find")
    return provider.images
