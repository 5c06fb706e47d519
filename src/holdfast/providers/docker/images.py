"""The image store of a Docker daemon: finds images by name, pulls, imports, names and removes them.

From an archive, only files and configuration are used, never the names that it would set at the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from holdfast.api.errors.boxes import BadArchive, HostileArchive, ImageNotFound, InvalidSpec, NoSpace
from holdfast.api.images import Image, ImageConfig
from holdfast.boxes.images import ImageStore, check_reference
from holdfast.providers.docker.engine import LONG_SECONDS, Engine, EngineProblem, refusals_named
from holdfast.providers.docker.objects import KIND, Kind
from holdfast.providers.docker.snapshots import Snapshots
from holdfast.time_limit import time_limit

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_OURS: Final = frozenset({Kind.SNAPSHOT, Kind.FORK})
_LARGEST_TEXT: Final = 8 << 20
"""Bytes of a manifest or a configuration."""
_MOST_MEMBERS: Final = 2_000_000
_LARGEST_ARCHIVE: Final = 64 << 30
_LONGEST_CHAIN: Final = 125
_HIDDEN: Final = re.compile(r"holdfast-[a-z0-9]+/(kept|snapshot):.*|holdfast/empty:.*|<none>:<none>")
"""Names of images that are not for users."""


async def resolve_image(engine: Engine, name: str | None) -> dict[str, Any]:
    """Returns the image of this name or digest, and pulls it if the daemon lacks it. Raises `ImageNotFound`."""
    if name is None:
        raise InvalidSpec(
            "a box at Docker needs an image", hint="name one: holdfast box create --provider docker --image NAME"
        )
    if not _DIGEST.fullmatch(name):
        check_reference(name.partition("@")[0])
    try:
        return _not_ours(await engine.image(name), name)
    except EngineProblem as problem:
        if not problem.missing:
            raise
    if _DIGEST.fullmatch(name):
        raise ImageNotFound(f"the Docker daemon has no image {name}", hint="holdfast image list --provider docker")
    await _pull(engine, name)
    try:
        return _not_ours(await engine.image(name), name)
    except EngineProblem:
        raise _missing(name, "it was pulled, and is not there") from None


def _not_ours(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Raises an error for a snapshot, which is restored and not used as an image."""
    labels = (found.get("Config") or {}).get("Labels") or {}
    if labels.get(KIND) in _OURS:
        raise ImageNotFound(f"{name} is not an image but a snapshot")
    return found


async def _pull(engine: Engine, name: str) -> None:
    repository, _, rest = name.partition("@")
    params: dict[str, str] = {"fromImage": name if rest else repository}
    if not rest and ":" not in repository.rpartition("/")[2]:
        params["tag"] = "latest"
    try:
        async with time_limit(LONG_SECONDS):
            await engine.send("images/create", b"", params=params)
    except EngineProblem as problem:
        raise _missing(name, f"and it cannot be pulled: {problem.message}") from None
    except TimeoutError:
        raise _missing(name, "and pulling it takes too long") from None


def _missing(name: str, why: str) -> ImageNotFound:
    return ImageNotFound(
        f"the Docker daemon has no image {name}, {why}",
        hint=f"docker pull {name}, or holdfast image import --provider docker --name {name} FILE",
    )


class DockerImages(ImageStore):
    """All named images of the daemon, except those that are snapshots."""

    def __init__(self, engine: Engine, snapshots: Snapshots) -> None:
        self._engine = engine
        self._snapshots = snapshots

    async def list(self) -> list[Image]:
        with refusals_named("images cannot be listed"):
            found = []
            for each in await self._engine.images():
                if (each.get("Labels") or {}).get(KIND) in _OURS:
                    continue
                for tag in each.get("RepoTags") or ():
                    if not _HIDDEN.fullmatch(tag):
                        with contextlib.suppress(EngineProblem):
                            found.append(_image(_short(tag), await self._engine.image(tag)))
            return sorted(found, key=lambda image: image.name)

    async def get(self, name: str) -> Image:
        with refusals_named(f"image {name} cannot be inspected"):
            return _image(name, await self._found(name))

    async def _found(self, name: str) -> dict[str, Any]:
        if not _DIGEST.fullmatch(name):
            check_reference(name)
        try:
            return _not_ours(await self._engine.image(name), name)
        except EngineProblem as problem:
            if problem.missing:
                raise ImageNotFound(
                    f"the Docker daemon has no image {name}", hint="holdfast image list --provider docker"
                ) from None
            raise

    async def remove(self, name: str) -> int:
        with refusals_named(f"image {name} cannot be removed"):
            found = await self._found(name)
            return await self._snapshots.unname(name, int(found.get("Size") or 0))

    async def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        check_reference(name)
        with refusals_named(f"image {name} cannot be made"):
            found = await self._snapshots.image(snapshot)
            wanted: dict[str, Any] = {"Labels": {KIND: Kind.IMAGE, **(labels or {})}}
            if config is not None:
                wanted |= {
                    "Env": [f"{key}={value}" for key, value in config.env.items()],
                    "WorkingDir": config.workdir or "",
                    "User": config.user or "",
                }
            async with self._snapshots.container_of(str(found["Id"])) as container:
                await self._snapshots.commit(container, _tagged(name), wanted, pause=False)
            return _image(name, await self._engine.image(name))

    async def import_archive(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        check_reference(name)
        with tempfile.TemporaryFile(prefix="holdfast-image-") as file:
            await _spool(archive, file)
            with refusals_named(f"image {name} cannot be imported"):
                loaded = await asyncio.to_thread(_read_archive, file)
                try:
                    if loaded is None:
                        await self._import_files(name, file)
                    else:
                        await self._load(name, loaded)
                except EngineProblem as problem:
                    raise BadArchive(f"the archive is not an image: Docker says: {problem.message}") from None
                return _image(name, await self._engine.image(name))

    async def _import_files(self, name: str, file: IO[bytes]) -> None:
        repository, _, tag = _tagged(name).rpartition(":")
        params = {"fromSrc": "-", "repo": repository, "tag": tag}
        await self._engine.send("images/create", _pieces(file), params=params)

    async def _load(self, name: str, archive: _Loadable) -> None:
        with archive.file as file:
            answers = await self._engine.send("images/load", _pieces(file), params={"quiet": 1})
        output = " ".join(str(each.get("stream", "")) for each in answers)
        loaded = _DIGEST.search(output)
        if loaded is None:
            raise BadArchive(f"the archive has no image: Docker says: {output[:200]}")
        await self._engine.tag_image(loaded.group(), _tagged(name))


def _tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _short(tag: str) -> str:
    return tag.removesuffix(":latest")


def _image(name: str, found: Mapping[str, Any]) -> Image:
    config = found.get("Config") or {}
    pairs = [pair.partition("=") for pair in config.get("Env") or ()]
    labels = {
        key: value for key, value in (config.get("Labels") or {}).items() if not key.startswith("holdfast.docker.")
    }
    return Image(
        name,
        str(found["Id"]),
        tuple((found.get("RootFS") or {}).get("Layers") or ()),
        int(found.get("Size") or 0),
        _milliseconds(str(found.get("Created"))),
        ImageConfig(
            {key: value for key, _, value in pairs}, config.get("WorkingDir") or None, config.get("User") or None
        ),
        labels,
    )


def _milliseconds(text: str) -> int:
    """Parses Docker's nanoseconds, which Python does not."""
    whole = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if whole is None:
        return 0
    zone = "+00:00" if whole[3] == "Z" else whole[3]
    return int(datetime.fromisoformat(whole[1] + zone).timestamp() * 1000)


async def _spool(archive: AsyncIterable[bytes], file: IO[bytes]) -> None:
    size = 0
    async for piece in archive:
        size += len(piece)
        if size > _LARGEST_ARCHIVE:
            raise NoSpace(f"the archive is larger than {_LARGEST_ARCHIVE >> 30} GB")
        try:
            await asyncio.to_thread(file.write, piece)
        except OSError as error:
            raise NoSpace(f"the archive does not fit on this machine: {error}") from None
    file.seek(0)


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    await asyncio.to_thread(file.seek, 0)
    while piece := await asyncio.to_thread(file.read, 1 << 18):
        yield piece


# --- archives ---------------------------------------------------------------------------------------------------------


class _Loadable:
    """One image as Docker loads it: its configuration and layers, and no names."""

    def __init__(self, config: bytes, layers: list[tarfile.TarInfo], source: tarfile.TarFile) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="holdfast-image-")  # noqa: SIM115 - its user closes it
        with tarfile.open(fileobj=self.file, mode="w") as out:
            names = [f"{number}/layer.tar" for number in range(len(layers))]
            _add(out, "config.json", config)
            for name, layer in zip(names, layers, strict=True):
                member = tarfile.TarInfo(name)
                member.size = layer.size
                out.addfile(member, source.extractfile(layer))
            manifest = [{"Config": "config.json", "RepoTags": None, "Layers": names}]
            _add(out, "manifest.json", json.dumps(manifest).encode())


def _add(out: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    out.addfile(member, io.BytesIO(data))


def _read_archive(file: IO[bytes]) -> _Loadable | None:
    """Reads the output of docker save or an OCI layout. Returns None for a root filesystem. Raises `HostileArchive`."""
    try:
        with tarfile.open(fileobj=file, mode="r:*") as tar:
            members: dict[str, tarfile.TarInfo] = {}
            links: set[PurePosixPath] = set()
            for number, member in enumerate(tar):
                if number >= _MOST_MEMBERS:
                    raise HostileArchive(f"the archive has more than {_MOST_MEMBERS} files")
                path = PurePosixPath(member.name.lstrip("/"))
                _check_place(path, links)
                if member.issym():
                    links.add(path)
                members[str(path)] = member
            if "manifest.json" in members:
                return _saved(tar, members)
            if "oci-layout" in members and "index.json" in members:
                return _laid_out(tar, members)
            return None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BadArchive(f"the archive cannot be read: {error}") from None
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise BadArchive(f"the archive is invalid: {error!r}") from None


def _check_place(path: PurePosixPath, links: set[PurePosixPath]) -> None:
    """Raises an error for a path that would be unpacked elsewhere."""
    if ".." in path.parts or any(parent in links for parent in path.parents):
        raise HostileArchive(f"the archive puts {str(path)!r} outside its target")


def _text(tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], name: str) -> bytes:
    member = _plain(members, name)
    if member.size > _LARGEST_TEXT:
        raise HostileArchive(f"{name} in the archive is too large")
    found = tar.extractfile(member)
    assert found is not None
    return found.read()


def _plain(members: Mapping[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    """Returns a file of the archive. Docker writes links between equal layers."""
    for _ in range(4):
        member = members[str(PurePosixPath(name))]
        if member.isfile():
            return member
        if not (member.issym() or member.islnk()):
            break
        base = Path(name).parent if member.issym() else Path()
        parts: list[str] = []
        for part in (base / member.linkname).parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        name = str(Path(*parts))
    raise HostileArchive(f"{name} in the archive is not a file")


def _saved(tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo]) -> _Loadable:
    manifest = json.loads(_text(tar, members, "manifest.json"))
    if len(manifest) != 1:
        raise HostileArchive(f"the archive has {len(manifest)} images, but has to have one")
    layers = [_plain(members, str(name)) for name in _bounded(manifest[0]["Layers"])]
    return _Loadable(_text(tar, members, str(manifest[0]["Config"])), layers, tar)


def _laid_out(tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo]) -> _Loadable:
    index = json.loads(_text(tar, members, "index.json"))
    for _ in range(4):
        chosen = [each for each in index["manifests"] if (each.get("platform") or {}).get("os", "linux") == "linux"]
        document = json.loads(_text(tar, members, _blob(chosen[0]["digest"])))
        if "layers" in document:
            layers = [_plain(members, _blob(each["digest"])) for each in _bounded(document["layers"])]
            return _Loadable(_text(tar, members, _blob(document["config"]["digest"])), layers, tar)
        index = document
    raise HostileArchive("the archive has no image")


def _bounded(layers: list[Any]) -> list[Any]:
    if len(layers) > _LONGEST_CHAIN:
        raise HostileArchive(f"the image has {len(layers)} layers, and may have {_LONGEST_CHAIN} at most")
    return layers


def _blob(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise HostileArchive(f"{digest!r} in the archive is not a valid digest")
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"
