"""How much of everything a box may use, and the buckets that measure it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, sizes in bytes. A box's policy can set `connections` and `bandwidth` for itself."""

    connections: int = 256
    """Of one box at once."""
    all_connections: int = 4096
    """Of all boxes at once, or a quarter of the descriptors that the process may have. A box that has fewer than
    `spared` gets one even then: others cannot crowd it out."""
    spared: int = 8
    bandwidth: int | None = None
    """Bytes per second of one box, both ways together."""
    requests: float = 1000.0
    """Of one box per second, allowed or not; more are made to wait."""
    head: float = 15.0
    """To send a whole head, and to send a ClientHello after a CONNECT."""
    head_size: int = 64 << 10
    between: float = 75.0
    """A connection without a request."""
    idle: float = 900.0
    """A request or tunnel through which nothing goes."""
    lifetime: float = 24 * 3600.0
    """A request or tunnel in all."""
    resolve: float = 10.0
    connect: float = 20.0
    request_body: int = 16 << 30
    """Of one plain HTTP request."""
    slowest: float = 64.0
    """Bytes per second of a plain HTTP request's body, over each `slow_window`."""
    slow_window: float = 30.0
    decisions: int = 10_000
    """Kept per box, the newest."""


class Bucket:
    """A rate. What is taken beyond it is a debt, and the taker waits until it is paid."""

    def __init__(self, rate: float, *, burst: float, clock: Callable[[], float] = monotonic) -> None:
        self.rate = rate
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._at = clock()

    def take(self, amount: float) -> float:
        """Seconds to wait before going on."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self.rate) - amount
        self._at = now
        return -self._level / self.rate if self._level < 0 else 0.0
