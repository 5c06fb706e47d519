"""What to do when somebody asks for the box of a key: resume, start, replace, restore or create. Decisions only.

`acquire` finds out what there is, asks `decide`, and does as told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from holdfast.boxes.box import Liveness, Power
from holdfast.boxes.errors import BoxConflict, BoxDiffers, BoxUnreachable
from holdfast.boxes.labels import SPEC
from holdfast.boxes.lifecycle import BoxState
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.snapshots import Snapshot
from holdfast.boxes.spec import NOT_OF_THE_MACHINE, BoxSpec, Lifetime


class How(StrEnum):
    RESUMED = "resumed"
    RESTORED = "restored"
    CREATED = "created"


@dataclass(frozen=True, slots=True)
class Acquired:
    """The box of a key, and how it came to be."""

    row: BoxRow
    how: How
    replaced: str | None = None
    """The box that it stands in for."""
    why: str = ""
    """For people: why it was not just resumed, or that it was."""


@dataclass(frozen=True, slots=True)
class Found:
    """What there is for a key."""

    row: BoxRow | None = None
    """The live row of the key."""
    abandoned: bool = False
    """The row is in a state that passes, and whoever was at work on it is dead."""
    liveness: Liveness | None = None
    """What the provider says of that box."""
    power: Power | None = None
    snapshot: Snapshot | None = None
    """The latest of the key that its provider could restore."""
    network_live: bool = True
    """Its provider can change what the box may reach."""


@dataclass(frozen=True, slots=True)
class Resume:
    row: BoxRow


@dataclass(frozen=True, slots=True)
class Start:
    """Start it, then resume it."""

    row: BoxRow


@dataclass(frozen=True, slots=True)
class Bury:
    """The box is no more: write that down, and look again."""

    row: BoxRow
    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Somebody died while making or deleting it: remove what is left, and look again."""

    row: BoxRow
    why: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The box is another machine than the one that is wanted: delete it, and look again."""

    row: BoxRow
    changed: tuple[str, ...] = ()
    """Nothing, where one was asked for that has nothing of it."""

    @property
    def why(self) -> str:
        return f"the spec changed: {', '.join(self.changed)}" if self.changed else "a fresh one was asked for"


@dataclass(frozen=True, slots=True)
class Restore:
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Create:
    pass


Decision = Resume | Start | Bury | Finish | Replace | Restore | Create


def decide(found: Found, wanted: BoxSpec, *, fresh: bool = False, replaces: bool = True) -> Decision:
    """The next thing to do. Raises where doing anything could make a second box, or harm somebody else's work.

    `fresh`: neither the box that there is nor a snapshot of it will do. Not `replaces`: a box of another spec stays.
    """
    row = found.row
    if row is None or wanted.lifetime is Lifetime.ONE_SHOT:
        # A one-shot box is nobody's: it neither takes the key's box nor stands in its way.
        return _afresh(None if fresh else found.snapshot, wanted)
    if row.lifetime is Lifetime.ONE_SHOT:
        raise BoxConflict(f"box {row.id} is a one-shot: it is never given out a second time")
    if row.state in (BoxState.CREATING, BoxState.DELETING):
        if found.abandoned:
            return Finish(row, f"whoever was {row.state} it died")
        raise BoxConflict(f"box {row.id} is {row.state}", hint="somebody else is at it: try again in a moment")
    match found.liveness:
        case Liveness.GONE:
            return Bury(row, f"{row.provider} has it no more")
        case Liveness.LIVE:
            pass
        case _:
            raise BoxUnreachable(
                f"box {row.id} of key {row.key} does not answer, and {row.provider} cannot say whether it is alive",
                hint="try again; delete the box if you want another one in its place",
            )
    if fresh:
        return Replace(row)
    changed = changes(row.spec, wanted)
    if not found.network_live:
        changed += network_changes(row.spec, wanted)
    if changed:
        if not replaces:
            raise BoxDiffers(f"the spec of box {row.id} is another: {', '.join(changed)}", hint="delete it first")
        return Replace(row, changed)
    if found.power is Power.RUNNING:
        return Resume(row)
    return Start(row)


def _afresh(snapshot: Snapshot | None, wanted: BoxSpec) -> Decision:
    # A snapshot of another spec holds the files of another machine: it is there to be restored by name.
    if snapshot is not None and snapshot.labels.get(SPEC) == wanted.hash:
        return Restore(snapshot)
    return Create()


def changes(had: BoxSpec, wanted: BoxSpec) -> tuple[str, ...]:
    """What makes one spec another machine than the other, field by field. Of env, only names: values may be secret."""
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


def network_changes(had: BoxSpec, wanted: BoxSpec) -> tuple[str, ...]:
    """How one spec may reach something else than the other. That makes no other machine."""
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
    """The spec of a box that goes on living as its latest acquirer asks."""
    return replace(
        spec, lifetime=wanted.lifetime, idle_seconds=wanted.idle_seconds, on_idle=wanted.on_idle, network=wanted.network
    )
