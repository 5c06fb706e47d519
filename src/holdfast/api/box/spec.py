"""The spec of a box: plain values, checked once. Specs with the same hash describe the same machine."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.document import Document, Limits
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.api.limits import (
    Cores,
    DiskBytes,
    IdleSeconds,
    ImageText,
    Labels,
    MemoryBytes,
    PathText,
    Pids,
    ProviderName,
    StrictBool,
    Subpath,
    Variables,
    VolumeName,
)

WORKSPACE: Final = "/workspace"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL: Final = re.compile(r"[^:\x00-\x1f]{1,128}")
_MEGABYTE: Final = 1024 * 1024
NOT_OF_THE_MACHINE: Final = ("labels", "lifetime", "idleSeconds", "onIdle", "network")
"""Fields about the lifetime and surroundings of a box. They can change without making it another machine."""


class Lifetime(StrEnum):
    SHARED = "shared"
    """Kept until a caller deletes it."""
    EPHEMERAL = "ephemeral"
    """Deleted once it has been idle for its idle time."""
    ONE_SHOT = "one-shot"
    """Deleted as soon as the first work in it has ended. Never reused."""


class OnIdle(StrEnum):
    """What happens to a box that was idle for its idle time."""

    KEEP = "keep"
    PAUSE = "pause"
    """Its processes are frozen until the next request. It keeps its memory."""
    HIBERNATE = "hibernate"
    """It is stopped with a snapshot, which frees its memory. The next request starts it again with its files."""
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class VolumeMount(Document):
    """A named, durable volume, shared by every box that mounts it."""

    volume: VolumeName
    path: PathText
    subpath: Subpath = ""
    """Mount only this folder of the volume. It is created if it is missing."""
    read_only: StrictBool = False


@dataclass(frozen=True, slots=True)
class HostMount(Document):
    """A folder or file of the machine that the box runs on. Some providers do not support it."""

    source: PathText
    path: PathText
    read_only: StrictBool = True


class _Remembered:
    """Values that a spec computes once. They are not fields, because they are not part of its JSON."""

    __slots__ = ("_hash", "_text")
    _hash: str
    _text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec(_Remembered, Document):
    """Describes the box that a caller wants. None leaves a limit to the provider."""

    provider: ProviderName = "local"
    image: ImageText | None = None
    cpu: Cores | None = None
    """Cores."""
    memory: MemoryBytes | None = None
    """Bytes."""
    disk: DiskBytes | None = None
    """Bytes that the box may use on disk, including stored output."""
    pids: Pids | None = None
    """Processes and threads at once."""
    env: Variables = field(default_factory=dict, repr=False)
    """May contain secrets, so only the names are ever shown."""
    workdir: PathText = WORKSPACE
    volumes: Annotated[tuple[VolumeMount, ...], Limits(max_length=256)] = ()
    mounts: Annotated[tuple[HostMount, ...], Limits(max_length=256)] = ()
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    lifetime: Lifetime = Lifetime.SHARED
    idle_seconds: IdleSeconds | None = None
    """The idle time after which `on_idle` happens."""
    on_idle: OnIdle | None = None
    """None: shared boxes are kept, others are deleted."""
    labels: Labels = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def when_idle(self) -> OnIdle:
        if self.on_idle is not None:
            return self.on_idle
        return OnIdle.KEEP if self.lifetime is Lifetime.SHARED else OnIdle.DELETE

    @property
    def hash(self) -> str:
        """Equal for specs that describe the same machine."""
        try:
            return self._hash
        except AttributeError:  # needed several times for each new box
            document = self.to_json()
            for apart in NOT_OF_THE_MACHINE:
                del document[apart]
            import hashlib  # here: clients do not need it

            made = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
            object.__setattr__(self, "_hash", made)
            return made

    @property
    def text(self) -> str:
        """`to_json` as JSON."""
        try:
            return self._text
        except AttributeError:
            made = json.dumps(self.to_json())
            object.__setattr__(self, "_text", made)
            return made

    def to_json(self) -> dict[str, Any]:
        """Returns all fields, including secrets. For the store and providers, never for people."""
        return {
            "provider": self.provider,
            "image": self.image,
            "cpu": None if self.cpu is None else float(self.cpu),
            "memory": self.memory,
            "disk": self.disk,
            "pids": self.pids,
            "env": dict(self.env),
            "workdir": self.workdir,
            "volumes": [
                {"volume": each.volume, "path": each.path, "subpath": each.subpath, "readOnly": each.read_only}
                for each in self.volumes
            ],
            "mounts": [{"source": each.source, "path": each.path, "readOnly": each.read_only} for each in self.mounts],
            "network": self.network.to_json(),
            "lifetime": self.lifetime.value,
            "idleSeconds": self.idle_seconds,
            "onIdle": None if self.on_idle is None else self.on_idle.value,
            "labels": dict(self.labels),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BoxSpec:
        """The inverse of `to_json`. Omitted fields get their defaults."""
        known = {
            "provider", "image", "cpu", "memory", "disk", "pids", "env", "workdir", "volumes", "mounts", "network",
            "lifetime", "idleSeconds", "onIdle", "labels",
        }  # fmt: skip
        if unknown := sorted(set(document) - known):
            raise InvalidSpec(f"a box spec has no {', '.join(unknown)}")
        given = dict(document)
        try:
            if "volumes" in given:
                given["volumes"] = tuple(
                    VolumeMount(each["volume"], each["path"], each.get("subpath", ""), each.get("readOnly", False))
                    for each in given["volumes"]
                )
            if "mounts" in given:
                given["mounts"] = tuple(
                    HostMount(each["source"], each["path"], each.get("readOnly", True)) for each in given["mounts"]
                )
            if "network" in given:
                given["network"] = NetworkPolicy.from_json(given["network"])
            if "lifetime" in given:
                given["lifetime"] = Lifetime(given["lifetime"])
            if given.get("onIdle") is not None:
                given["onIdle"] = OnIdle(given["onIdle"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidSpec(f"the box spec is invalid: {error}") from None
        if "idleSeconds" in given:
            given["idle_seconds"] = given.pop("idleSeconds")
        given["on_idle"] = given.pop("onIdle", None)
        return cls(**given)

    def with_labels(self, labels: Mapping[str, str]) -> BoxSpec:
        return replace(self, labels={**self.labels, **labels})


def _check(spec: BoxSpec) -> None:
    _wants(isinstance(spec.provider, str) and _NAME.fullmatch(spec.provider) is not None, f"provider {spec.provider!r}")
    _wants(spec.image is None or (isinstance(spec.image, str) and 0 < len(spec.image) < 512), f"image {spec.image!r}")
    _wants(
        spec.cpu is None or (_is_number(spec.cpu) and 0.01 <= spec.cpu <= 1024),
        f"cpu {spec.cpu!r}: a number of cores, such as 0.5",
    )
    _wants(_is_limit(spec.memory, 16 * _MEGABYTE), f"memory {spec.memory!r}: bytes, at least 16 MB")
    _wants(_is_limit(spec.disk, _MEGABYTE), f"disk {spec.disk!r}: bytes, at least 1 MB")
    _wants(_is_limit(spec.pids, 4), f"pids {spec.pids!r}: at least 4")
    _wants(_is_limit(spec.idle_seconds, 0), f"idle time {spec.idle_seconds!r}: seconds")
    _wants(isinstance(spec.env, Mapping) and len(spec.env) <= 1024, "env: at most 1024 names with values")
    for name, value in spec.env.items():
        # The value is not shown: it may be a secret.
        _wants(isinstance(name, str) and _VARIABLE.fullmatch(name) is not None, f"env name {name!r}")
        _wants(isinstance(value, str) and "\0" not in value and len(value) <= 131_000, f"the value of env {name}")
    check_labels(spec.labels)
    check_path(spec.workdir, "workdir")
    places = [spec.workdir] if spec.workdir == "/" else []
    for volume in spec.volumes:
        check_name(volume.volume, "volume")
        check_path(volume.path, f"path of volume {volume.volume}")
        check_subpath(volume.subpath)
        places.append(volume.path)
    for mount in spec.mounts:
        check_path(mount.source, "source of a mount")
        check_path(mount.path, f"path of mount {mount.source}")
        places.append(mount.path)
    for number, place in enumerate(places):
        for other in places[number + 1 :]:
            # If one contained the other, a box could move the folder that a mount is on.
            _wants(not _within(place, other) and not _within(other, place), f"{place} and {other}: one is in the other")
    spec.network.check()


def _within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _wants(holds: bool, what: str) -> None:
    if not holds:
        raise InvalidSpec(f"the box spec is invalid: {what}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_limit(value: object, least: int) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 60)


def check_path(path: str, what: str) -> None:
    """Check that a path is absolute and canonical: no `..`, no `//`, no control characters."""
    fits = (
        isinstance(path, str)
        and path.startswith("/")
        and len(path.encode("utf-8", "surrogateescape")) < 4096
        and posixpath.normpath(path) == path
        and not path.startswith("//")
        and not any(character < " " for character in path)
    )
    _wants(fits, f"{what} {path!r}: an absolute path, without .. or a / at its end")


def check_name(name: str, what: str) -> None:
    _wants(
        isinstance(name, str) and _NAME.fullmatch(name) is not None,
        f"{what} name {name!r}: up to 63 of A-Z a-z 0-9 . _ -, a letter or digit first",
    )


def check_subpath(subpath: str) -> None:
    parts = subpath.split("/") if subpath else []
    fits = all(part not in ("", ".", "..") and not any(c < " " for c in part) for part in parts) and len(subpath) < 1024
    _wants(fits, f"subpath {subpath!r}: a relative path without ..")


def check_labels(labels: Mapping[str, str]) -> None:
    _wants(isinstance(labels, Mapping) and len(labels) <= 64, "labels: at most 64")
    for name, value in labels.items():
        _wants(isinstance(name, str) and _LABEL.fullmatch(name) is not None, f"label name {name!r}")
        _wants(isinstance(value, str) and len(value) <= 512, f"the value of label {name}: at most 512 characters")
