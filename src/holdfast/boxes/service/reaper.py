"""Which boxes have to go, and why. Decisions only: `sweep` carries them out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.boxes.box import BoxInfo, Metrics, Power
from holdfast.boxes.labels import KEY, NODE
from holdfast.boxes.lifecycle import PASSING, SETTLED, BoxState, state_of
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idleness import Doing, follows, idle_time, is_due
from holdfast.boxes.spec import Lifetime, OnIdle

GRACE: Final = 60_000
"""Milliseconds: what is younger may be somebody's work that we have not heard of yet."""
STUCK: Final = 20_000
"""Milliseconds in a state that passes before anybody is suspected to have died at it."""


@dataclass(frozen=True, slots=True)
class Use:
    """What we know of the use of a box."""

    power: Power
    doing: Doing
    """What goes on in it, where it runs."""
    working: bool = False
    """Somebody in this process holds a stream, a channel or a port of it open."""
    worked: bool = False
    """Work in it has ended."""
    metrics: Metrics | None = None
    """None where nobody could tell, or the box is stopped."""
    last_work: int = 0
    """When there was work last, by what the box itself says."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What has to happen to a box that did nothing for long enough."""

    what: OnIdle
    why: str


def quiet(use: Use) -> bool:
    """Whether there is no work in the box and nobody holds on to it."""
    if use.working:
        return False
    return use.power is not Power.RUNNING or use.doing is Doing.NOTHING


def empty(use: Use) -> bool:
    """Whether nothing runs in the box at all, not even something that sleeps."""
    if use.power is Power.STOPPED:
        return not use.working
    return quiet(use) and use.metrics is not None and use.metrics.processes == 0


def to_reap(row: BoxRow, use: Use, now: int) -> Fate | None:
    """What has to happen to a box now, or None where it stays as it is."""
    if row.state not in SETTLED:
        return None
    if row.lifetime is Lifetime.ONE_SHOT and use.worked:
        return Fate(OnIdle.DELETE, "one-shot, and its work has ended") if empty(use) else None
    what = follows(row)
    if what is OnIdle.KEEP or not quiet(use) or not is_due(row, use.last_work, now):
        return None
    return Fate(what, f"idle for {idle_time(row)} s")


def to_prune(row: BoxRow, use: Use, now: int) -> Fate | None:
    """What happens to a box when somebody asks for room: an ephemeral one that does nothing now goes."""
    if row.lifetime is not Lifetime.EPHEMERAL or row.state not in SETTLED:
        return to_reap(row, use, now)
    if row.spec.when_idle is not OnIdle.DELETE or not empty(use):
        return to_reap(row, use, now)
    return Fate(OnIdle.DELETE, "stopped" if use.power is Power.STOPPED else "idle")


def is_abandoned(row: BoxRow, holders: Collection[str], myself: str, busy: Collection[str]) -> bool:
    """Whether nobody is at work any more on a box whose state passes."""
    if row.state not in PASSING:
        return False
    if row.holder == myself:
        return row.id not in busy
    return row.holder is None or row.holder not in holders


def is_stuck(row: BoxRow, holders: Collection[str], myself: str, busy: Collection[str], now: int) -> bool:
    """Abandoned, and for so long that it cannot be a holder whose lease we have not seen yet."""
    if not is_abandoned(row, holders, myself, busy):
        return False
    return row.holder == myself or now - row.changed_at >= STUCK


def drifted(row: BoxRow, power: Power) -> BoxState | None:
    """The state that the row should be in, where the box went its own way."""
    real = state_of(power, row.state)
    return real if row.state in SETTLED and row.state is not real else None


@dataclass(frozen=True, slots=True)
class Strangers:
    """Boxes that a provider has and the store does not know as live."""

    orphans: tuple[tuple[BoxInfo, str], ...]
    """To be removed, with why."""
    adopted: tuple[BoxInfo, ...]
    """To be written into the store: whose rows were lost."""


def judge_strangers(
    found: Iterable[BoxInfo], known: Mapping[str, BoxRow], keys: Collection[str], *, node: str, since: int, now: int
) -> Strangers:
    """What to do with boxes that are not live in the store.

    `known` has the tombstones among them, `keys` the keys that have a live box, and `since` is when this store first
    knew of boxes of this node: it cannot have known of older ones, so they were another store's, and are kept.
    """
    orphans: list[tuple[BoxInfo, str]] = []
    adopted: list[BoxInfo] = []
    taken = set(keys)
    for info in found:
        row = known.get(info.id)
        if info.labels.get(NODE) != node or now - info.created_at < GRACE or (row is not None and row.live):
            continue
        key = info.labels.get(KEY)
        shared = info.spec.lifetime is not Lifetime.ONE_SHOT
        if row is not None:
            # One that was said to be gone may be somebody's only copy, on a disk that came back: it is left alone.
            if row.state is BoxState.DELETED:
                orphans.append((info, "still there after it was deleted"))
        elif key is not None and key in taken and shared:
            orphans.append((info, f"key {key} has another box"))
        elif (key is not None and shared) or info.created_at < since:
            adopted.append(info)
            if key is not None:
                taken.add(key)
        else:
            orphans.append((info, "nobody knows of it"))
    return Strangers(tuple(orphans), tuple(adopted))
