"""What the server tells about boxes, as data. Times are UTC milliseconds. Values of `env` are not told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.boxes.box import BoxInfo, Metrics, Power, Step
from holdfast.boxes.errors import BoxGone
from holdfast.boxes.files import FileInfo, FileKind
from holdfast.boxes.labels import Owner
from holdfast.boxes.lifecycle import TOMBSTONES, BoxState
from holdfast.boxes.process import ProcessInfo, ProcessState
from holdfast.boxes.provider import Volume
from holdfast.boxes.snapshots import Holding, Snapshot
from holdfast.boxes.spec import BoxSpec

_STOPPED = frozenset({BoxState.STOPPED, BoxState.STARTING, BoxState.HIBERNATED, BoxState.WAKING})


@dataclass(frozen=True, slots=True)
class BoxRecord:
    """A box as the server knew it when it was asked."""

    id: str
    node: str
    provider: str
    key: str | None
    state: BoxState
    spec: BoxSpec
    """The values of its `env` are empty: they are not told."""
    spec_hash: str
    labels: Mapping[str, str]
    owner: Owner
    created_at: int
    changed_at: int
    last_active_at: int
    ended_at: int | None
    ended_why: str | None
    freed: int | None
    snapshot: str | None
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> BoxRecord:
        spec = dict(value["spec"])
        spec_hash = spec.pop("hash")
        spec["env"] = dict.fromkeys(spec["env"], "")
        owner = value["owner"]
        return cls(
            id=value["id"],
            node=value["node"],
            provider=value["provider"],
            key=value["key"],
            state=BoxState(value["state"]),
            spec=BoxSpec.from_json(spec),
            spec_hash=spec_hash,
            labels=value["labels"],
            owner=Owner(owner["tenant"], owner["thread"], owner["environment"]),
            created_at=value["createdAt"],
            changed_at=value["changedAt"],
            last_active_at=value["lastActiveAt"],
            ended_at=value["endedAt"],
            ended_why=value["endedWhy"],
            freed=value["freed"],
            snapshot=value["snapshot"],
            document=value,
        )

    def to_json(self) -> dict[str, Any]:
        return dict(self.document)

    @property
    def power(self) -> Power:
        """Raises `BoxGone` where the box is no more."""
        if self.state in TOMBSTONES or self.state is BoxState.DELETING:
            raise BoxGone(f"box {self.id} is {self.state}" + (f": {self.ended_why}" if self.ended_why else ""))
        if self.state is BoxState.PAUSED:
            return Power.PAUSED
        return Power.STOPPED if self.state in _STOPPED else Power.RUNNING

    @property
    def info(self) -> BoxInfo:
        return BoxInfo(self.id, self.provider, self.spec, self.labels, self.power, self.created_at, self.snapshot)


@dataclass(frozen=True, slots=True)
class BoxRecordPage:
    boxes: list[BoxRecord]
    next_cursor: str | None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> BoxRecordPage:
        return cls([BoxRecord.from_json(each) for each in value["boxes"]], value["nextCursor"])


@dataclass(frozen=True, slots=True)
class MadeBox:
    """A box, and how it came to be."""

    box: BoxRecord
    how: str
    """`created`, `resumed` or `restored`."""
    replaced: str | None
    """The box that it stands in for."""
    why: str

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> MadeBox:
        return cls(BoxRecord.from_json(value["box"]), value["how"], value["replaced"], value["why"])

    def to_json(self) -> dict[str, Any]:
        return {"box": self.box.to_json(), "how": self.how, "replaced": self.replaced, "why": self.why}


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was cleaned up."""

    boxes: tuple[str, ...]
    """Boxes that were deleted."""
    removed: tuple[str, ...]
    """Leftovers, one line each."""
    gone: tuple[str, ...]
    """Boxes that their providers have no more."""
    failed: tuple[str, ...]
    """What could not be done, one line each."""
    freed: int
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Pruned:
        return cls(
            tuple(each["id"] for each in value["removed"]),
            tuple(value["leftovers"]),
            tuple(value["gone"]),
            tuple(value["failed"]),
            value["freed"],
            value,
        )

    def to_json(self) -> dict[str, Any]:
        return dict(self.document)


@dataclass(frozen=True, slots=True)
class BoxUsage:
    """What a box used at one moment."""

    id: str
    provider: str
    key: str | None
    state: BoxState
    last_active_at: int
    sampled_at: int
    cpu_limit: float | None
    memory_limit: int | None
    metrics: Metrics | None
    """None where nothing runs, or the box did not answer."""
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> BoxUsage:
        return cls(
            id=value["id"],
            provider=value["provider"],
            key=value["key"],
            state=BoxState(value["state"]),
            last_active_at=value["lastActiveAt"],
            sampled_at=value["sampledAt"],
            cpu_limit=value["cpuLimit"],
            memory_limit=value["memoryLimit"],
            metrics=None if value["metrics"] is None else metrics_of(value["metrics"]),
            document=value,
        )


@dataclass(frozen=True, slots=True)
class BoxUsages:
    """What all boxes use."""

    boxes: tuple[BoxUsage, ...]
    left_out: int
    """Boxes that there are beside these."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> BoxUsages:
        return cls(tuple(BoxUsage.from_json(each) for each in value["boxes"]), value["leftOut"])


def metrics_of(value: dict[str, Any]) -> Metrics:
    return Metrics(
        value["processes"],
        value["connections"],
        value["idleSeconds"],
        value["memory"],
        value["cpuSeconds"],
        value["disk"],
        value["outOfMemory"],
        value["listening"],
        value["sent"],
        value["received"],
        value["outgoing"],
    )


def snapshot_of(value: dict[str, Any]) -> Snapshot:
    return Snapshot(
        value["id"],
        value["provider"],
        value["kind"],
        Holding(value["holding"]),
        value["box"],
        value["parent"],
        value["size"],
        value["createdAt"],
        value["labels"],
    )


def volume_of(value: dict[str, Any]) -> Volume:
    return Volume(value["name"], value["createdAt"], value["size"])


def steps_of(value: dict[str, Any]) -> list[Step]:
    return [
        Step(each["name"], each["ok"], each["milliseconds"], each["detail"], each["nextStep"])
        for each in value["steps"]
    ]


def process_of(value: dict[str, Any]) -> ProcessInfo:
    return ProcessInfo(
        value["id"],
        tuple(value["argv"]),
        value["pty"],
        ProcessState(value["state"]),
        value["exitCode"],
        value["startedAt"],
        value["endedAt"],
    )


def file_of(value: dict[str, Any]) -> FileInfo:
    return FileInfo(
        value["path"], FileKind(value["kind"]), value["size"], value["mode"], value["modifiedAt"], value["target"]
    )
