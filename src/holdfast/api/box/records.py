"""Boxes as the server tells them, and what is asked of them. Times are UTC milliseconds."""

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
    """Its processes are held, for it was idle. The next request lets them go on."""
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    """Stopped, for it was idle, with a snapshot of its files. The next request wakes it."""
    WAKING = "waking"
    DELETING = "deleting"
    DELETED = "deleted"
    """A tombstone: we removed it."""
    GONE = "gone"
    """A tombstone: its provider has it no more, and it was not us."""


TOMBSTONES: Final = frozenset({BoxState.DELETED, BoxState.GONE})


@dataclass(frozen=True, slots=True)
class Owner(Document):
    """Whom a box serves."""

    tenant: str = "default"
    thread: str | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxOwner(Document):
    """Whom a new box serves."""

    thread: ThreadId | None = None
    environment: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBox(Document):
    spec: BoxSpec = field(default_factory=BoxSpec)
    key: BoxKey | None = None
    """Acquire the box of this key: resume it, restore its latest snapshot, or create it."""
    fresh: StrictBool = False
    """Delete the box that the key has, and create one that has nothing of it."""
    replaces: StrictBool = True
    """A box of the key that has another spec is deleted for the one that is wanted. False: that is an error."""
    owner: BoxOwner = field(default_factory=BoxOwner)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSpec(Document):
    """What a box was asked to be."""

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
    """Names alone: values may be secrets."""
    hash: str
    """Equal for specs that ask for the same machine."""

    def to_spec(self) -> BoxSpec:
        """A spec like it. The values of its `env` are empty."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("env", "hash")}
        return BoxSpec(**given, env=dict.fromkeys(self.env, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecord(Document):
    """A box as the server knew it when it was asked."""

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
    """A box, and how it came to be."""

    box: BoxRecord
    how: Literal["created", "resumed", "restored"]
    replaced: str | None = None
    """The box that this one replaces."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed(Document):
    freed: int
    """Bytes that are free again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedBox(Document):
    id: str
    why: str
    freed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Document):
    """What was cleaned up."""

    removed: tuple[RemovedBox, ...]
    """Boxes that were deleted just now."""
    gone: tuple[str, ...]
    """Boxes that their providers have no more."""
    leftovers: tuple[str, ...]
    """What was left of things that died halfway, one line each."""
    failed: tuple[str, ...]
    """What could not be done, one line each."""
    freed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Document):
    owner: BoxOwner | None = None
    """The owner of the box that is forked, if none is given."""
    key: BoxKey | None = None
    """Of the new box. The key must have no box yet."""
    idle_seconds: IdleSeconds | None = None
    """The new box is ephemeral, and is reaped after being idle for so long, whatever the first one is."""


@dataclass(frozen=True, slots=True)
class Step(Document):
    """One step of a ping or a diagnosis."""

    name: str
    ok: bool
    milliseconds: float
    detail: str = ""
    next_step: str | None = None
    """What to do if it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps(Document):
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxPython(Document):
    command: tuple[str, ...]
    """The first words of a command."""


@dataclass(frozen=True, slots=True)
class Preview(Document):
    """Where a port of a box can be visited."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    """To be sent along."""
