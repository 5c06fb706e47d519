"""Decides which boxes to remove, and why. Decisions only: `sweep` carries them out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.api.box.box import BoxInfo, Metrics, Power
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import Lifetime, OnIdle
from holdfast.boxes.labels import KEY, MOVED_FROM, MOVED_KEY, NODE
from holdfast.boxes.lifecycle import PASSING, SETTLED, state_of
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.idleness import Doing, follows, idle_time, is_due

GRACE: Final = 60_000
"""Milliseconds. A younger box may belong to a process that has not written its row yet."""
STUCK: Final = 20_000
"""Milliseconds in a transitional state after which the process that is changing the box may be dead."""


@dataclass(frozen=True, slots=True)
class Use:
    """What is known about the use of a box."""

    power: Power
    doing: Doing
    """Whether it does work, if it runs."""
    working: bool = False
    """A caller in this process has a stream, channel or port of the box open."""
    worked: bool = False
    """Work in the box has ended."""
    metrics: Metrics | None = None
    """None if they could not be read, or the box is stopped."""
    last_work: int = 0
    """When the box last did work, as the box reports it."""


@dataclass(frozen=True, slots=True)
class IdleAction:
    """What has to happen to an idle box."""

    what: OnIdle
    why: str


def quiet(use: Use) -> bool:
    """Returns whether the box does no work and no caller uses it."""
    if use.working:
        return False
    return use.power is not Power.RUNNING or use.doing is Doing.NOTHING


def empty(use: Use) -> bool:
    """Returns whether no process runs in the box, not even a sleeping one."""
    if use.power is Power.STOPPED:
        return not use.working
    return quiet(use) and use.metrics is not None and use.metrics.processes == 0


def to_reap(row: BoxRow, use: Use, now: int) -> IdleAction | None:
    """Returns what has to happen to a box now, or None if nothing does."""
    if row.state not in SETTLED:
        return None
    if row.lifetime is Lifetime.ONE_SHOT and use.worked:
        return IdleAction(OnIdle.DELETE, "one-shot, and its work has ended") if empty(use) else None
    what = follows(row)
    if what is OnIdle.KEEP or not quiet(use) or not is_due(row, use.last_work, now):
        return None
    return IdleAction(what, f"idle for {idle_time(row)} s")


def to_prune(row: BoxRow, use: Use, now: int) -> IdleAction | None:
    """Returns what happens to a box on `prune`, which also deletes ephemeral boxes that are idle now."""
    if row.lifetime is not Lifetime.EPHEMERAL or row.state not in SETTLED:
        return to_reap(row, use, now)
    if row.spec.when_idle is not OnIdle.DELETE or not empty(use):
        return to_reap(row, use, now)
    return IdleAction(OnIdle.DELETE, "stopped" if use.power is Power.STOPPED else "idle")


def is_abandoned(row: BoxRow, holders: Collection[str], myself: str, busy: Collection[str]) -> bool:
    """Returns whether the box is in a transitional state and no live process is changing it."""
    if row.state not in PASSING:
        return False
    if row.holder == myself:
        return row.id not in busy
    return row.holder is None or row.holder not in holders


def is_stuck(row: BoxRow, holders: Collection[str], myself: str, busy: Collection[str], now: int) -> bool:
    """Returns whether the box is abandoned for so long that its holder cannot be a process that has just started."""
    if not is_abandoned(row, holders, myself, busy):
        return False
    return row.holder == myself or now - row.changed_at >= STUCK


def drifted(row: BoxRow, power: Power) -> BoxState | None:
    """Returns the state that the row should have, if the box changed without a request."""
    real = state_of(power, row.state)
    return real if row.state in SETTLED and row.state is not real else None


@dataclass(frozen=True, slots=True)
class UnknownBoxes:
    """Boxes that a provider has but that are not live in the store."""

    orphans: tuple[tuple[BoxInfo, str], ...]
    """Boxes to remove, with the reason."""
    adopted: tuple[tuple[BoxInfo, str | None], ...]
    """Boxes to write into the store, because their rows were lost, with their keys."""


def key_of(info: BoxInfo, present: Collection[str] | None) -> str | None:
    """Returns the key of a box that only its provider knows. `present` has all boxes there are, or None if unknown.

    A moved box has the key of the box that it came from only if that one is gone. Otherwise its files may be
    incomplete.
    """
    origin = info.labels.get(MOVED_FROM)
    if origin is not None and present is not None and origin not in present:
        return info.labels.get(KEY) or info.labels.get(MOVED_KEY)
    return info.labels.get(KEY)


def judge_unknown(
    found: Iterable[BoxInfo],
    known: Mapping[str, BoxRow],
    keys: Collection[str],
    *,
    node: str,
    since: int,
    now: int,
    present: Collection[str] | None = None,
) -> UnknownBoxes:
    """Decides what to do with boxes that are not live in the store.

    `known` has their tombstones, and `keys` the keys that have a live box. `since` is when this store first knew of
    this node. Older boxes belonged to another store and are kept. `present` has all boxes of all providers, or None
    if one of them did not answer.
    """
    orphans: list[tuple[BoxInfo, str]] = []
    adopted: list[tuple[BoxInfo, str | None]] = []
    taken = set(keys)
    for info in found:
        row = known.get(info.id)
        if info.labels.get(NODE) != node or now - info.created_at < GRACE or (row is not None and row.live):
            continue
        key = key_of(info, present)
        shared = info.spec.lifetime is not Lifetime.ONE_SHOT
        if row is not None:
            # A box that was recorded as gone may be the only copy, on a disk that came back. It is left alone.
            if row.state is BoxState.DELETED:
                orphans.append((info, "still there after it was deleted"))
        elif key is not None and key in taken and shared:
            orphans.append((info, f"key {key} has another box"))
        elif (key is not None and shared) or info.created_at < since:
            adopted.append((info, key))
            if key is not None:
                taken.add(key)
        else:
            orphans.append((info, "no store knows it"))
    return UnknownBoxes(tuple(orphans), tuple(adopted))
