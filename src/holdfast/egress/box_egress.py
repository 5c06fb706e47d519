"""The egress of one box: its policy, its limits and its open connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.egress.connection import NO_NETWORK, ProxyConnection
from holdfast.egress.limits import Bucket, Limits
from holdfast.egress.outbound import Connector, GuestApi, Resolver
from holdfast.egress.policy import Allowance, Target
from holdfast.egress.private_networks import Private
from holdfast.egress.records import Decision, Records
from holdfast.egress.sockets import reset
from holdfast.egress.upstream_proxy import UpstreamProxy

_ACCEPTS: Final = 32
"""Connections accepted at a time, before other boxes get their turn."""
_PAUSE_SECONDS: Final = 0.05
"""Delay for a box that opens more connections than it may have."""
_MOST_AT_ONCE: Final = 1 << 20
_RESOLVES: Final = 8
"""Names that one box resolves at once, so that a dead name server does not delay other boxes."""

_log = logging.getLogger("holdfast.egress")


def _stay_on_this_machine(client: socket.socket) -> None:
    """Disables pacing between box and proxy, which are on one machine.

    If the machine's default congestion control paces (BBR), the timers alone cost as much as the bytes.
    """
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # keep the machine's default
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


class BoxEgress:
    """Owned by the proxy, which sets the policy and awaits the tasks that this starts."""

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
        room: Callable[[int], bool],
        start: Callable[[BoxEgress, ProxyConnection], None],
        accept: Callable[[socket.socket], socket.socket],
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
        self.connections: set[ProxyConnection] = set()
        self.sent = self.received = 0
        self.piece = _MOST_AT_ONCE
        self._resolver = resolver
        self._resolving = asyncio.Semaphore(_RESOLVES)
        self._room = room
        self._start = start
        self._accept_from = accept
        self._most = limits.connections
        self._bandwidth: Bucket | None = None
        self._requests = Bucket(limits.requests, burst=limits.requests)
        self._listener: socket.socket | None = None
        self._paused: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    # --- policy ---

    def use(self, policy: NetworkPolicy, allowance: Allowance, environment: NetworkPolicy | None = None) -> None:
        """Apply a policy. Ends connections that it does not allow."""
        self.policy, self.allowance = policy, allowance
        theirs = environment or NetworkPolicy()
        self._most = policy.connections or theirs.connections or self.limits.connections
        rate = policy.bandwidth or theirs.bandwidth or self.limits.bandwidth
        if rate is None:
            self._bandwidth, self.piece = None, _MOST_AT_ONCE
        elif self._bandwidth is None or self._bandwidth.rate != rate:
            self._bandwidth = Bucket(rate, burst=rate / 4)
            self.piece = max(512, min(_MOST_AT_ONCE, rate // 64))
        for connection in tuple(self.connections):
            if connection.target is None:
                if allowance.mode is Network.NONE and connection.is_outside:
                    connection.end(f"the policy has changed: {NO_NETWORK}")
            elif not (ruling := allowance.judge(connection.target)).allowed:
                connection.end(f"the policy has changed: {ruling.why}")

    def explain(self, target: Target, why: str) -> str:
        """Returns a message for the client in the box."""
        return (
            f"{target.method} {target} is blocked by the network policy of this box ({self.box}): {why}.\n"
            f"To allow a host, add a rule for it to the policy of the box (holdfast box network {self.box} --allow "
            "HOST, together with the rules to keep) or of its environment (holdfast egress set).\n"
        )

    # --- limits ---

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

    # --- connections ---

    def listen(self, listener: socket.socket) -> None:
        self._stop_listening()
        listener.setblocking(False)
        self._listener = listener
        self._loop.add_reader(listener, self._accept)

    def take(self, client: socket.socket) -> bool:
        """Serve a connection, or refuse and close it. Returns whether it is served."""
        if self.allowance.mode is Network.NONE and self.guest_api is None:
            why = NO_NETWORK
        elif len(self.connections) >= self._most:
            why = f"this box has more than {self._most} connections at once"
        elif not self._room(len(self.connections)):
            why = "all boxes together have too many connections at once"
        else:
            if client.family != socket.AF_UNIX:
                _stay_on_this_machine(client)
            connection = ProxyConnection(self, client)
            self.connections.add(connection)
            self._start(self, connection)
            return True
        reset(client)
        decision = self.record("", 0, "", False, why)
        decision.ms = 0
        self.records.complete(decision)
        return False

    def close(self) -> None:
        self._stop_listening()
        for connection in tuple(self.connections):
            connection.end(None)

    def _accept(self) -> None:
        assert self._listener is not None
        refused = 0
        for _ in range(_ACCEPTS):
            try:
                client = self._accept_from(self._listener)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                _log.warning("box %s: cannot accept: %s", self.box, error)
                if error.errno == errno.EINVAL:  # it no longer listens
                    self._stop_listening()
                else:
                    self._pause(_PAUSE_SECONDS * 10)
                return
            refused += not self.take(client)
        if refused:
            self._pause(_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        assert self._listener is not None
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = None
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept)

    def _stop_listening(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()
