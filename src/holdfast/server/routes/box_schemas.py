"""Requests and answers of the box routes, as their OpenAPI document shows them. Values of `env` are never shown."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from holdfast.api.limits import (
    Arguments,
    Base64,
    BoxKey,
    Labels,
    Name,
    PathText,
    ProviderName,
    StrictBool,
    Variables,
    VolumeName,
    without_nul,
)
from holdfast.api.network import NetworkPolicy
from holdfast.boxes import box, files, process, provider, snapshots
from holdfast.boxes.errors import InvalidSpec
from holdfast.boxes.labels import Owner
from holdfast.boxes.lifecycle import BoxState
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.sweep import Pruned
from holdfast.boxes.spec import BoxSpec, Lifetime, OnIdle
from holdfast.server.box_metrics import BoxUsage
from holdfast.server.routes.schemas import Model


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidSpec(f"stdin is not base64: {error}") from None


def shown(text: str) -> str:
    """File names and arguments in a box are bytes: what is not UTF-8 cannot stand in JSON."""
    return text.encode("utf-8", "replace").decode()


# --- specs ---


class VolumeMountModel(Model):
    volume: VolumeName
    path: PathText
    subpath: Annotated[str, StringConstraints(max_length=1023), AfterValidator(without_nul)] = ""
    read_only: StrictBool = False


class HostMountModel(Model):
    source: PathText
    path: PathText
    read_only: StrictBool = True


class _Machine(Model):
    provider: ProviderName = "local"
    image: Annotated[str, StringConstraints(min_length=1, max_length=511), AfterValidator(without_nul)] | None = None
    cpu: Annotated[float, Field(ge=0.01, le=1024, allow_inf_nan=False, strict=True)] | None = None
    """Cores."""
    memory: Annotated[int, Field(ge=16 * 1024 * 1024, lt=1 << 60, strict=True)] | None = None
    """Bytes."""
    disk: Annotated[int, Field(ge=1024 * 1024, lt=1 << 60, strict=True)] | None = None
    """Bytes."""
    pids: Annotated[int, Field(ge=4, lt=1 << 60, strict=True)] | None = None
    workdir: PathText = "/workspace"
    volumes: Annotated[list[VolumeMountModel], Field(max_length=256)] = Field(default_factory=list)
    mounts: Annotated[list[HostMountModel], Field(max_length=256)] = Field(default_factory=list)
    network: NetworkPolicy = Field(default_factory=NetworkPolicy)
    lifetime: Lifetime = Lifetime.SHARED
    idle_seconds: Annotated[int, Field(ge=0, lt=1 << 60, strict=True)] | None = None
    on_idle: OnIdle | None = None
    """What happens then; else shared boxes are kept, and others are deleted."""
    labels: Labels = Field(default_factory=dict)


class NewSpec(_Machine):
    """A box as asked for. What is left out is left to the provider."""

    env: Variables = Field(default_factory=dict)

    def to_spec(self) -> BoxSpec:
        return BoxSpec.from_json(self.model_dump(mode="json", by_alias=True))


class ShownSpec(_Machine):
    """What a box was asked to be."""

    env: list[str]
    """Names alone: values may be secrets."""
    labels: dict[str, str]
    hash: str

    @classmethod
    def of(cls, spec: BoxSpec) -> ShownSpec:
        document = spec.to_json()
        document["env"] = sorted(spec.env)
        return cls.model_validate({**document, "hash": spec.hash})


class OwnerModel(Model):
    thread: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")] | None = None
    environment: Name | None = None

    def to_owner(self) -> Owner:
        return Owner(thread=self.thread, environment=self.environment)


# --- boxes ---


class NewBox(Model):
    spec: NewSpec = Field(default_factory=NewSpec)
    key: BoxKey | None = None
    """Acquire the box of this key: resume it, restore its latest snapshot, or create it."""
    fresh: StrictBool = False
    """Delete the box of the key that there is, and create one that has nothing of it."""
    replaces: StrictBool = True
    """A box of the key that has another spec is deleted for the one that is wanted. False: that is an error."""
    owner: OwnerModel = Field(default_factory=OwnerModel)


class BoxModel(Model):
    id: str
    node: str
    provider: str
    key: str | None
    state: BoxState
    lifetime: Lifetime
    spec: ShownSpec
    labels: dict[str, str]
    owner: dict[str, str | None]
    created_at: int
    changed_at: int
    last_active_at: int
    ended_at: int | None
    ended_why: str | None
    freed: int | None
    snapshot: str | None

    @classmethod
    def of(cls, row: BoxRow) -> BoxModel:
        owner = row.owner
        return cls(
            id=row.id,
            node=row.node,
            provider=row.provider,
            key=row.key,
            state=row.state,
            lifetime=row.lifetime,
            spec=ShownSpec.of(row.spec),
            labels=dict(row.labels),
            owner={"tenant": owner.tenant, "thread": owner.thread, "environment": owner.environment},
            created_at=row.created_at,
            changed_at=row.changed_at,
            last_active_at=row.last_active_at,
            ended_at=row.ended_at,
            ended_why=row.ended_why,
            freed=row.freed,
            snapshot=row.snapshot,
        )


class Made(Model):
    box: BoxModel
    how: Literal["created", "resumed", "restored"]
    replaced: str | None = None
    """The box that this one replaces."""
    why: str = ""


class BoxList(Model):
    boxes: list[BoxModel]
    next_cursor: str | None


class Freed(Model):
    freed: int
    """Bytes that are free again."""


class RemovedModel(Model):
    id: str
    why: str
    freed: int


class PrunedModel(Model):
    removed: list[RemovedModel]
    """Boxes that were deleted just now."""
    gone: list[str]
    """Boxes that their providers have no more."""
    leftovers: list[str]
    """What was left of things that died halfway, one line each."""
    failed: list[str]
    """What could not be done, one line each."""
    freed: int

    @classmethod
    def of(cls, pruned: Pruned) -> PrunedModel:
        return cls(
            removed=[RemovedModel(id=each.id, why=each.why, freed=each.freed) for each in pruned.removed],
            gone=list(pruned.gone),
            leftovers=[shown(each) for each in pruned.leftovers],
            failed=[shown(each) for each in pruned.failed],
            freed=pruned.freed,
        )


class MetricsModel(Model):
    processes: int
    connections: int
    idle_seconds: float
    memory: int | None
    cpu_seconds: float | None
    disk: int | None
    out_of_memory: int | None
    listening: int | None
    """Ports that something in the box listens on."""
    sent: int | None
    """Bytes to the network, since the server started."""
    received: int | None
    outgoing: int | None
    """Connections to the network that it has open."""

    @classmethod
    def of(cls, metrics: box.Metrics) -> MetricsModel:
        return cls(
            processes=metrics.processes,
            connections=metrics.connections,
            idle_seconds=metrics.idle_seconds,
            memory=metrics.memory,
            cpu_seconds=metrics.cpu_seconds,
            disk=metrics.disk,
            out_of_memory=metrics.out_of_memory,
            listening=metrics.listening,
            sent=metrics.sent,
            received=metrics.received,
            outgoing=metrics.outgoing,
        )


class UsageModel(Model):
    id: str
    provider: str
    key: str | None
    state: BoxState
    thread: str | None
    environment: str | None
    last_active_at: int
    sampled_at: int
    cpu_limit: float | None
    """Cores."""
    memory_limit: int | None
    """Bytes."""
    metrics: MetricsModel | None
    """Null where nothing runs, or the box did not answer."""

    @classmethod
    def of(cls, usage: BoxUsage) -> UsageModel:
        row = usage.row
        return cls(
            id=row.id,
            provider=row.provider,
            key=row.key,
            state=row.state,
            thread=row.owner.thread,
            environment=row.owner.environment,
            last_active_at=row.last_active_at,
            sampled_at=usage.at,
            cpu_limit=row.spec.cpu,
            memory_limit=row.spec.memory,
            metrics=None if usage.metrics is None else MetricsModel.of(usage.metrics),
        )


class UsageList(Model):
    boxes: list[UsageModel]
    left_out: int
    """Boxes that there are beside these."""


class StepModel(Model):
    name: str
    ok: bool
    milliseconds: float
    detail: str
    next_step: str | None


class Steps(Model):
    steps: list[StepModel]

    @classmethod
    def of(cls, steps: list[box.Step]) -> Steps:
        return cls(
            steps=[
                StepModel(
                    name=step.name,
                    ok=step.ok,
                    milliseconds=step.milliseconds,
                    detail=shown(step.detail),
                    next_step=step.next_step,
                )
                for step in steps
            ]
        )


class PythonModel(Model):
    command: list[str]
    """The first words of a command."""


class PreviewModel(Model):
    url: str
    headers: dict[str, str] = Field(default_factory=dict)


# --- snapshots and volumes ---


class NewSnapshot(Model):
    labels: Labels = Field(default_factory=dict)


class SnapshotModel(Model):
    id: str
    provider: str
    kind: str
    holding: snapshots.Holding
    box: str
    parent: str | None
    size: int
    created_at: int
    labels: dict[str, str]

    @classmethod
    def of(cls, snapshot: snapshots.Snapshot) -> SnapshotModel:
        return cls(
            id=snapshot.id,
            provider=snapshot.provider,
            kind=snapshot.kind,
            holding=snapshot.holding,
            box=snapshot.box,
            parent=snapshot.parent,
            size=snapshot.size,
            created_at=snapshot.created_at,
            labels=dict(snapshot.labels),
        )


class SnapshotList(Model):
    snapshots: list[SnapshotModel]


class Restore(Model):
    spec: NewSpec | None = None
    """The spec of the snapshot's box, where none is given."""
    owner: OwnerModel = Field(default_factory=OwnerModel)


class Fork(Model):
    owner: OwnerModel | None = None
    """The owner of the box that is forked, where none is given."""
    key: BoxKey | None = None
    """Of the new box. There must be none of that key."""
    idle_seconds: Annotated[int, Field(ge=0, lt=1 << 60, strict=True)] | None = None
    """The new box is ephemeral, and is reaped after being idle for so long, whatever the first one is."""


class NewVolume(Model):
    name: VolumeName
    provider: ProviderName = "local"


class VolumeModel(Model):
    name: str
    created_at: int
    size: int | None

    @classmethod
    def of(cls, volume: provider.Volume) -> VolumeModel:
        return cls(name=volume.name, created_at=volume.created_at, size=volume.size)


class VolumeList(Model):
    volumes: list[VolumeModel]


# --- processes ---


class Command(Model):
    argv: Arguments
    env: Variables = Field(default_factory=dict)
    cwd: PathText | None = None


class Execute(Command):
    timeout: Annotated[float, Field(gt=0, le=7 * 24 * 3600, allow_inf_nan=False)] | None = None
    """Seconds after which it is killed."""
    stdin: Base64 = ""


class Executed(Model):
    exit_code: int
    stdout: Base64
    stderr: Base64


class Spawn(Command):
    stdin: StrictBool = False
    pty: StrictBool = False
    rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    columns: Annotated[int, Field(ge=1, le=10_000)] = 80
    tree: StrictBool = False


class ProcessModel(Model):
    id: str
    argv: list[str]
    pty: bool
    state: process.ProcessState
    exit_code: int | None
    started_at: int
    ended_at: int | None

    @classmethod
    def of(cls, info: process.ProcessInfo) -> ProcessModel:
        return cls(
            id=info.id,
            argv=[shown(each) for each in info.argv],
            pty=info.pty,
            state=info.state,
            exit_code=info.exit_code,
            started_at=info.started_at,
            ended_at=info.ended_at,
        )


class ProcessList(Model):
    processes: list[ProcessModel]


class Signal(Model):
    number: Annotated[int, Field(ge=1, le=64, strict=True)]


class Resize(Model):
    rows: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    columns: Annotated[int, Field(ge=1, le=10_000, strict=True)]


class Waited(Model):
    exit_code: int | None
    """None where it has not ended yet."""


# --- files ---


class FileModel(Model):
    path: str
    kind: files.FileKind
    size: int
    mode: int
    modified_at: int
    target: str | None

    @classmethod
    def of(cls, info: files.FileInfo) -> FileModel:
        return cls(
            path=shown(info.path),
            kind=info.kind,
            size=info.size,
            mode=info.mode,
            modified_at=info.modified_at,
            target=None if info.target is None else shown(info.target),
        )


class FileList(Model):
    files: list[FileModel]


class MatchModel(Model):
    path: str
    line: int
    text: str


class Matches(Model):
    matches: list[MatchModel]


class NewFolder(Model):
    path: PathText


class Move(Model):
    source: PathText
    target: PathText


class Mode(Model):
    path: PathText
    mode: Annotated[int, Field(ge=0, le=0o7777, strict=True)]


class Replace(Model):
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=65_536), AfterValidator(without_nul)]
    replacement: Annotated[str, StringConstraints(max_length=1_048_576), AfterValidator(without_nul)]
    paths: Annotated[list[PathText], Field(max_length=10_000)]
    regex: StrictBool = False


class ReplacedModel(Model):
    path: str
    count: int


class ReplacedList(Model):
    replaced: list[ReplacedModel]


def label_filter(labels: list[str]) -> dict[str, str]:
    """`name:value` pairs, as a query gives them."""
    wanted = {}
    for label in labels:
        name, colon, value = label.partition(":")
        if not colon or not name:
            raise InvalidSpec(f"label {label!r}: should be name:value")
        wanted[name] = value
    return wanted
