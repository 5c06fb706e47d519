"""What one box may reach, how fast, and what it has transferred. All connections of the box share this."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.egress.limits import Bucket, Limits
from holdfast.egress.outbound import Connector, GuestApi, Resolver
from holdfast.egress.policy import Allowance, Target
from holdfast.egress.private_networks import Private
from holdfast.egress.records import Decision, Records
from holdfast.egress.upstream_proxy import UpstreamProxy

_MAX_PIECE: Final = 1 << 20
_RESOLVES: Final = 8
"""Names that one box resolves at once, so that a dead name server does not delay other boxes."""


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
    ) -> None:
        self.box = box
        self.limits = limits
        self.connector = connector
        self.records = records
        self.guest_api = guest_api
        self.private = private
        self.upstream = upstream
        self.policy = NetworkPolicy()
        self.allowance = Allowance(Network.NONE)
        self.tenant = "default"
        self.environment: str | None = None
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
