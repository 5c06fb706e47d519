"""What the Daytona API keeps about a sandbox beside its box, and how a sandbox looks on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import BoxState
from holdfast.boxes.rows import BoxRow
from holdfast.compat.daytona.network import policy_of
from holdfast.compat.daytona.records import Document, Record, RecordStore

KIND: Final = "sandbox"
CLASS: Final = "container"
_STATES: Final = {
    BoxState.CREATING: "creating",
    BoxState.RUNNING: "started",
    BoxState.STOPPING: "stopping",
    BoxState.STOPPED: "stopped",
    BoxState.STARTING: "starting",
    BoxState.PAUSED: "paused",
    BoxState.HIBERNATING: "archiving",
    BoxState.HIBERNATED: "archived",
    BoxState.WAKING: "resuming",
    BoxState.MOVING: "resizing",
    BoxState.DELETING: "destroying",
    BoxState.DELETED: "destroyed",
    BoxState.GONE: "destroyed",
}
_DESIRED: Final = {
    "pending_build": "started",
    "building_snapshot": "started",
    "build_failed": "started",
    "creating": "started",
    "starting": "started",
    "stopping": "stopped",
    "archiving": "archived",
    "resuming": "started",
    "destroying": "destroyed",
    "paused": "stopped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxDetails:
    """The document of a sandbox's record."""

    box: str
    """The box that the sandbox has now. A resize gives it another."""
    labels: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    user: str = "daytona"
    public: bool = False
    target: str
    snapshot: str | None = None
    cpu: int = 1
    memory: int = 1
    disk: int = 3
    auto_stop: int = 15
    auto_pause: int = 0
    auto_archive: int = 7 * 24 * 60
    auto_delete: int = -1
    """Minutes, as the intervals before it. Negative: never. 0: as soon as it stops."""
    ttl_minutes: int = 0
    block_all: bool = False
    allow_list: str | None = None
    domains: str | None = None
    volumes: list[dict[str, str]] = field(default_factory=list)
    dockerfile: str | None = None
    entrypoint: list[str] = field(default_factory=list)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    """By variable: the `name` of the secret, its `placeholder`, and its name in the `vault` of the server."""
    archived: bool = False
    parent: str | None = None
    """The sandbox that it was forked from."""
    key_version: int = 0
    """Goes up when the key that signs its file URLs is rotated."""
    expired_previews: list[str] = field(default_factory=list)
    links: list[tuple[int, str | None]] = field(default_factory=list)
    """Ports with links that were given out, and the tokens of signed ones. A new server opens them again."""

    @property
    def variables(self) -> dict[str, str]:
        """What each of its processes has in its environment."""
        return {**self.env, **{variable: each["placeholder"] for variable, each in self.secrets.items()}}

    @property
    def policy(self) -> NetworkPolicy:
        """The network policy of its box. Raises `ApiError` if its settings cannot be expressed."""
        policy = policy_of(self.block_all, self.allow_list, self.domains)
        if policy.mode is Network.NONE:
            return policy  # a secret has nowhere to go
        return replace(policy, secrets=tuple(sorted({each["vault"] for each in self.secrets.values()})))

    @classmethod
    def of(cls, record: Record) -> SandboxDetails:
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in record.document.items() if name in known})

    def to_document(self) -> Document:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox: its record, and the row of its box."""

    record: Record
    row: BoxRow
    phase: str | None = None
    """Its state, while what it begins with is being built and it has no box yet."""
    problem: str | None = None
    """Why that failed."""

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def details(self) -> SandboxDetails:
        return SandboxDetails.of(self.record)

    @property
    def state(self) -> str:
        if self.phase is not None:
            return self.phase
        if self.row.state is BoxState.STOPPED and self.record.document.get("archived"):
            return "archived"
        return _STATES[self.row.state]


async def sandbox_with(box: str, records: RecordStore, tenant: str) -> str | None:
    """Returns the name of the sandbox that has this box, or None."""
    for record in await records.list(tenant, KIND):
        if record.document["box"] == box:
            return record.name
    return None


def timestamp(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sandbox_json(sandbox: Sandbox, organization: str, toolbox_url: str, *, state: str | None = None) -> dict[str, Any]:
    """A sandbox on the wire. `state` replaces the one that its box has."""
    details, record, row = sandbox.details, sandbox.record, sandbox.row
    state = state or sandbox.state
    shown: dict[str, Any] = {
        "id": record.id,
        "organizationId": organization,
        "name": record.name,
        "user": details.user,
        "env": details.env,
        "labels": details.labels,
        "public": details.public,
        "networkBlockAll": details.block_all,
        "kvm": False,
        "target": details.target,
        "cpu": details.cpu,
        "gpu": 0,
        "memory": details.memory,
        "disk": details.disk,
        "state": state,
        "desiredState": _DESIRED.get(state, state),
        "recoverable": False,
        "backupState": "None",
        "autoStopInterval": details.auto_stop,
        "autoPauseInterval": details.auto_pause,
        "autoArchiveInterval": details.auto_archive,
        "autoDeleteInterval": details.auto_delete,
        "volumes": details.volumes,
        "createdAt": timestamp(record.created_at),
        "updatedAt": timestamp(max(record.changed_at, row.changed_at)),
        "lastActivityAt": timestamp(row.last_active_at),
        "sandboxClass": CLASS,
        "daemonVersion": "holdfast",
        "runnerId": row.node,
        "toolboxProxyUrl": toolbox_url,
    }
    if problem := sandbox.problem or row.ended_why:
        shown["errorReason"] = problem
    optional = {
        "snapshot": details.snapshot,
        "networkAllowList": details.allow_list,
        "domainAllowList": details.domains,
        "autoDestroyAt": timestamp(record.created_at + details.ttl_minutes * 60_000) if details.ttl_minutes else None,
    }
    shown.update({name: value for name, value in optional.items() if value is not None})
    if details.dockerfile is not None:
        shown["buildInfo"] = build_info(details.dockerfile, record)
    return shown


def build_info(dockerfile: str, record: Record) -> Mapping[str, Any]:
    return {
        "dockerfileContent": dockerfile,
        "contextHashes": [],
        "createdAt": timestamp(record.created_at),
        "updatedAt": timestamp(record.changed_at),
        "snapshotRef": record.id,
    }
