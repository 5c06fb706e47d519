"""What boxes use: processes, memory, processor time and traffic, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.api.box.records import BoxState
from holdfast.api.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxMetrics(Document):
    """What a box uses now. None: the provider cannot tell."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxUsage(Document):
    """What a box used at one moment."""

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
    metrics: BoxMetrics | None
    """None if nothing runs, or the box did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxUsages(Document):
    """What all boxes use."""

    boxes: tuple[BoxUsage, ...]
    left_out: int
    """Boxes that there are beside these."""
