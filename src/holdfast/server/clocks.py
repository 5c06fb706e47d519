"""The two clocks of a server, passed in: the time of day, and a monotonic clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.api.ids import elapsed_ms, now_ms


@dataclass(frozen=True, slots=True)
class Clocks:
    """Both in milliseconds."""

    now: Callable[[], int] = now_ms
    """UTC. May jump when the clock is set."""
    ticks: Callable[[], int] = elapsed_ms
    """Monotonic."""
