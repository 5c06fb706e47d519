"""The images of local boxes on disk: a document for each name, and layers that images, boxes and snapshots share.

Layers of archives are named by the digest of their content. Nothing refers to a layer before it is complete. An
interrupted import leaves a hidden folder, which the next sweep removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import re
import stat
import urllib.parse
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.spec import check_labels
from holdfast.api.errors.boxes import FileProblem, HostileArchive, ImageNotFound, InvalidSpec, WrongSnapshot
from holdfast.api.ids import now_ms
from holdfast.api.images import Image, ImageConfig
from holdfast.boxes.images import ImageStore, local_name
from holdfast.providers.host.disk.data_dir import BoxImage, DataDir, measure, write_whole
from holdfast.providers.host.disk.layers import (
    IMAGE_APT,
    IMAGE_BASE,
    IMAGE_ETC,
    OWN_LAYERS,
    image_documents,
    merge_into,
    read_manifest,
    unfinished_layer,
)
from holdfast.providers.local.images import dnf, overlay
from holdfast.providers.local.images.archive import Contents, Importing, Layer, checked_workdir, layer_name
from holdfast.providers.local.images.limits import ArchiveLimits
from holdfast.providers.local.runtime import make_layer
from holdfast.providers.pipes import Pipe, on_own_thread

MOST_LAYERS: Final = 12
"""Layers of one image. A mount takes a limited number, and a box adds its own, so more are merged."""
_PLACES: Final = ("proc", "dev", "run", "sys", "etc", ".holdfast", ".python")
"""Where a box mounts its own files: a link there would redirect a mount."""
_BY_DIGEST: Final = re.compile(r"(sha256:)?[0-9a-f]{12,64}")


class LocalImages(ImageStore):
    """Shared with every process that opens the same data directory."""

    def __init__(
        self, data_dir: DataDir, collect: Callable[[], Awaitable[int]], limits: ArchiveLimits | None = None
    ) -> None:
        """`collect` removes layers that nothing refers to."""
        self._data_dir = data_dir
        self._collect = collect
        self._limits = limits or ArchiveLimits()

    @property
    def takes_pulled(self) -> bool:
        return True

    async def list(self) -> list[Image]:
        return await asyncio.to_thread(lambda: [_image(each) for each in _documents(self._data_dir)])

    async def get(self, name: str) -> Image:
        return _image(find(self._data_dir, name))

    async def import_archive(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        return await self._import(name, archive, None)

    async def import_pulled(self, name: str, archive: AsyncIterable[bytes], digest: str) -> Image:
        return await self._import(name, archive, digest)

    async def _import(self, name: str, archive: AsyncIterable[bytes], pulled: str | None) -> Image:
        name = local_name(name)
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(write)
        pipe.widen()

        def take() -> Image:
            with io.open(read, "rb", buffering=1 << 18) as source:  # noqa: UP020
                return import_archive(self._data_dir, name, source, self._limits, pulled)

        taking = on_own_thread(take)
        try:
            with contextlib.suppress(BrokenPipeError):  # the import refused it: awaiting it raises the reason
                async for piece in archive:
                    await pipe.write(piece)
            pipe.close()
            image = await asyncio.shield(taking)
        finally:
            pipe.close()
            await asyncio.gather(taking, return_exceptions=True)
        await self._collect()  # removes what the name referred to before
        return image

    async def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        check_labels(labels or {})
        image = await asyncio.to_thread(from_snapshot, self._data_dir, snapshot, local_name(name), config, labels or {})
        await self._collect()
        return image

    async def remove(self, name: str) -> int:
        document = find(self._data_dir, name)
        _path(self._data_dir, document["name"]).unlink(missing_ok=True)
        return await self._collect()


def _path(data_dir: DataDir, name: str) -> Path:
    return data_dir.images / f"{urllib.parse.quote(name, safe='')}.json"


def _documents(data_dir: DataDir) -> list[dict[str, Any]]:
    """Returns all documents, ordered by name."""
    return sorted(image_documents(data_dir), key=lambda document: str(document.get("name")))


def find(data_dir: DataDir, name: str) -> dict[str, Any]:
    """Finds an image by name or digest. Raises `ImageNotFound`."""
    if _BY_DIGEST.fullmatch(name):
        start = name.removeprefix("sha256:")
        found = {each["digest"]: each for each in _documents(data_dir) if each["digest"][7:].startswith(start)}
        if len(found) == 1:
            return found.popitem()[1]
    try:
        document: dict[str, Any] = json.loads(_path(data_dir, local_name(name)).read_bytes())
        return document
    except (InvalidSpec, FileNotFoundError, ValueError):
        raise ImageNotFound(
            f"there is no local image {name[:300]}",
            hint="holdfast image list shows those that there are; holdfast image pull NAME fetches one from a registry",
        ) from None


def _image(document: Mapping[str, Any]) -> Image:
    config = document["config"]
    return Image(
        document["name"],
        document["digest"],
        tuple(layer.replace("sha256-", "sha256:") for layer in document["layers"] if layer not in OWN_LAYERS),
        document["size"],
        document["createdAt"],
        ImageConfig(config["env"], config["workdir"], config["user"]),
        document["labels"],
        document.get("pulled"),
    )


# --- making -----------------------------------------------------------------------------------------------------------


def import_archive(
    data_dir: DataDir, name: str, source: Any, limits: ArchiveLimits, pulled: str | None = None
) -> Image:
    """Read an archive to its end, and store its image under a name. Blocks."""
    with ExitStack() as stack:
        try:
            contents = Importing(data_dir, source, stack, limits).contents()
            made = {layer.digest: layer.made / "files" for layer in contents.layers if layer.made is not None}
            folders = [
                made.get(layer.digest, data_dir.layers / layer_name(layer.digest) / "files")
                for layer in contents.layers
            ]
            _check_places(folders)
            resolve_user(folders, contents.user)  # before anything is stored
            with data_dir.layers_kept():
                layers = _keep(data_dir, contents.layers, stack)
                return _name(data_dir, name, (IMAGE_BASE, *layers), contents, pulled)
        except RecursionError:
            raise HostileArchive("the archive is nested deeper than sense") from None
        except OSError as error:
            raise FileProblem(f"the image cannot be kept: {error.strerror or error}") from None


def _keep(data_dir: DataDir, layers: Sequence[Layer], stack: ExitStack) -> tuple[str, ...]:
    """Move layers into place. Returns their names. The caller keeps layers from removal."""
    for layer in layers:
        place = data_dir.layers / layer_name(layer.digest)
        if layer.made is not None and not place.exists():
            with contextlib.suppress(OSError):  # another import was faster: the layer is the same
                layer.made.rename(place)
        if not (place / "files").is_dir():
            raise FileProblem(f"layer {layer.digest} was removed meanwhile", hint="import the image again")
    names = [layer_name(layer.digest) for layer in layers]
    if len(names) <= MOST_LAYERS:
        return tuple(names)
    below = names[: len(names) - MOST_LAYERS + 1]
    merged = layer_name(_digest("layers", below))
    if not (data_dir.layers / merged).exists():
        made = stack.enter_context(unfinished_layer(data_dir))
        merge_into(data_dir, below, made / "files")
        with contextlib.suppress(OSError):
            made.rename(data_dir.layers / merged)
    return (merged, *names[len(below) :])


def from_snapshot(
    data_dir: DataDir, snapshot: str, name: str, config: ImageConfig | None, labels: Mapping[str, str]
) -> Image:
    """Blocks."""
    with data_dir.layers_kept():
        manifest = read_manifest(data_dir, snapshot)
        if manifest.image is None:
            raise WrongSnapshot(
                f"snapshot {snapshot} is of a box without an image: its programs are this machine's",
                hint="take a snapshot of a box that was created with --image",
            )
        before = manifest.image
        contents = Contents(
            (),
            dict(before.env if config is None else config.env),
            before.workdir if config is None else _workdir(config),
            before.user if config is None else config.user,
            dict(labels),
        )
        return _name(data_dir, name, manifest.layers, contents)


def _workdir(config: ImageConfig) -> str | None:
    if config.workdir is None:
        return None
    workdir = checked_workdir(config.workdir)
    if workdir is None:
        raise InvalidSpec(f"{config.workdir!r} cannot be a working directory: an absolute path")
    return workdir


def _name(
    data_dir: DataDir, name: str, layers: tuple[str, ...], contents: Contents, pulled: str | None = None
) -> Image:
    """The caller keeps layers from removal."""
    folders = [data_dir.layers / layer / "files" for layer in layers]
    uid, gid, home = resolve_user(folders, contents.user)
    config = {"env": contents.env, "workdir": contents.workdir, "user": contents.user}
    document = {
        "name": name,
        "digest": _digest(list(layers), config),
        "layers": list(layers),
        "size": sum(measure(data_dir.layers / layer) for layer in layers if layer not in OWN_LAYERS),
        "createdAt": now_ms(),
        "config": config,
        "labels": contents.labels,
        "uid": uid,
        "gid": gid,
        "home": home,
        "pulled": pulled,
    }
    write_whole(_path(data_dir, name), document)
    return _image(document)


def _digest(*values: object) -> str:
    return f"sha256:{hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}"


def _check_places(folders: Sequence[Path]) -> None:
    for place in _PLACES:
        kind = overlay.kind_at(folders, place)
        if kind is not None and not stat.S_ISDIR(kind):
            raise HostileArchive(f"/{place} of the image is not a folder")


def resolve_user(folders: Sequence[Path], user: str | None) -> tuple[int, int, str]:
    """Returns the ids and the home of the user that an image names. Raises `HostileArchive` if it does not exist."""
    named, _, group = (user or "").partition(":")
    if named in ("", "0", "root"):
        return 0, 0, "/root"
    uid = gid = None
    home = "/"
    for line in (overlay.read_at(folders, "etc/passwd") or b"").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and named in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
            uid, gid = int(fields[2]), int(fields[3])
            home = checked_workdir(fields[5]) or "/"
            break
    if uid is None and named.isdigit():
        uid, gid = int(named), 0
    if group.isdigit():
        gid = int(group)
    if uid is None or gid is None or not 0 <= uid < 1 << 31 or not 0 <= gid < 1 << 31:
        raise HostileArchive(f"the image is to run as {user!r}, and has no such user")
    return uid, gid, home


# --- beginning with one -----------------------------------------------------------------------------------------------


def beginning(data_dir: DataDir, name: str) -> tuple[tuple[str, ...], BoxImage]:
    """Returns the layers of a box with an image, and what the box stores about it. The caller keeps layers from
    removal."""
    document = find(data_dir, name)
    layers = list(document["layers"])
    folders = [data_dir.layers / layer / "files" for layer in layers]
    for layer, folder in zip(layers, folders, strict=True):
        if not folder.is_dir():
            raise ImageNotFound(f"image {name} is damaged: its layer {layer} is missing", hint="import it again")
    if IMAGE_ETC not in layers:
        layers.append(IMAGE_ETC)
    apt = overlay.kind_at(folders, "etc/apt")
    if IMAGE_APT not in layers and apt is not None and stat.S_ISDIR(apt):
        layers.append(IMAGE_APT)
    layers += _dnf_layer(data_dir, folders)
    config = document["config"]
    image = BoxImage(
        document["name"],
        document["digest"],
        config["env"],
        config["workdir"],
        config["user"],
        document["uid"],
        document["gid"],
        document["home"],
    )
    return tuple(layers), image


def _dnf_layer(data_dir: DataDir, folders: Sequence[Path]) -> list[str]:
    """Returns the layer on top of an image with dnf. Images with the same configuration share it."""
    found = overlay.read_at(folders, dnf.CONFIGURATION)
    text = None if found is None else dnf.amended(found.decode("utf-8", "surrogateescape"))
    if text is None:
        return []
    name = f"image-dnf-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    make_layer(data_dir, name, (), {dnf.CONFIGURATION: text})
    return [name]
