"""How many boxes of which spec the pool keeps ready, and what a box is before it is handed over. Decisions only."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from holdfast.boxes.box import Box
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import NetworkPolicy
from holdfast.boxes.spec import BoxSpec, Lifetime

BEGIN: Final = 1.5
"""The score from which on boxes of a spec are made ahead: it was asked for a second time, not long after the first."""
END: Final = 0.25
"""The score below which none is kept: nobody has asked for several half-lives."""

Furnish = Callable[[Box], Awaitable[None]]
"""Starts something in a box that is made ahead, for whoever gets it. Where it fails, the box is handed out without."""


def available_memory() -> float:
    """The share of this machine's memory that is free to be used; 1 where nobody can tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return sizes["MemAvailable"] / sizes["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError):
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    boxes: int = 0
    """That are kept ready at most, over all specs. 0: no pool."""
    per_spec: int | None = None
    """Of one spec at most. None: all of them."""
    half_life: float = 60.0
    """Seconds after which past demand counts half."""
    quiet_seconds: float = 0.1
    """How long nobody may have made a box before one is made ahead."""
    least_memory: float = 0.1
    """Share of the machine's memory that has to be available for one more. With less than half of that, all go."""
    memory: Callable[[], float] = available_memory
    furnishings: Mapping[str, Furnish] = field(default_factory=dict)
    """By the label of the specs that want it. Other boxes of the same kind are kept apart."""


@dataclass(frozen=True, slots=True)
class Demand:
    """How much boxes of one spec were asked for lately."""

    score: float = 0.0
    at: int = 0

    def now(self, now: int, half_life: float) -> float:
        return self.score * math.pow(0.5, max(0, now - self.at) / 1000 / half_life)

    def taken(self, now: int, half_life: float) -> Demand:
        return Demand(self.now(now, half_life) + 1.0, now)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is known of one spec when boxes are allotted."""

    score: float
    kept: int = 0
    """So many in any case."""
    warm: bool = False
    """Boxes of it are made ahead already: less is needed to go on than to begin."""


def allot(wishes: Mapping[str, Wish], settings: PoolSettings) -> dict[str, int]:
    """How many boxes to have ready of each spec. The most wanted first, as far as the bounds go."""
    left = settings.boxes
    allotted = {}
    for key, wish in sorted(wishes.items(), key=lambda item: (-item[1].kept, -item[1].score, item[0])):
        by_demand = math.ceil(wish.score) if wish.score >= (END if wish.warm else BEGIN) else 0
        most = left if settings.per_spec is None else min(left, settings.per_spec)
        allotted[key] = min(most, max(wish.kept, by_demand))
        left -= allotted[key]
    return allotted


def can_be_pooled(spec: BoxSpec, capabilities: Collection[Capability]) -> bool:
    """What is mounted is found when a box is made: a folder that can be another one by now would be the wrong one."""
    moves = bool(spec.mounts) or any(volume.subpath for volume in spec.volumes)
    return Capability.POOL in capabilities and not moves


def furnishing_of(spec: BoxSpec, capabilities: Collection[Capability], furnishings: Collection[str]) -> str | None:
    """What is started ahead in boxes of this spec. Nothing where they are told of their network when they are handed
    over: who was started before would not know."""
    if network_ahead(spec, capabilities) != spec.network:
        return None
    return next((label for label in spec.labels if label in furnishings), None)


def made_ahead(spec: BoxSpec, capabilities: Collection[Capability]) -> BoxSpec:
    """The spec of a box before it is somebody's: without what it is told when it is handed over."""
    return replace(
        spec,
        labels={},
        lifetime=Lifetime.SHARED,
        idle_seconds=None,
        on_idle=None,
        network=network_ahead(spec, capabilities),
    )


def network_ahead(spec: BoxSpec, capabilities: Collection[Capability]) -> NetworkPolicy:
    """Closed, where it can be opened for whom the box is handed over to."""
    can_be_opened = Capability.NETWORK_LIVE in capabilities and Capability.NETWORK_NONE in capabilities
    return NetworkPolicy() if can_be_opened else spec.network


def shelf_key(spec: BoxSpec, capabilities: Collection[Capability]) -> str:
    """Equal for specs that are made ahead as the same box."""
    network = network_ahead(spec, capabilities)
    return f"{spec.hash} {network.mode} {network.allow} {network.bandwidth} {network.connections}"
