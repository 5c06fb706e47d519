"""Boxes as the server shows them, and requests about boxes. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Final, Literal

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.spec import WORKSPACE, BoxSpec, HostMount, Lifetime, OnIdle, VolumeMount
from holdfast.api.document import Document, Limits
from holdfast.api.limits import (
    BoxKey,
    Cores,
    DiskBytes,
    IdleSeconds,
    ImageText,
    MemoryBytes,
    Name,
    PathText,
    Pids,
    ProviderName,
    StrictBool,
    ThreadId,
)

OWNER_THREAD: Final = "holdfast.owner.thread"
"""The label of a box with the thread that it serves."""
OWNER_ENVIRONMENT: Final = "holdfast.owner.environment"
RESERVED: Final = "holdfast."
"""The prefix of Holdfast's own labels. Callers cannot set them."""


class BoxState(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    STARTING = "starting"
    PAUSED = "paused"
    """Its processes are frozen because it was idle. The next request resumes them."""
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    """Stopped because it was idle, with a snapshot of its files. The next request wakes it."""
    WAKING = "waking"
    MOVING = "moving"
    """Its files are being copied to a box of another provider, which replaces it."""
    DELETING = "deleting"
    DELETED = "deleted"
    """A tombstone: Holdfast deleted it."""
    GONE = "gone"
    """A tombstone: its provider lost it, without a request of Holdfast."""


TOMBSTONES: Final = frozenset({BoxState.DELETED, BoxState.GONE})


@dataclass(frozen=True, slots=True)
class Owner(Document):
    """What a box is used for."""

    tenant: str = "default"
    thread: str | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxOwner(Document):
    """What a new box is used for."""

    thread: ThreadId | None = None
    environment: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBox(Document):
    spec: BoxSpec = field(default_factory=BoxSpec)
    key: BoxKey | None = None
    """Acquire the box of this key: resume it, restore its latest snapshot, or create it."""
    fresh: StrictBool = False
    """Delete the existing box of the key, and create one that shares nothing with it."""
    replaces: StrictBool = True
    """If the box of the key has another spec, replace it. If false, that is an error."""
    owner: BoxOwner = field(default_factory=BoxOwner)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSpec(Document):
    """The spec of a box, without secrets."""

    provider: ProviderName = "local"
    image: ImageText | None = None
    cpu: Cores | None = None
    memory: MemoryBytes | None = None
    disk: DiskBytes | None = None
    pids: Pids | None = None
    workdir: PathText = WORKSPACE
    volumes: Annotated[tuple[VolumeMount, ...], Limits(max_length=256)] = ()
    mounts: Annotated[tuple[HostMount, ...], Limits(max_length=256)] = ()
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    lifetime: Lifetime = Lifetime.SHARED
    idle_seconds: IdleSeconds | None = None
    on_idle: OnIdle | None = None
    labels: dict[str, str]
    env: tuple[str, ...]
    """Only names, because values may be secrets."""
    hash: str
    """Equal for specs that describe the same machine."""

    def to_spec(self) -> BoxSpec:
        """Returns a spec with the same fields. The values of its `env` are empty."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("env", "hash")}
        return BoxSpec(**given, env=dict.fromkeys(self.env, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecord(Document):
    """A box at the time of the request."""

    id: str
    node: str
    provider: str
    key: str | None
    state: BoxState
    lifetime: Lifetime
    spec: ShownSpec
    labels: dict[str, str]
    owner: Owner
    created_at: int
    changed_at: int
    last_active_at: int
    ended_at: int | None
    ended_why: str | None
    freed: int | None
    snapshot: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecordPage(Document):
    boxes: tuple[BoxRecord, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBox(Document):
    """A box, and whether it was created, resumed or restored."""

    box: BoxRecord
    how: Literal["created", "resumed", "restored"]
    replaced: str | None = None
    """The box that this one replaces."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed(Document):
    freed: int
    """Bytes that were freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedBox(Document):
    id: str
    why: str
    freed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Document):
    """The result of a sweep."""

    removed: tuple[RemovedBox, ...]
    """Boxes that were deleted."""
    gone: tuple[str, ...]
    """Boxes that their providers no longer have."""
    leftovers: tuple[str, ...]
    """Leftovers of interrupted operations, one line each."""
    failed: tuple[str, ...]
    """Failures, one line each."""
    freed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Document):
    owner: BoxOwner | None = None
    """Defaults to the owner of the source box."""
    key: BoxKey | None = None
    """The key of the new box, which must not have a box yet."""
    idle_seconds: IdleSeconds | None = None
    """If set, the new box is ephemeral and deleted after this idle time, whatever the source box is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBox(Document):
    to: ProviderName
    """The provider of the new box."""
    image: ImageText | None = None
    """The image of the new box. Defaults to that of the old one."""
    stop: StrictBool = False
    """End the processes of the box first. If false, a box with processes is not moved."""
    keep: StrictBool = False
    """Keep the old box, stopped and without its key, instead of deleting it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBox(Document):
    """The new box, and what was copied to it."""

    box: BoxRecord
    moved_from: str
    """The id of the old box."""
    kept: bool
    """Whether the old box is kept."""
    entries: int
    """Files, folders and links below the workdir."""
    bytes: int
    """Bytes of all files."""


@dataclass(frozen=True, slots=True)
class Step(Document):
    """One step of a ping or a diagnosis."""

    name: str
    ok: bool
    milliseconds: float
    detail: str = ""
    next_step: str | None = None
    """What to do about a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps(Document):
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxPython(Document):
    command: tuple[str, ...]
    """The first arguments of a command."""


@dataclass(frozen=True, slots=True)
class Preview(Document):
    """The address of a port of a box for browsers."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    """Headers to send with each request."""
