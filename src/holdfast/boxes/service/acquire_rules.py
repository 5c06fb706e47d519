"""Decides what to do when a caller asks for the box of a key: resume, start, replace, restore or create.

Decisions only: `acquire` collects the facts, calls `decide` and carries out the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from holdfast.api.box.box import Liveness, Power
from holdfast.api.box.records import BoxState
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import NOT_OF_THE_MACHINE, BoxSpec, Lifetime
from holdfast.api.errors.boxes import BoxConflict, BoxDiffers, BoxUnreachable
from holdfast.boxes.labels import SPEC
from holdfast.boxes.rows import BoxRow


class How(StrEnum):
    RESUMED = "resumed"
    RESTORED = "restored"
    CREATED = "created"


@dataclass(frozen=True, slots=True)
class Acquired:
    """The box of a key, and how it was obtained."""

    row: BoxRow
    how: How
    replaced: str | None = None
    """The box that it replaces."""
    why: str = ""
    """For people: why the box was created, restored or resumed."""


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """The files that the box of a key has to start from. A box that started from others is replaced."""

    id: str
    """Names this start, and only this one. It is a label of the box and of its snapshots."""
    snapshot: str
    required: bool = True
    """Whether there must be no box without them. Otherwise, if the snapshot is gone, the box starts as a new one."""


@dataclass(frozen=True, slots=True)
class Found:
    """What exists for a key."""

    row: BoxRow | None = None
    """The live row of the key."""
    abandoned: bool = False
    """The row is in a transitional state, and the process that was changing it is dead."""
    liveness: Liveness | None = None
    """What the provider reports about that box."""
    power: Power | None = None
    snapshot: Snapshot | None = None
    """The latest snapshot of the key that its provider can restore."""
    network_live: bool = True
    """The provider can change the network policy of a running box."""
    base: Snapshot | None = None
    """What a new box has to start from, unless `snapshot` is a later one."""
    stale: bool = False
    """The box started from other files than it has to."""


@dataclass(frozen=True, slots=True)
class Resume:
    row: BoxRow


@dataclass(frozen=True, slots=True)
class Start:
    """Start the box, then resume it."""

    row: BoxRow


@dataclass(frozen=True, slots=True)
class MarkGone:
    """The box no longer exists: record that, and decide again."""

    row: BoxRow
    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The process that created or deleted the box died: remove what is left, and decide again."""

    row: BoxRow
    why: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The box does not match the wanted spec: delete it, and decide again."""

    row: BoxRow
    changed: tuple[str, ...] = ()
    """The changed fields. Empty if the caller asked for a fresh box."""
    stale: bool = False
    """It started from other files than it has to."""

    @property
    def why(self) -> str:
        if self.stale:
            return "other files were asked for"
        return f"the spec changed: {', '.join(self.changed)}" if self.changed else "a fresh one was asked for"


@dataclass(frozen=True, slots=True)
class Restore:
    snapshot: Snapshot
    required: bool = False
    """Without these files there must be no box."""


@dataclass(frozen=True, slots=True)
class Create:
    pass


Decision = Resume | Start | MarkGone | Finish | Replace | Restore | Create


def decide(found: Found, wanted: BoxSpec, *, fresh: bool = False, replaces: bool = True) -> Decision:
    """Returns the next step. Raises if any step could create a second box or disturb another caller's work.

    With `fresh`, neither the existing box nor a snapshot is used. Without `replaces`, a box with another spec raises
    `BoxDiffers`.
    """
    row = found.row
    if row is None or wanted.lifetime is Lifetime.ONE_SHOT:
        # A one-shot box does not become the box of its key, and does not use that box.
        return Create() if fresh else _afresh(found, wanted)
    if row.lifetime is Lifetime.ONE_SHOT:
        raise BoxConflict(f"box {row.id} is one-shot and cannot be acquired again")
    if row.state in (BoxState.CREATING, BoxState.DELETING):
        if found.abandoned:
            return Finish(row, f"the process that was {row.state} it died")
        raise BoxConflict(f"box {row.id} is {row.state}", hint="another caller is changing it: try again in a moment")
    match found.liveness:
        case Liveness.GONE:
            return MarkGone(row, f"{row.provider} no longer has it")
        case Liveness.LIVE:
            pass
        case _:
            raise BoxUnreachable(
                f"box {row.id} of key {row.key} does not answer, and {row.provider} cannot tell whether it is alive",
                hint="try again, or delete the box to get a new one",
            )
    if fresh or found.stale:
        return Replace(row, stale=found.stale)
    if changed := all_changes(row.spec, wanted, network_live=found.network_live):
        if not replaces:
            raise BoxDiffers(f"box {row.id} has another spec: {', '.join(changed)}", hint="delete it first")
        return Replace(row, changed)
    if found.power is Power.RUNNING:
        return Resume(row)
    return Start(row)


def _afresh(found: Found, wanted: BoxSpec) -> Decision:
    # A snapshot of a box with another spec is restored only by name.
    if found.snapshot is not None and found.snapshot.labels.get(SPEC) == wanted.hash:
        return Restore(found.snapshot)
    return Create() if found.base is None else Restore(found.base, required=True)


def changes(had: BoxSpec, wanted: BoxSpec) -> tuple[str, ...]:
    """Returns the fields that require a new box. For env, only names are shown: values may be secret."""
    if had.hash == wanted.hash:
        return ()
    before, after = had.to_json(), wanted.to_json()
    changed = []
    for name in before:
        if name in NOT_OF_THE_MACHINE or before[name] == after[name]:
            continue
        if name == "env":
            names = sorted(_different(before["env"], after["env"]))
            changed.append(f"env ({', '.join(names)})")
        elif name in ("volumes", "mounts"):
            changed.append(name)
        else:
            changed.append(f"{name} {_shown(before[name])} → {_shown(after[name])}")
    return tuple(changed)


def all_changes(had: BoxSpec, wanted: BoxSpec, *, network_live: bool) -> tuple[str, ...]:
    """Returns everything that requires a new box, if the network policy of this one can or cannot be changed."""
    return changes(had, wanted) + (() if network_live else network_changes(had, wanted))


def network_changes(had: BoxSpec, wanted: BoxSpec) -> tuple[str, ...]:
    """Returns how the network policies differ. A change of policy alone does not require a new box."""
    if had.network == wanted.network:
        return ()
    if had.network.mode is wanted.network.mode:
        return ("network policy",)
    return (f"network {had.network.mode} → {wanted.network.mode}",)


def _different(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _shown(value: Any) -> str:
    return "default" if value is None else str(value)


def with_lifetime_of(spec: BoxSpec, wanted: BoxSpec) -> BoxSpec:
    """Returns the spec with the lifetime and network that the latest caller asked for."""
    return replace(
        spec, lifetime=wanted.lifetime, idle_seconds=wanted.idle_seconds, on_idle=wanted.on_idle, network=wanted.network
    )
