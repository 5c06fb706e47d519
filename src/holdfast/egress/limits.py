"""The limits of a box's egress, and the token buckets that enforce rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True, slots=True)
class Limits:
    """Times are in seconds, sizes in bytes. The policy of a box can override `connections` and `bandwidth`."""

    connections: int = 256
    """Of one box at once."""
    all_connections: int = 4096
    """Of all boxes at once, and at most a quarter of the process's file descriptors. A box with fewer than `spared`
    connections is exempt, so that other boxes cannot lock it out."""
    spared: int = 8
    bandwidth: int | None = None
    """Bytes per second of one box, both ways together."""
    requests: float = 1000.0
    """Of one box per second, allowed or not. Further requests are delayed."""
    head: float = 15.0
    """Time to send a complete head, and a ClientHello after a CONNECT."""
    head_size: int = 64 << 10
    between: float = 75.0
    """Time between two requests of a connection."""
    idle: float = 900.0
    """Time in which a request or tunnel transfers nothing."""
    lifetime: float = 24 * 3600.0
    """Total time of a request or tunnel."""
    resolve: float = 10.0
    connect: float = 20.0
    request_body: int = 16 << 30
    """Of one plain HTTP request."""
    slowest: float = 64.0
    """The minimum bytes per second of a plain HTTP request's body, over each `slow_window`."""
    slow_window: float = 30.0
    decisions: int = 10_000
    """The newest decisions kept for each box."""


class Bucket:
    """A token bucket. A caller may take more than is available, and then waits until the level is back at zero."""

    def __init__(self, rate: float, *, burst: float, clock: Callable[[], float] = monotonic) -> None:
        self.rate = rate
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._at = clock()

    def take(self, amount: float) -> float:
        """Returns the seconds to wait before continuing."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self.rate) - amount
        self._at = now
        return -self._level / self.rate if self._level < 0 else 0.0
