"""What one box may reach, how fast, and what it has transferred. All connections of the box share this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.egress.bound.box_secrets import BoxSecrets
from holdfast.egress.bound.rules import Bound
from holdfast.egress.outbound import Connector, GuestApi, Resolver
from holdfast.egress.packages.mirror import PackageMirror
from holdfast.egress.policy import CONNECT, Allowance, Ruling, Target
from holdfast.egress.private_networks import Private
from holdfast.egress.records import Decision, Records
from holdfast.egress.upstream_proxy import UpstreamProxy

_MAX_PIECE: Final = 1 << 20
_RESOLVES: Final = 8
"""Names that one box resolves at once, so that a dead name server does not delay other boxes."""


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


class BoxAccess:
    def __init__(
        self,
        box: str,
        *,
        limits: Limits,
        resolver: Resolver,
        connector: Connector,
        records: Records,
        guest_api: GuestApi | None,
        private: Private,
        upstream: UpstreamProxy | None,
        packages: PackageMirror | None = None,
    ) -> None:
        self.box = box
        self.limits = limits
        self.connector = connector
        self.records = records
        self.guest_api = guest_api
        self.private = private
        self.upstream = upstream
        self.packages = packages
        self.policy = NetworkPolicy()
        self.allowance = Allowance(Network.NONE)
        self.tenant = "default"
        self.environment: str | None = None
        self.secrets: BoxSecrets | None = None
        """The secrets that requests of the box may use. Nearly all boxes have none."""
        self.sent = self.received = 0
        self.piece = _MAX_PIECE
        """Bytes to read at a time."""
        self.connections = limits.connections
        """The most at once."""
        self._resolver = resolver
        self._resolving = asyncio.Semaphore(_RESOLVES)
        self._bandwidth: Bucket | None = None
        self._requests = Bucket(limits.requests, burst=limits.requests)

    def use(self, policy: NetworkPolicy, allowance: Allowance, environment: NetworkPolicy | None) -> None:
        self.policy, self.allowance = policy, allowance
        theirs = environment or NetworkPolicy()
        self.connections = policy.connections or theirs.connections or self.limits.connections
        rate = policy.bandwidth or theirs.bandwidth or self.limits.bandwidth
        if rate is None:
            self._bandwidth, self.piece = None, _MAX_PIECE
        elif self._bandwidth is None or self._bandwidth.rate != rate:
            self._bandwidth = Bucket(rate, burst=rate / 4)
            self.piece = max(512, min(_MAX_PIECE, rate // 64))

    def bound_at(self, target: Target) -> tuple[Bound, ...]:
        """Returns the secrets that the box may use at the target."""
        return () if self.secrets is None else self.secrets.bound_at(target.host, target.port)

    def judge(self, target: Target) -> Ruling:
        """Returns whether the box may reach the target. A secret that is bound to a host opens tunnels to that host."""
        ruling = self.allowance.judge(target)
        if ruling.allowed or self.allowance.mode is Network.NONE or target.method != CONNECT:
            return ruling
        bound = self.bound_at(target)
        return Ruling(True, f"secret {bound[0].use.name}") if bound else ruling

    def explain(self, target: Target, why: str) -> str:
        """Returns a message for the client in the box."""
        return (
            f"{target.method} {target} is blocked by the network policy of this box ({self.box}): {why}.\n"
            f"To allow a host, add a rule for it to the policy of the box (holdfast box network {self.box} --allow "
            "HOST, together with the rules to keep) or of its environment (holdfast egress set).\n"
        )

    def spend(self, many: int) -> float:
        """Returns the seconds to wait after this many bytes."""
        return self._bandwidth.take(many) if self._bandwidth is not None else 0.0

    async def pace(self) -> None:
        if (delay := self._requests.take(1)) > 0:
            await asyncio.sleep(delay)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        async with self._resolving:
            return await self._resolver.resolve(host, port)

    def record(self, host: str, port: int, method: str, allowed: bool, why: str, *, failed: bool = False) -> Decision:
        decision = Decision(self.box, host, port, method, allowed, why, self.tenant, failed=failed)
        self.records.add(decision)
        return decision
