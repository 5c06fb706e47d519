"""What a tenant has as soon as it is open: its storage, its threads, and who may do what on them.

The parts that are opened in the background (`parts.py`) build on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.api.access.tenants import DEFAULT_TENANT
from holdfast.gateway.hosts import SessionHosts
from holdfast.harnesses import registry
from holdfast.server.clocks import Clocks
from holdfast.server.components import FindAgent
from holdfast.server.config import Settings
from holdfast.server.home import Home
from holdfast.server.shutdown import Shutdown
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.tenant.audit import AuditLog
from holdfast.server.tenant.quotas import Quotas
from holdfast.server.wire.box_hosts import BoxHosts, PreviewAddress
from holdfast.server.wire.dispatch import PortDispatch
from holdfast.server.wire.origins import OriginPolicy, is_loopback
from holdfast.storage import open_storage
from holdfast.storage.maintenance import database_file
from holdfast.threads.access.authority import Authority
from holdfast.threads.access.credentials import Access, derive
from holdfast.threads.access.logins import Logins
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.surface import StreamSurface
from holdfast.threads.protocol.tails import Tails
from holdfast.threads.service import Threads
from holdfast.threads.subscriptions import SubscriptionService

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.server.egress import Outside
    from holdfast.server.tenant.tenants import Tenants
    from holdfast.storage import Storage

OpenProviders = Callable[[Settings, "Egress"], "Awaitable[Mapping[str, Provider]]"]
"""Opens the providers of boxes, in the background. The server closes them."""

MakeOutside = Callable[[Settings], "Outside"]
"""Makes the network outside the boxes, in the background."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What all tenants of a server share."""

    url: str
    hosts: BoxHosts
    session_hosts: Callable[[str], SessionHosts]
    """The host names of the sessions of a tenant."""
    shutdown: Shutdown
    metrics: Metrics
    next_request_id: Callable[[], str]
    listen: Callable[[socket.socket, PortDispatch, PreviewAddress], Awaitable[asyncio.AbstractServer]]
    """Serve an address of this machine that stands for a port of a box."""
    open_providers: OpenProviders
    make_outside: MakeOutside
    clocks: Clocks
    find_agent: FindAgent
    tenants: Tenants
    """All tenants. Only the routes of the default one reach it."""


@dataclass(frozen=True, slots=True)
class TenantCore:
    """The parts of a tenant that no request waits for."""

    name: str
    settings: Settings
    home: Home
    server: ServerParts
    storage: Storage
    secret: bytes
    """The root secret. Nothing uses it directly: see `key`."""
    access: Access
    logins: Logins
    quotas: Quotas
    seals: Seals
    audit: AuditLog
    projection: Projection
    subscriptions: SubscriptionService
    surface: StreamSurface
    tails: Tails
    threads: Threads
    session_hosts: SessionHosts
    origins: OriginPolicy

    @property
    def is_default(self) -> bool:
        return self.name == DEFAULT_TENANT

    @property
    def clocks(self) -> Clocks:
        return self.server.clocks

    def key(self, purpose: str) -> bytes:
        """Returns the key for one purpose. No two purposes share a key."""
        return derive(self.secret, purpose)


@contextlib.asynccontextmanager
async def open_core(
    name: str, settings: Settings, home: Home, server: ServerParts, session_key: str | None
) -> AsyncIterator[TenantCore]:
    """Open the storage in a home, and what builds on the storage alone. Raises `CannotOpen`."""
    clock = server.clocks.now
    async with contextlib.AsyncExitStack() as stack:
        storage = await open_storage(home.path)
        stack.push_async_callback(storage.close)
        store, secret = storage.streams, await storage.secrets.root()
        access = Access(
            storage.api_keys,
            secret,
            tenant=name,
            required=settings.auth,
            session_key=session_key,
            clock=clock,
            logins=storage.logins,
            members=storage.members,
        )
        seals = Seals(derive(secret, "entries of the server"))
        audit = AuditLog(store, seals, clock)
        audit.start()
        stack.push_async_callback(audit.close)
        projection = Projection(store, storage.thread_rows, seals)
        stack.push_async_callback(projection.close)
        subscriptions = SubscriptionService(
            store,
            subscriptions=storage.subscriptions,
            seals=seals,
            public_url=server.url,
            tenant=name,
            callback_secret=derive(secret, "subscription callbacks"),
            signing_key=Ed25519PrivateKey.from_private_bytes(derive(secret, "webhook signatures")),
            allow_local_webhooks=name == DEFAULT_TENANT and is_loopback(settings.host),
        )
        await subscriptions.start()
        stack.push_async_callback(subscriptions.close)
        authority = Authority(seals, frozenset(registry.entry_prefixes()))
        session_hosts = server.session_hosts(name)
        yield TenantCore(
            name=name,
            settings=settings,
            home=home,
            server=server,
            storage=storage,
            secret=secret,
            access=access,
            logins=Logins(storage.logins, name, clock),
            quotas=Quotas(lambda: server.tenants.quotas_of(name), database_file(home.path), time.monotonic),
            seals=seals,
            audit=audit,
            projection=projection,
            subscriptions=subscriptions,
            surface=StreamSurface(store, authority, long_poll_timeout=settings.long_poll_timeout),
            tails=Tails(store, cycle_seconds=settings.tail_cycle),
            threads=Threads(store, projection, clock=clock),
            session_hosts=session_hosts,
            origins=OriginPolicy(open_server=not settings.auth, hosts=server.hosts, sessions=session_hosts),
        )
