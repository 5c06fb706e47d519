"""One tenant of a server: its storage, its threads, boxes and runs, and the apps that answer its requests.

A tenant has a home of its own: its own database, root secret, providers and egress. Nothing of it can be reached
with a credential of another tenant, because no object of another tenant is there (docs/decisions/0080).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.api.access.tenants import DEFAULT_TENANT
from holdfast.api.errors.boxes import BoxNotFound
from holdfast.gateway.hosts import SessionHosts
from holdfast.harnesses import registry
from holdfast.server.clocks import Clocks
from holdfast.server.components import (
    FindAgent,
    open_accounts,
    open_boxes,
    open_egress,
    open_environments,
    open_gateway,
    open_interpreters,
    open_models,
    open_prices,
    open_puller,
    open_runs,
    open_secrets,
    open_session_gateway,
    open_session_hub,
    open_session_tools,
    open_sessions,
)
from holdfast.server.config import Settings
from holdfast.server.home import Home
from holdfast.server.lazy import Lazy, load_in_thread
from holdfast.server.shutdown import Shutdown
from holdfast.server.telemetry.box_metrics import BoxSamples
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.tenant.audit import AuditLog
from holdfast.server.tenant.quotas import Quotas
from holdfast.server.wire.box_hosts import BoxHosts, PreviewAddress
from holdfast.server.wire.dispatch import Dispatch
from holdfast.server.wire.guest_api import GuestApi, Internal, SessionTools
from holdfast.server.wire.origins import OriginPolicy, is_loopback
from holdfast.server.wire.ports import Ports
from holdfast.server.wire.preview import Previews, expiry
from holdfast.server.wire.preview_addresses import PreviewAddresses
from holdfast.server.wire.preview_links import PreviewLinks
from holdfast.server.wire.streams import StreamTenant
from holdfast.sessions.hub.questions import Questions
from holdfast.sessions.hub.runners import Runners
from holdfast.storage import open_storage
from holdfast.storage.maintenance import database_file
from holdfast.threads.access.authority import Authority
from holdfast.threads.access.credentials import Access, derive
from holdfast.threads.access.logins import Logins
from holdfast.threads.access.seals import Seals
from holdfast.threads.access.tenant_names import tenant_named
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.surface import StreamSurface
from holdfast.threads.protocol.tails import Tails
from holdfast.threads.service import Threads
from holdfast.threads.subscriptions import SubscriptionRoutes, SubscriptionService, Webhooks

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp

    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.compat.daytona.service import Daytona
    from holdfast.server.egress import Outside
    from holdfast.server.routes.services import Services
    from holdfast.server.tenant.tenants import Tenants
    from holdfast.server.wire.port_relay import PortRelay
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
    listen: Callable[[socket.socket, Dispatch, PreviewAddress], Awaitable[asyncio.AbstractServer]]
    """Serve an address of this machine that stands for a port of a box."""
    open_providers: OpenProviders
    make_outside: MakeOutside
    clocks: Clocks
    find_agent: FindAgent
    tenants: Tenants
    """All tenants. Only the routes of the default one reach it."""


class Tenant:
    """An open tenant. Its parts are opened in the background, when they are needed or have work."""

    def __init__(
        self,
        name: str,
        storage: Storage,
        access: Access,
        logins: Logins,
        streams: StreamTenant,
        front: Dispatch,
        app: Lazy[FastAPI],
        parts: tuple[Lazy[Any], ...],
        boxes: Lazy[Boxes],
        addresses: PreviewAddresses,
    ) -> None:
        self.name = name
        self.storage = storage
        self.access = access
        self.logins = logins
        self.streams = streams
        self.front = front
        self.app = app
        self._parts = parts
        self._boxes = boxes
        self._addresses = addresses

    async def services(self) -> Services:
        """What its routes use. Waits until they are loaded."""
        services: Services = (await self.app.get()).state.services
        return services

    async def daytona(self) -> Daytona:
        """Its Daytona API. Only for a server that has one."""
        daytona: Daytona = (await self.app.get()).state.daytona
        return daytona

    def begin(self) -> None:
        """Open all parts that work by themselves, and return at once."""
        self.app.begin()
        for part in self._parts:
            part.begin()

    async def begin_work(self) -> None:
        """Open the parts that work by themselves, if there is work for them: boxes, runs or sessions of before."""
        if await self.live_boxes() or await self.storage.thread_rows.unsettled_ids():
            self.begin()

    async def live_boxes(self) -> int:
        """Returns how many boxes there are, without opening the service."""
        rows = await load_in_thread(lambda: self.storage.boxes)
        return sum((await rows.count_live(DEFAULT_TENANT)).values())

    async def has_box(self, id: str) -> bool:
        rows = await load_in_thread(lambda: self.storage.boxes)
        return await rows.get(DEFAULT_TENANT, id) is not None

    async def keep_previews_swept(self) -> None:
        """Close the addresses of boxes that are gone, until cancelled."""

        async def is_there(box: str) -> bool:
            try:
                return not (await (await self._boxes.get()).get(box)).tombstone
            except BoxNotFound:
                return False

        await self._addresses.keep_swept(is_there)

    def stop_streams(self) -> None:
        """End what clients read live: they connect again, to the next server."""
        self._addresses.close()
        self.streams.tails.close()
        self.streams.surface.close()


@contextlib.asynccontextmanager
async def open_tenant(
    name: str, settings: Settings, home: Home, server: ServerParts, session_key: str | None = None
) -> AsyncIterator[Tenant]:
    """Open a tenant on its home, which the caller has locked. Raises `CannotOpen`.

    `session_key` is valid while this server runs: clients on this machine find it in the home.
    """
    is_default = name == DEFAULT_TENANT
    clocks, find_agent, shutdown = server.clocks, server.find_agent, server.shutdown
    open_providers = server.open_providers

    def make_outside() -> Outside:
        return server.make_outside(settings)

    async with contextlib.AsyncExitStack() as stack:
        storage = await open_storage(home.path)
        stack.push_async_callback(storage.close)
        metrics = server.metrics
        store, secret = storage.streams, await storage.secrets.root()
        access = Access(
            storage.api_keys,
            secret,
            tenant=name,
            required=settings.auth,
            session_key=session_key,
            clock=clocks.now,
            logins=storage.logins,
            members=storage.members,
        )
        logins = Logins(storage.logins, name, clocks.now)
        quotas = Quotas(lambda: server.tenants.quotas_of(name), database_file(home.path), time.monotonic)
        seals = Seals(derive(secret, "entries of the server"))
        audit = AuditLog(store, seals, clocks.now)
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
            allow_local_webhooks=is_default and is_loopback(settings.host),
        )
        await subscriptions.start()
        stack.push_async_callback(subscriptions.close)
        authority = Authority(seals, frozenset(registry.entry_prefixes()))
        surface = StreamSurface(store, authority, long_poll_timeout=settings.long_poll_timeout)
        tails = Tails(store, cycle_seconds=settings.tail_cycle)
        hosts = server.hosts
        session_hosts = server.session_hosts(name)
        origins = OriginPolicy(open_server=not settings.auth, hosts=hosts, sessions=session_hosts)
        streams = StreamTenant(surface, tails, access, SubscriptionRoutes(subscriptions), quotas, audit)
        threads = Threads(store, projection, clock=clocks.now)
        # These parts depend on each other in a circle: connections of boxes go through the egress to the guest API,
        # which asks the runs, which use the boxes, whose network is the egress. `Lazy` breaks it: a part gets other
        # parts unopened, and an opener is called only once the server answers. So one of them, that of the egress, may
        # name an object that is created below: the guest API.
        secrets = Lazy("secrets", lambda: open_secrets(storage, derive(secret, "named secrets")))
        egress = Lazy(
            "egress",
            lambda: open_egress(
                storage,
                home.path,
                make_outside,
                guest_api,
                secrets,
                derive(secret, "certificates of boxes"),
                settings.package_cache << 20,
            ),
        )
        providers = Lazy(
            "providers",
            lambda: open_accounts(storage, derive(secret, "provider credentials"), egress, open_providers, settings),
        )
        boxes = Lazy(
            "boxes", lambda: open_boxes(storage, providers, egress, node=home.node(), pool=settings.pool, quotas=quotas)
        )
        models = Lazy("models", lambda: open_models(storage, derive(secret, "model keys")))
        prices = Lazy("model prices", lambda: open_prices(storage))
        gateway = Lazy(
            "model gateway", lambda: open_gateway(storage, projection, seals, models, prices, egress, clocks, quotas)
        )
        environments = Lazy(
            "environments",
            lambda: open_environments(storage, boxes, egress, models, secrets, find_agent, home.path, clocks),
        )
        runners = Runners()
        questions = Questions(runners, clocks.now, settings.question_timeout)
        runs = Lazy(
            "runs",
            lambda: open_runs(
                storage,
                threads,
                projection,
                access,
                seals,
                boxes,
                egress,
                models,
                environments,
                prices,
                find_agent,
                home.path,
                clocks,
                settings.delegation,
                quotas,
                runners,
            ),
        )
        sessions = Lazy(
            "sessions",
            lambda: open_sessions(
                storage,
                threads,
                projection,
                seals,
                boxes,
                runs,
                runners,
                questions,
                clocks,
                settings.max_sessions,
            ),
        )
        session_hub = Lazy(
            "hub of sessions",
            lambda: open_session_hub(
                storage,
                threads,
                seals,
                runs,
                sessions,
                runners,
                questions,
                surface,
                server.next_request_id,
                internal_api,
                clocks,
                quotas,
            ),
        )
        session_tools = Lazy(
            "tools of sessions",
            lambda: open_session_tools(
                storage,
                threads,
                projection,
                seals,
                boxes,
                runs,
                sessions,
                clocks,
                secrets,
                settings,
                derive(secret, "workflows"),
                name,
            ),
        )
        interpreters = Lazy(
            "interpreters",
            lambda: open_interpreters(store, threads, seals, boxes, egress, models, gateway, home.path, os.environ),
        )
        puller = Lazy("image puller", lambda: open_puller(egress, home.path, settings.registry_mirrors))
        samples = BoxSamples()
        for close in (
            secrets.close,
            egress.close,
            providers.close,
            boxes.close,
            samples.close,
            models.close,
            prices.close,
            gateway.close,
        ):
            stack.push_async_callback(close)
        stack.push_async_callback(environments.close)
        stack.push_async_callback(runs.close)
        stack.push_async_callback(sessions.close)
        stack.push_async_callback(questions.close)
        stack.push_async_callback(session_hub.close)
        stack.push_async_callback(session_tools.close)
        stack.push_async_callback(interpreters.close)
        stack.push_async_callback(puller.close)
        session_gateway = Lazy(
            "gateway of sessions",
            lambda: open_session_gateway(
                storage,
                threads,
                seals,
                boxes,
                sessions,
                session_hosts,
                lambda: front.relay.relay,
                derive(secret, "session gateway"),
                clocks.now,
                access,
                session_tools,
            ),
        )
        stack.push_async_callback(session_gateway.close)

        async def internal_api() -> Internal:
            return (await session_gateway.get()).internal_api

        async def tools_of_sessions() -> SessionTools:
            return (await session_tools.get()).operations

        guest_api = GuestApi(
            surface,
            access,
            server.next_request_id,
            runs,
            gateway,
            max_body=settings.max_body,
            internal_api=internal_api,
            session_tools=tools_of_sessions,
            hub=session_hub.get,
            check_append=quotas.check_append,
        )
        previews = Previews(derive(secret, "box previews"), required=settings.auth)
        ports = Ports(access, origins, previews, hosts, quotas.take_request)

        async def serve_preview(listener: socket.socket, address: PreviewAddress) -> asyncio.AbstractServer:
            return await server.listen(listener, front, address)

        addresses = PreviewAddresses(
            derive(secret, "preview addresses"), serve_preview, lambda token: expiry(token) * 1000, previews.clock
        )
        links = PreviewLinks(hosts, addresses)

        def make_app() -> FastAPI:
            from holdfast.server.oidc import make_oidc
            from holdfast.server.routes.app import create_app
            from holdfast.server.routes.services import Services

            services = Services(
                threads,
                access,
                metrics,
                origins,
                server.next_request_id,
                settings.max_body,
                is_loopback(settings.host),
                previews,
                links,
                shutdown,
                egress,
                boxes,
                samples,
                models,
                secrets,
                gateway,
                environments,
                runs,
                find_agent,
                interpreters,
                puller,
                providers,
                session_gateway,
                lambda: storage.daytona_records,
                sessions,
                session_tools,
                storage.members,
                logins,
                make_oidc(settings, derive(secret, "states of logins"), clocks.now, os.environ) if is_default else None,
                settings.public_url,
                quotas,
                audit,
                storage.shares,
                Webhooks(subscriptions),
                server.tenants if is_default else None,
            )
            return create_app(services, mounts)

        mounts: dict[str, ASGIApp] = {}

        @contextlib.asynccontextmanager
        async def open_app() -> AsyncIterator[FastAPI]:
            async with contextlib.AsyncExitStack() as parts:
                if settings.daytona:
                    await load_in_thread(lambda: importlib.import_module("holdfast.server.daytona"))
                    from holdfast.compat.daytona.service import PREFIX
                    from holdfast.server.daytona import open_daytona

                    opening = open_daytona(
                        storage,
                        access,
                        boxes,
                        egress,
                        puller,
                        previews,
                        links,
                        origins,
                        shutdown,
                        derive(secret, "daytona file urls"),
                        quotas,
                        daytona_of_tenant if is_default else None,
                    )
                    mounts[PREFIX] = mounted = await parts.enter_async_context(opening)
                    opened = await load_in_thread(make_app)
                    opened.state.daytona = mounted.state.daytona
                    yield opened
                else:
                    yield await load_in_thread(make_app)

        async def daytona_of_tenant(credential: str | None) -> Daytona:
            return await (await server.tenants.find(tenant_named(credential))).daytona()

        def make_relay() -> PortRelay:
            from holdfast.server.wire.port_relay import PortRelay

            return PortRelay(ports, boxes, shutdown, metrics, server.next_request_id)

        app = Lazy("REST API", open_app)
        stack.push_async_callback(app.close)
        front = Dispatch(app, ports, make_relay, guest_api.by_url, session_hosts, session_gateway)
        await projection.start()
        tenant = Tenant(
            name,
            storage,
            access,
            logins,
            streams,
            front,
            app,
            (boxes, models, gateway, runs, sessions, session_tools),
            boxes,
            addresses,
        )
        sweep = asyncio.create_task(tenant.keep_previews_swept(), name="sweep of preview addresses")
        try:
            yield tenant
        finally:
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
