"""Reads an archive of an image: a root filesystem, an OCI layout, or the output of `docker save`.

Blocks, and reads a stream once. A root filesystem is unpacked as it arrives. The parts of the other two come in any
order: they are stored on disk, and each must match its digest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import posixpath
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from holdfast.api.errors.boxes import BadArchive, HostileArchive, NoSpace
from holdfast.guest.init import tar
from holdfast.providers.host.disk.data_dir import DataDir
from holdfast.providers.host.disk.layers import unfinished_layer
from holdfast.providers.local.images.compression import Measured, Source, decompressed
from holdfast.providers.local.images.limits import ArchiveLimits
from holdfast.providers.local.images.unpack import unpack_layer

_LAYOUT: Final = frozenset({b"blobs", b"index.json", b"manifest.json", b"oci-layout", b"repositories"})
_LAYOUT_NAME: Final = re.compile(rb"[0-9a-f]{64}(\.json|\.tar)?")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_PARTS: Final = 4096
_MOST_LINKS: Final = 8
_DEEPEST_INDEX: Final = 3
_ARCHITECTURES: Final = {"x86_64": ("amd64",), "aarch64": ("arm64",)}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIECE: Final = 1 << 18
_TAKEN: Final = "a root filesystem tarball, an OCI layout or what docker save writes, compressed or not"


@dataclass(frozen=True, slots=True)
class Layer:
    digest: str
    """Of its tar stream, uncompressed."""
    made: Path | None
    """Where it was unpacked. None if the same layer exists already, or occurs twice in this image."""


@dataclass(frozen=True, slots=True)
class Contents:
    layers: tuple[Layer, ...]
    """Lowest first."""
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


def layer_name(digest: str) -> str:
    """Returns the name of a layer's folder."""
    return digest.replace(":", "-")


class Importing:
    """One import. Layers that it unpacked are removed when `stack` exits, unless they were renamed."""

    def __init__(self, data_dir: DataDir, source: Source, stack: ExitStack, limits: ArchiveLimits) -> None:
        self._data_dir = data_dir
        self._stack = stack
        self._limits = limits
        self._budget = limits.budget()
        self._source = Measured(source, limits.archive)

    def contents(self) -> Contents:
        try:
            return self._contents()
        except tar.HostileArchive as error:
            raise HostileArchive(str(error)) from None
        except tar.BadArchive as error:
            raise BadArchive(str(error), hint=_TAKEN) from None

    def _contents(self) -> Contents:
        stream = Measured(decompressed(self._source, self._limits), self._longest)
        reader = tar.Reader(stream.read, self._budget)
        seen = []
        for entry in reader:
            seen.append(entry)
            if entry.parts:
                break
        if not seen or not seen[-1].parts:
            raise BadArchive("the archive is empty")
        first = seen[-1].parts
        if first[0] in _LAYOUT or _LAYOUT_NAME.fullmatch(first[0]):
            return self._layout(reader, itertools.chain(seen, reader))
        made = self._stack.enter_context(unfinished_layer(self._data_dir))
        unpack_layer(reader, itertools.chain(seen, reader), made / "files", self._data_dir, self._limits)
        return Contents((Layer(stream.digest, made),))

    @property
    def _longest(self) -> int:
        """Returns the most bytes of a tar stream: its files, and a few blocks for each entry."""
        return self._limits.unpacked + self._limits.entries * 4096

    # --- layouts ---

    def _layout(self, reader: tar.Reader, entries: Iterator[tar.Entry]) -> Contents:
        folder = self._stack.enter_context(unfinished_layer(self._data_dir)) / "parts"
        folder.mkdir(mode=0o700)
        parts = _Parts(folder, self._limits, self._budget)
        for entry in entries:
            parts.take(entry, reader)
        if parts.has("index.json"):
            manifest = _choose(parts, parts.document("index.json"), 0)
            config = parts.described(manifest.get("config"))
            blobs = [parts.blob(each) for each in _list(manifest.get("layers"), "layers")]
        elif parts.has("manifest.json"):
            config, blobs = _saved_by_docker(parts)
        else:
            raise BadArchive("the archive has neither index.json nor manifest.json")
        return self._layered(config, blobs)

    def _layered(self, config: Any, blobs: list[Path]) -> Contents:
        if not isinstance(config, dict):
            raise HostileArchive("the configuration of the image is invalid")
        _check_platform(config)
        rootfs = config.get("rootfs")
        diff_ids = _list(rootfs.get("diff_ids") if isinstance(rootfs, dict) else None, "diff_ids")
        if len(diff_ids) != len(blobs):
            raise HostileArchive(f"the image declares {len(diff_ids)} layers, but has {len(blobs)}")
        if not blobs or len(blobs) > self._limits.layers:
            raise HostileArchive(f"an image of {len(blobs)} layers: at least 1, at most {self._limits.layers}")
        made: dict[str, Layer] = {}
        for blob, digest in zip(blobs, diff_ids, strict=True):
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                raise HostileArchive("a layer of the image has no digest")
            layer = self._layer(blob, digest, known=digest in made)
            # A layer that occurs twice covers everything between.
            made[digest] = made.pop(digest, layer)
        inner = config.get("config")
        return _configured(tuple(made.values()), inner if isinstance(inner, dict) else {})

    def _layer(self, blob: Path, digest: str, *, known: bool) -> Layer:
        with blob.open("rb") as file:
            stream = Measured(decompressed(file, self._limits), self._longest)
            # An existing layer is read all the same: an importer must have the content, not only know its digest.
            if known or (self._data_dir.layers / layer_name(digest) / "files").is_dir():
                while stream.read(_PIECE):
                    pass
                made = None
            else:
                made = self._stack.enter_context(unfinished_layer(self._data_dir))
                reader = tar.Reader(stream.read, self._budget)
                unpack_layer(reader, reader, made / "files", self._data_dir, self._limits)
        if stream.digest != digest:
            raise HostileArchive(f"a layer has digest {stream.digest}, but the image declares {digest}")
        return Layer(digest, made)


class _Parts:
    """The files of a layout by name, stored on disk under numbers."""

    def __init__(self, folder: Path, limits: ArchiveLimits, budget: tar.Budget) -> None:
        self._folder = folder
        self._limits = limits
        self._budget = budget
        self._files: dict[tuple[bytes, ...], Path] = {}
        self._links: dict[tuple[bytes, ...], bytes] = {}

    def take(self, entry: tar.Entry, reader: tar.Reader) -> None:
        if entry.kind == tar.FOLDER:
            return
        if len(self._files) + len(self._links) >= _MOST_PARTS:
            raise HostileArchive(f"the archive has more than {_MOST_PARTS} parts")
        if entry.parts in self._files or entry.parts in self._links:
            raise HostileArchive(f"{entry.shown}: twice in the archive")
        if entry.kind == tar.FILE:
            self._files[entry.parts] = self._put_aside(reader)
        elif entry.kind == tar.LINK:
            self._links[entry.parts] = entry.target
        elif entry.kind == tar.HARD_LINK:
            there = self._files.get(entry.source)
            if there is None:
                raise HostileArchive(f"{entry.shown}: a hard link to a file that is not in the archive")
            self._files[entry.parts] = there
        else:
            raise HostileArchive(f"{entry.shown}: a device or a pipe has no place in an image")

    def _put_aside(self, reader: tar.Reader) -> Path:
        path = self._folder / str(len(self._files))
        with path.open("xb") as file:
            while piece := reader.content():
                about = os.fstatvfs(file.fileno())
                if about.f_bavail * about.f_frsize < self._limits.spare:
                    raise NoSpace("the disk is nearly full: the image is not imported")
                file.write(piece)
        return path

    def has(self, name: str) -> bool:
        return self._resolved(name) is not None

    def path(self, name: str) -> Path:
        found = self._resolved(name)
        if found is None:
            raise HostileArchive(f"the archive speaks of {tar.show(name.encode())}, and does not have it")
        return found

    def _resolved(self, name: str) -> Path | None:
        """Resolves links by name only: old versions of `docker save` wrote links between layers. They are never
        followed on disk."""
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            return None
        for _ in range(_MOST_LINKS):
            parts = self._budget.components(encoded)
            if parts in self._files:
                return self._files[parts]
            if parts not in self._links:
                return None
            encoded = posixpath.normpath(b"/".join((*parts[:-1], self._links[parts])))
        return None

    def document(self, name: str) -> Any:
        return self._parsed(self.path(name), name)

    def _parsed(self, path: Path, name: str) -> Any:
        if path.stat().st_size > self._limits.document:
            raise HostileArchive(f"{name} is more than {self._limits.document} bytes long")
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            raise HostileArchive(f"{tar.show(name.encode())} is no JSON") from None

    def blob(self, descriptor: Any) -> Path:
        """Returns the file for a descriptor. Its size and digest match."""
        digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise HostileArchive("the archive describes a part without a digest of sha256")
        path = self.path(f"blobs/sha256/{digest.removeprefix('sha256:')}")
        size = path.stat().st_size
        if descriptor.get("size") != size:
            raise HostileArchive(
                f"{digest} is {size} bytes long, but its descriptor declares {descriptor.get('size')!r}"
            )
        if _digest_of(path) != digest:
            raise HostileArchive(f"the content of {digest} has another digest")
        return path

    def described(self, descriptor: Any) -> Any:
        return self._parsed(self.blob(descriptor), "a part of the archive")


def _digest_of(path: Path) -> str:
    file: BinaryIO
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _choose(parts: _Parts, index: Any, depth: int) -> dict[str, Any]:
    """Returns the manifest of the image for this machine."""
    if depth > _DEEPEST_INDEX:
        raise HostileArchive("indexes in indexes without end")
    found = [each for each in _list(index.get("manifests") if isinstance(index, dict) else None, "manifests")
             if isinstance(each, dict) and _fits(each.get("platform"))]  # fmt: skip
    if len({each.get("digest") for each in found if isinstance(each.get("digest"), str)}) != 1:
        raise BadArchive(
            f"the archive holds {len(found)} images for this machine, and one is needed",
            hint="save one alone: docker save NAME, or skopeo copy --override-arch",
        )
    document = parts.described(found[0])
    if not isinstance(document, dict):
        raise HostileArchive("an invalid manifest")
    return _choose(parts, document, depth + 1) if "manifests" in document else document


def _fits(about: Any) -> bool:
    if not isinstance(about, dict):
        return True
    return about.get("os", "linux") == "linux" and about.get("architecture") in (None, *_own_architectures())


def _own_architectures() -> tuple[str, ...]:
    machine = platform.machine()
    return (*_ARCHITECTURES.get(machine, ()), machine)


def _check_platform(config: dict[str, Any]) -> None:
    system, architecture = config.get("os", "linux"), config.get("architecture")
    if system not in ("linux", "") or architecture not in (None, "", *_own_architectures()):
        raise BadArchive(
            f"this is an image for {str(system)[:40]} on {str(architecture)[:40]}",
            hint=f"this machine is linux on {_own_architectures()[0]}: get the image for it",
        )


def _saved_by_docker(parts: _Parts) -> tuple[Any, list[Path]]:
    saved = _list(parts.document("manifest.json"), "images")
    if len(saved) != 1 or not isinstance(saved[0], dict):
        raise BadArchive(
            f"the archive holds {len(saved)} images, and one is needed", hint="docker save NAME, one alone"
        )
    name, layers = saved[0].get("Config"), _list(saved[0].get("Layers"), "Layers")
    if not isinstance(name, str) or not all(isinstance(each, str) for each in layers):
        raise HostileArchive("manifest.json does not name the image")
    digest = re.search(r"[0-9a-f]{64}", name)
    if digest is not None and _digest_of(parts.path(name)) != f"sha256:{digest[0]}":
        raise HostileArchive("the configuration of the image does not have the digest in its name")
    return parts.document(name), [parts.path(each) for each in layers]


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST_PARTS:
        raise HostileArchive(f"the archive has no list of {what} that could be read")
    return value


def _configured(layers: tuple[Layer, ...], config: dict[str, Any]) -> Contents:
    """Keeps the valid parts of an image's configuration and ignores the rest, which a box does not need."""
    env: dict[str, str] = {}
    for each in config.get("Env") or () if isinstance(config.get("Env"), list | None) else ():
        name, equals, value = each.partition("=") if isinstance(each, str) else ("", "", "")
        if equals and _VARIABLE.fullmatch(name) and "\0" not in value and len(value) <= 65536 and len(env) < 1024:
            env[name] = value
    workdir, user, labels = config.get("WorkingDir"), config.get("User"), config.get("Labels")
    return Contents(
        layers,
        env,
        checked_workdir(workdir) if isinstance(workdir, str) else None,
        user if isinstance(user, str) and 0 < len(user) <= 128 and user.isprintable() else None,
        {
            name: value
            for name, value in itertools.islice((labels if isinstance(labels, dict) else {}).items(), 64)
            if isinstance(value, str) and 0 < len(name) <= 128 and len(value) <= 512 and ":" not in name
        },
    )


def checked_workdir(workdir: str) -> str | None:
    if not workdir.startswith("/") or len(workdir.encode("utf-8", "replace")) >= 4096 or not workdir.isprintable():
        return None
    return "/" + posixpath.normpath(workdir).strip("/")
