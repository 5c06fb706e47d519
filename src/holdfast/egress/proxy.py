"""The proxy on the host that carries all traffic of boxes. It implements `Egress` for providers.

It runs on the event loop of its owner. The listener that accepted a connection identifies the box, so boxes need no
tokens and cannot impersonate each other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from types import MappingProxyType, TracebackType
from typing import Final, Self

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.boxes.labels import owner_of
from holdfast.boxes.network_policy import GUEST_API_URL, Traffic
from holdfast.egress.bound.box_secrets import ServerSecrets
from holdfast.egress.box_access import BoxAccess, Limits
from holdfast.egress.box_egress import BoxEgress
from holdfast.egress.outbound import Connector, GuestApi, Resolver
from holdfast.egress.packages.mirror import PackageMirror
from holdfast.egress.policy import DefaultList, allowance
from holdfast.egress.private_networks import Private
from holdfast.egress.records import Decision, Records
from holdfast.egress.sockets import reset
from holdfast.egress.upstream_proxy import UpstreamProxy

Policies = Callable[[str], NetworkPolicy | None]
"""Returns the policy of an environment, or None."""

_STOP_SECONDS: Final = 5.0

_log = logging.getLogger("holdfast.egress")
_LOOK_SECONDS: Final = 0.5
_TICK_SECONDS: Final = 0.1
_TICKS: Final = 5
"""Consecutive checks in which the same call has to be waiting. On a busy machine, one check proves nothing."""


class EgressProxy:
    """`async with` runs the proxy and ends every connection on exit. Not thread-safe."""

    def __init__(
        self,
        resolver: Resolver,
        connector: Connector,
        records: Records,
        *,
        defaults: DefaultList | None = None,
        policies: Policies = lambda environment: None,
        limits: Limits | None = None,
        guest_api: GuestApi | None = None,
        private: Private | None = None,
        upstream: UpstreamProxy | None = None,
        secrets: ServerSecrets | None = None,
        packages: PackageMirror | None = None,
    ) -> None:
        """`guest_api` serves requests of boxes to Holdfast itself; without it, they are refused.

        `private` are the private addresses that boxes may reach, by default none. Other traffic goes through
        `upstream`, if given. `secrets` are put into requests of boxes whose policies name them. From `packages`, boxes
        get the packages of this machine's registries.
        """
        self.defaults_wanted = asyncio.Event()
        """Set when the default list is needed: at the latest when the first box with a network is admitted."""
        self._private = private or Private()
        self._upstream = upstream
        self._secrets = secrets
        self._packages = packages
        self._resolver = resolver
        self._connector = connector
        self._records = records
        self._defaults = defaults or DefaultList()
        self._policies = policies
        self._limits = limits or Limits()
        self._guest_api = guest_api
        if packages is not None:
            packages.use(self._defaults)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Each connection takes two descriptors and sometimes four more. The rest of the process needs some too.
        self._most = min(self._limits.all_connections, descriptors // 4)
        self._box_egresses: dict[str, BoxEgress] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._accepting = Acceptor()

    async def __aenter__(self) -> Self:
        self._sweeper = asyncio.create_task(self._sweep(), name="egress deadlines")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for box in tuple(self._box_egresses):
            self.dismiss(box)
        tasks = set(self._tasks)
        if self._sweeper is not None:
            self._sweeper.cancel()
            tasks.add(self._sweeper)
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        finally:
            self._accepting.close()

    # --- for providers: the Egress protocol ---

    def admit(self, box: str, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        if policy.mode is not Network.NONE:
            self.defaults_wanted.set()
        box_egress = self._box_egresses.get(box)
        if box_egress is None:
            access = BoxAccess(
                box,
                limits=self._limits,
                resolver=self._resolver,
                connector=self._connector,
                records=self._records,
                guest_api=self._guest_api,
                private=self._private,
                upstream=self._upstream,
                packages=self._packages,
            )
            box_egress = self._box_egresses[box] = BoxEgress(
                access, room=self._has_room, track=self._track, accept=self._accepting.accept
            )
        owner = owner_of(labels)
        box_egress.access.tenant, box_egress.access.environment = owner.tenant, owner.environment
        if self._secrets is not None:
            box_egress.access.secrets = self._secrets.of(box, owner.thread, policy, box_egress.access.secrets)
        self._apply(box_egress, policy)

    def listen(self, box: str, listener: socket.socket) -> None:
        if (box_egress := self._box_egresses.get(box)) is None:
            listener.close()
        else:
            box_egress.listen(listener)

    def take(self, box: str, connection: socket.socket) -> None:
        if (box_egress := self._box_egresses.get(box)) is None:
            reset(connection)
            self._records.add(decision := Decision(box, "", 0, "", False, "this box has no network", ms=0))
            self._records.complete(decision)
        else:
            box_egress.take(connection)

    def dismiss(self, box: str) -> None:
        if (box_egress := self._box_egresses.pop(box, None)) is not None:
            box_egress.close()

    def traffic(self, box: str) -> Traffic:
        if (box_egress := self._box_egresses.get(box)) is None:
            return Traffic()
        access = box_egress.access
        return Traffic(access.sent, access.received, len(box_egress.connections))

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        secrets = {} if self._secrets is None else self._secrets.environment(policy)
        if policy.mode is Network.NONE:
            return MappingProxyType(secrets)
        names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
        here = "localhost,127.0.0.1,::1"
        proxy = {**dict.fromkeys(names, GUEST_API_URL), "NO_PROXY": here, "no_proxy": here, "NODE_USE_ENV_PROXY": "1"}
        mirror = self._packages.environment() if self.mirrors(policy) and self._packages is not None else {}
        return MappingProxyType({**self._defaults.environment, **mirror, **proxy, **secrets})

    def mirrors(self, policy: NetworkPolicy) -> bool:
        """Returns whether a box of this policy gets packages through the cache.

        One that has a secret for a registry does not: the secret is put into requests inside TLS only.
        """
        if self._packages is None or not self._packages.origins or policy.mode is Network.NONE:
            return False
        if self._secrets is None or not policy.secrets:
            return True
        secrets = self._secrets.of("", None, policy)
        return secrets is None or not any(secrets.bound_at(each.host, each.port) for each in self._packages.origins)

    # --- for the server ---

    @property
    def defaults(self) -> DefaultList:
        return self._defaults

    def use(self, defaults: DefaultList) -> None:
        """Replace the default list, for all boxes."""
        self._defaults = defaults
        if self._packages is not None:
            self._packages.use(defaults)
        self.refresh()

    def refresh(self, environment: str | None = None) -> None:
        """Apply the changed policy of an environment (None: of any) to its boxes."""
        for box_egress in tuple(self._box_egresses.values()):
            if environment is None or box_egress.access.environment == environment:
                self._apply(box_egress, box_egress.access.policy)

    # --- connections ---

    def _apply(self, box_egress: BoxEgress, policy: NetworkPolicy) -> None:
        environment = box_egress.access.environment
        theirs = None if environment is None else self._policies(environment)
        box_egress.use(policy, allowance(policy, theirs, self._defaults.rules), theirs)

    def _has_room(self, own: int) -> bool:
        """Returns whether a box with `own` connections may have one more."""
        return own < self._limits.spared or len(self._tasks) < self._most

    def _track(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sweep(self) -> None:
        shortest = min(self._limits.head, self._limits.between, self._limits.idle, self._limits.lifetime)
        pause = max(0.01, min(1.0, shortest / 4))
        while True:
            await asyncio.sleep(pause)
            now = monotonic()
            for box_egress in tuple(self._box_egresses.values()):
                for connection in tuple(box_egress.connections):
                    if (why := connection.overdue(now)) is not None:
                        connection.end_overdue(why)


class Acceptor:
    """Accepts connections on listeners that are shared with boxes, without blocking forever.

    A listener's flags are shared by all processes that have it. A hostile box can make it blocking right before
    `accept` and take the pending connection away, and no call is safe from that. So a thread watches, and shuts down a
    listener that blocks. An event loop has one acceptor, which owns the thread from the first call to `close`.
    """

    def __init__(self) -> None:
        self._count = 0
        self._now: tuple[int, socket.socket] | None = None
        """The current call, with its number."""
        self._end = Event()
        self._watcher: Thread | None = None

    def accept(self, listener: socket.socket) -> socket.socket:
        """Raises `BlockingIOError` if no connection is pending, and `OSError` if the listener is dead."""
        if self._watcher is None:
            self._watcher = Thread(target=self._watch, name="holdfast-accepting", daemon=True)
            self._watcher.start()
        os.set_blocking(listener.fileno(), False)  # makes blocking unlikely; the watching thread handles the rest
        self._count += 1
        self._now = (self._count, listener)
        try:
            client, _ = listener.accept()
        finally:
            self._now = None
        return client

    def _watch(self) -> None:
        seen, ticks = 0, 0
        while not self._end.wait(_TICK_SECONDS if seen else _LOOK_SECONDS):
            now = self._now
            if now is None:
                seen = 0
                continue
            number, listener = now
            ticks = ticks + 1 if number == seen else 0
            seen = number
            if ticks >= _TICKS:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # this wakes the blocked call

    def close(self) -> None:
        """Must not be called during `accept`. Closing twice has no effect."""
        self._end.set()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.join()
