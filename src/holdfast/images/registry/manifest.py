"""Parses manifests, and lists of manifests for several platforms. Pure.

Every field is untrusted: kinds, counts and sizes are checked before anything is fetched.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors.boxes import BadArchive, HostileArchive

LARGEST_MANIFEST: Final = 4 << 20
"""In bytes. Registries and other clients have the same limit."""
_LARGEST_CONFIG: Final = 8 << 20
_LARGEST_IMAGE: Final = 64 << 30
_MOST_LAYERS: Final = 128
_MOST_MANIFESTS: Final = 1024
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CONFIGS: Final = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
ACCEPTED: Final = ", ".join((*_INDEXES, *_MANIFESTS))

_ARCHITECTURES: Final = {
    "x86_64": ("amd64", ()),
    "aarch64": ("arm64", ("v8",)),
    "armv7l": ("arm", ("v7", "v6", "v5")),
    "i686": ("386", ()),
    "ppc64le": ("ppc64le", ()),
    "s390x": ("s390x", ()),
    "riscv64": ("riscv64", ()),
}
"""Registries' names of processors, and which variants run here, best first."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A descriptor. The content must have exactly this digest and size."""

    digest: str
    size: int

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image."""

    data: bytes
    config: Blob
    layers: tuple[Blob, ...]
    """Lowest first. A layer may occur twice."""

    @property
    def digest(self) -> str:
        return digest_of(self.data)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Returns everything to fetch, each once."""
        return tuple({blob.digest: blob for blob in (self.config, *self.layers)}.values())

    @property
    def size(self) -> int:
        return sum(blob.size for blob in self.blobs)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_digest(data: bytes, digest: str) -> None:
    if digest_of(data) != digest:
        raise HostileArchive(f"the registry sent another manifest than {digest}", hint="pull again, or ask its owner")


def read_manifest(data: bytes) -> Manifest | Blob:
    """Returns the image, or the next manifest to fetch if this is a list for several platforms.

    Raises `HostileArchive` and `BadArchive`.
    """
    document = _parsed(data)
    kind = document.get("mediaType")
    if document.get("schemaVersion") == 1:
        raise BadArchive("the registry has this image in a form that went out of use in 2017", hint="push it anew")
    if "manifests" in document or kind in _INDEXES:
        return choose_platform(document)
    config = document.get("config")
    config_kind = config.get("mediaType") if isinstance(config, dict) else None
    if config_kind not in _CONFIGS:
        raise BadArchive(f"this is not an image: the registry calls it {str(config_kind or kind)[:100]!r}")
    layers = document.get("layers")
    if not isinstance(layers, list) or not 1 <= len(layers) <= _MOST_LAYERS:
        raise HostileArchive(f"a manifest has a list of layers: at least 1, at most {_MOST_LAYERS}")
    found = Manifest(data, _blob(config, _LARGEST_CONFIG), tuple(_blob(each, _LARGEST_IMAGE) for each in layers))
    sizes: dict[str, int] = {}
    for blob in (found.config, *found.layers):
        if sizes.setdefault(blob.digest, blob.size) != blob.size:
            raise HostileArchive(f"the manifest declares two sizes for {blob.digest}")
    if found.size > _LARGEST_IMAGE:
        raise HostileArchive(f"the image is {found.size >> 30} GB: at most {_LARGEST_IMAGE >> 30} GB")
    return found


def choose_platform(index: Mapping[str, Any], machine: str | None = None) -> Blob:
    """Returns the manifest for this machine, or for one named as `uname -m` does."""
    manifests = index.get("manifests")
    if not isinstance(manifests, list) or len(manifests) > _MOST_MANIFESTS:
        raise HostileArchive("the registry sent a list of platforms that cannot be read")
    name = machine or platform.machine()
    architecture, variants = _ARCHITECTURES.get(name, (name, ()))
    fitting: list[tuple[int, Any]] = []
    for each in manifests:
        about = each.get("platform") if isinstance(each, dict) else None
        if not isinstance(about, dict) or (about.get("os"), about.get("architecture")) != ("linux", architecture):
            continue
        variant = about.get("variant") or ""
        if not variant or variant in variants:
            fitting.append((variants.index(variant) if variant in variants else len(variants), each))
    if not fitting:
        raise BadArchive(
            f"the image is not there for linux on {architecture}, only for {_platforms(manifests)}",
            hint="ask its owner for one for this machine",
        )
    return _blob(min(fitting, key=lambda each: each[0])[1], LARGEST_MANIFEST)


def _platforms(manifests: list[Any]) -> str:
    found = []
    for each in manifests:
        about = each.get("platform") if isinstance(each, dict) else None
        if isinstance(about, dict) and about.get("architecture") not in (None, "unknown"):
            found.append(f"{about.get('os')}/{about.get('architecture')}"[:40])
    return ", ".join(sorted(set(found))[:12]) or "none"


def _blob(descriptor: Any, largest: int) -> Blob:
    document = descriptor if isinstance(descriptor, dict) else {}
    digest, size = document.get("digest"), document.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise HostileArchive("the manifest describes a part without a sha256 digest")
    if type(size) is not int or not 0 <= size <= largest:
        raise HostileArchive(f"the manifest declares {str(size)[:40]} bytes for {digest}: the limit is {largest}")
    return Blob(digest, size)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise HostileArchive("the registry sent a manifest that is not a JSON object")
    return document
