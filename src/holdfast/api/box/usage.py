"""The resource usage of boxes: processes, memory, processor time and traffic."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.api.box.records import BoxState
from holdfast.api.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxMetrics(Document):
    """What a box uses now. A field is None if the provider cannot measure it."""

    processes: int
    connections: int
    idle_seconds: float
    memory: int | None
    cpu_seconds: float | None
    disk: int | None
    out_of_memory: int | None
    listening: int | None
    """Ports that processes in the box listen on."""
    sent: int | None
    """Bytes sent to the network since the server started."""
    received: int | None
    outgoing: int | None
    """Open connections to the network."""


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
    """How many more boxes there are."""
