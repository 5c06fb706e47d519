"""Decides how many boxes of each spec the pool keeps ready, and how they are created. Decisions only."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.boxes.capabilities import Capability

BEGIN: Final = 1.5
"""The score from which boxes of a spec are created ahead: the spec was requested twice within a short time."""
END: Final = 0.25
"""The score below which no box is kept: there was no request for several half-lives."""

Furnish = Callable[[Box], Awaitable[None]]
"""Starts something in a box of the pool for its later owner. If it fails, the box is handed over without it."""


def available_memory() -> float:
    """Returns the share of this machine's memory that is available, or 1 if it is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return sizes["MemAvailable"] / sizes["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError):
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    boxes: int = 0
    """The most boxes kept ready, over all specs. 0 means no pool."""
    per_spec: int | None = None
    """The most boxes of one spec. None means no limit per spec."""
    half_life: float = 60.0
    """Seconds after which past demand counts half."""
    quiet_seconds: float = 0.1
    """How long to wait after the last create before a box is created ahead."""
    least_memory: float = 0.1
    """Share of the machine's memory that one more box requires. Below half of that, the pool is emptied."""
    memory: Callable[[], float] = available_memory
    furnishings: Mapping[str, Furnish] = field(default_factory=dict)
    """By the label of the specs that want it. Boxes with and without it are kept apart."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Recent demand for boxes of one spec."""

    score: float = 0.0
    at: int = 0

    def now(self, now: int, half_life: float) -> float:
        return self.score * math.pow(0.5, max(0, now - self.at) / 1000 / half_life)

    def taken(self, now: int, half_life: float) -> Demand:
        return Demand(self.now(now, half_life) + 1.0, now)


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What the allotment needs to know about one spec."""

    score: float
    kept: int = 0
    """The minimum to keep ready."""
    warm: bool = False
    """Boxes are ready already. Continuing takes less demand than starting."""


def allot(demands: Mapping[str, PoolDemand], settings: PoolSettings) -> dict[str, int]:
    """Returns how many boxes to keep ready of each spec, within the bounds.

    First what must be kept, then one for each spec in order of demand, and again, until all have what they want or no
    box is left. Otherwise the spec in highest demand would take all, and requests for the next one would find none.
    """
    order = sorted(demands, key=lambda key: (-demands[key].kept, -demands[key].score, key))
    most = settings.boxes if settings.per_spec is None else settings.per_spec
    left, allotted, wanted = settings.boxes, dict[str, int](), dict[str, int]()
    for key in order:
        demand = demands[key]
        by_demand = math.ceil(demand.score) if demand.score >= (END if demand.warm else BEGIN) else 0
        wanted[key] = min(most, max(demand.kept, by_demand))
        allotted[key] = min(left, most, demand.kept)
        left -= allotted[key]
    while left and (lacking := [key for key in order if allotted[key] < wanted[key]]):
        for key in lacking[:left]:
            allotted[key] += 1
        left -= min(left, len(lacking))
    return allotted


def can_be_pooled(spec: BoxSpec, capabilities: Collection[Capability]) -> bool:
    """Returns whether boxes of this spec can be pooled.

    Boxes with mounts or subpaths cannot: a mounted folder is resolved at creation and may be replaced later.
    """
    moves = bool(spec.mounts) or any(volume.subpath for volume in spec.volumes)
    return Capability.POOL in capabilities and not moves


def furnishing_of(spec: BoxSpec, capabilities: Collection[Capability], furnishings: Collection[str]) -> str | None:
    """Returns what to start ahead in boxes of this spec.

    Returns None if boxes get their network only when they are handed over: a process started before would not know it.
    """
    if network_ahead(spec, capabilities) != spec.network:
        return None
    return next((label for label in spec.labels if label in furnishings), None)


def made_ahead(spec: BoxSpec, capabilities: Collection[Capability]) -> BoxSpec:
    """Returns the spec of a pooled box, without what it is given when it is handed over."""
    return replace(
        spec,
        labels={},
        lifetime=Lifetime.SHARED,
        idle_seconds=None,
        on_idle=None,
        network=network_ahead(spec, capabilities),
    )


def network_ahead(spec: BoxSpec, capabilities: Collection[Capability]) -> NetworkPolicy:
    """Returns the network of a pooled box: closed if it can be opened when the box is handed over."""
    can_be_opened = Capability.NETWORK_LIVE in capabilities and Capability.NETWORK_NONE in capabilities
    return NetworkPolicy() if can_be_opened else spec.network


def pool_key(spec: BoxSpec, capabilities: Collection[Capability]) -> str:
    """Returns a key that is equal for specs whose pooled boxes are interchangeable."""
    network = network_ahead(spec, capabilities)
    return f"{spec.hash} {network.mode} {network.allow} {network.bandwidth} {network.connections}"
