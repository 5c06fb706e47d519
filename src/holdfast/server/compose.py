"""Opens the home, composes the parts of a server, serves until a signal comes, and closes everything again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import holdfast
from holdfast.api.errors.boxes import BoxNotFound
from holdfast.api.ids import now_ms
from holdfast.client.local_server import RunningServer
from holdfast.gateway.hosts import SessionHosts
from holdfast.harnesses import registry
from holdfast.server import logs
from holdfast.server.box_metrics import BoxSamples
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
    open_session_tools,
    open_sessions,
)
from holdfast.server.config import Settings
from holdfast.server.home import Home
from holdfast.server.lazy import Lazy, load_in_thread
from holdfast.server.metrics import Metrics
from holdfast.server.shutdown import Shutdown
from holdfast.server.wire.box_hosts import BoxHosts, PreviewAddress
from holdfast.server.wire.dispatch import Dispatch
from holdfast.server.wire.guest_api import GuestApi, Internal, SessionTools
from holdfast.server.wire.http_protocol import StreamProtocol, sweep_connections
from holdfast.server.wire.origins import OriginPolicy, is_loopback
from holdfast.server.wire.ports import Ports
from holdfast.server.wire.preview import Previews, expiry
from holdfast.server.wire.preview_addresses import PreviewAddresses
from holdfast.server.wire.preview_links import PreviewLinks
from holdfast.server.wire.streams import StreamService
from holdfast.server.wire.uvicorn_adapter import Server, make_config
from holdfast.storage import CannotOpen, open_storage
from holdfast.threads.access.authority import Authority
from holdfast.threads.access.credentials import Access, derive, new_key
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.surface import StreamSurface
from holdfast.threads.protocol.tails import Tails
from holdfast.threads.service import Threads
from holdfast.threads.subscriptions import SubscriptionRoutes, SubscriptionService

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp

    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.server.egress import Outside
    from holdfast.server.wire.port_relay import PortRelay

log = logging.getLogger(__name__)

Started = Callable[[RunningServer, str | None], None]
"""Called once the server answers, with the first API key if one was just created."""

OpenProviders = Callable[[Settings, "Egress"], "Awaitable[Mapping[str, Provider]]"]
"""Opens the providers of boxes, in the background. The server closes them."""

MakeOutside = Callable[[Settings], "Outside"]
"""Makes the network outside the boxes, in the background."""

_SHUTDOWN_SECONDS = 10
_SWEEP_SECONDS = 5.0
_HOME_SECONDS = 1.0
_MAX_MESSAGE = 1024 * 1024
"""Most bytes of a WebSocket message."""
_PING_SECONDS = 20.0


class CannotServe(Exception):
    """The server cannot start. The message says why, and what to do."""


async def open_providers(settings: Settings, egress: Egress) -> Mapping[str, Provider]:
    """Open all providers of this installation."""
    await asyncio.to_thread(_load_opening)  # in a thread, because it takes long
    from holdfast.providers import factory

    return await factory.open_providers(settings.home, egress=egress, settings=settings.provider_settings)


def _load_opening() -> None:
    importlib.import_module("holdfast.providers.factory")


def make_outside(settings: Settings) -> Outside:
    """The network of this machine."""
    from holdfast.server.egress import this_machine

    return this_machine(os.environ, allow_private=settings.allow_private, proxy=settings.egress_proxy)


def serve(
    settings: Settings,
    started: Started,
    open_providers: OpenProviders = open_providers,
    make_outside: MakeOutside = make_outside,
    clocks: Clocks | None = None,
    find_agent: FindAgent | None = None,
) -> None:
    """Serve until a signal comes. Blocks."""
    if not settings.auth and not is_loopback(settings.host):
        raise CannotServe(
            f"--no-auth is allowed only on loopback, and {settings.host} is reachable from other machines:"
            " leave out --no-auth, or use --host 127.0.0.1"
        )
    logs.configure(settings.log_level)
    with Home(settings.home) as home:
        listener = _listen(settings)
        with listener:
            uvloop.run(
                _serve(
                    settings,
                    home,
                    listener,
                    started,
                    open_providers,
                    functools.partial(make_outside, settings),
                    clocks or Clocks(),
                    find_agent or registry.find,
                )
            )


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise CannotServe(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}):"
            " choose another --port (0 picks a free one)"
        ) from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener


async def _serve(
    settings: Settings,
    home: Home,
    listener: socket.socket,
    started: Started,
    open_providers: OpenProviders,
    make_outside: Callable[[], Outside],
    clocks: Clocks,
    find_agent: FindAgent,
) -> None:
    url = _url(listener, settings.host)
    session_key = new_key() if settings.auth else None
    async with contextlib.AsyncExitStack() as stack:
        try:
            storage = await open_storage(home.path)
        except CannotOpen as error:
            raise CannotServe(str(error)) from error
        stack.push_async_callback(storage.close)
        store, secret = storage.streams, await storage.secrets.root()
        access = Access(storage.api_keys, secret, required=settings.auth, session_key=session_key, clock=clocks.now)
        seals = Seals(derive(secret, "entries of the server"))
        projection = Projection(store, storage.thread_rows, seals)
        stack.push_async_callback(projection.close)
        subscriptions = SubscriptionService(
            store,
            subscriptions=storage.subscriptions,
            public_url=url,
            callback_secret=derive(secret, "subscription callbacks"),
            signing_key=Ed25519PrivateKey.from_private_bytes(derive(secret, "webhook signatures")),
            allow_local_webhooks=is_loopback(settings.host),
        )
        await subscriptions.start()
        stack.push_async_callback(subscriptions.close)
        authority = Authority(seals, frozenset(registry.entry_prefixes()))
        surface = StreamSurface(store, authority, long_poll_timeout=settings.long_poll_timeout)
        tails = Tails(store, cycle_seconds=settings.tail_cycle)
        hosts = BoxHosts(settings.preview_url)
        session_hosts = _session_hosts(hosts, listener)
        origins = OriginPolicy(open_server=not settings.auth, hosts=hosts, sessions=session_hosts)
        streams = StreamService(
            surface, tails, access, SubscriptionRoutes(subscriptions), origins, max_body=settings.max_body
        )
        metrics = Metrics(streams.answered, storage.statistics, lambda: streams.open_tails)
        threads = Threads(store, projection, clock=clocks.now)
        # These parts depend on each other in a circle: connections of boxes go through the egress to the guest API,
        # which asks the runs, which use the boxes, whose network is the egress. `Lazy` breaks it: a part gets other
        # parts unopened, and an opener is called only once the server answers. So one of them, that of the egress, may
        # name an object that is created below: the guest API.
        secrets = Lazy("secrets", lambda: open_secrets(storage, derive(secret, "named secrets")))
        egress = Lazy(
            "egress",
            lambda: open_egress(
                storage, home.path, make_outside, guest_api, secrets, derive(secret, "certificates of boxes")
            ),
        )
        providers = Lazy(
            "providers",
            lambda: open_accounts(storage, derive(secret, "provider credentials"), egress, open_providers, settings),
        )
        boxes = Lazy("boxes", lambda: open_boxes(storage, providers, egress, node=home.node(), pool=settings.pool))
        models = Lazy("models", lambda: open_models(storage, derive(secret, "model keys")))
        prices = Lazy("model prices", lambda: open_prices(storage))
        gateway = Lazy(
            "model gateway", lambda: open_gateway(storage, projection, seals, models, prices, egress, clocks)
        )
        environments = Lazy(
            "environments",
            lambda: open_environments(storage, boxes, egress, models, secrets, find_agent, home.path, clocks),
        )
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
            ),
        )
        sessions = Lazy(
            "sessions",
            lambda: open_sessions(storage, threads, projection, seals, boxes, runs, clocks, settings.max_sessions),
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
                settings.delegation,
                derive(secret, "workflows"),
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
        stack.push_async_callback(session_tools.close)
        stack.push_async_callback(interpreters.close)
        stack.push_async_callback(puller.close)
        shutdown = Shutdown()
        session_gateway = Lazy(
            "gateway of sessions",
            lambda: open_session_gateway(
                storage,
                threads,
                seals,
                boxes,
                session_hosts,
                lambda: front.relay.relay,
                derive(secret, "session gateway"),
                clocks.now,
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
            streams.next_request_id,
            runs,
            gateway,
            max_body=settings.max_body,
            internal_api=internal_api,
            session_tools=tools_of_sessions,
        )
        previews = Previews(derive(secret, "box previews"), required=settings.auth)
        ports = Ports(access, origins, previews, hosts)

        async def serve_preview(listener: socket.socket, address: PreviewAddress) -> asyncio.AbstractServer:
            return await server.listen(
                listener, functools.partial(StreamProtocol, service=streams, front=front, preview=address)
            )

        addresses = PreviewAddresses(
            derive(secret, "preview addresses"), serve_preview, lambda token: expiry(token) * 1000, previews.clock
        )
        links = PreviewLinks(hosts, addresses)

        def make_app() -> FastAPI:
            from holdfast.server.routes.app import create_app
            from holdfast.server.routes.services import Services

            services = Services(
                threads,
                access,
                metrics,
                origins,
                streams.next_request_id,
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
                    )
                    mounts[PREFIX] = await parts.enter_async_context(opening)
                yield await load_in_thread(make_app)

        def make_relay() -> PortRelay:
            from holdfast.server.wire.port_relay import PortRelay

            return PortRelay(ports, boxes, shutdown, metrics, streams.next_request_id)

        app = Lazy("REST API", open_app)
        stack.push_async_callback(app.close)
        front = Dispatch(app, ports, make_relay, guest_api.by_url, session_hosts, session_gateway)
        first_key = None
        if settings.auth and settings.first_key and not await access.list_keys():
            _, first_key = await access.create_key("first")
        await projection.start()
        beside: list[asyncio.Task[None]] = []

        running = RunningServer(url, os.getpid(), holdfast.__version__, now_ms(), session_key)

        def on_starting() -> None:
            # Before the first answer: a client with the previous server's key then finds the new key in the home.
            home.announce(running, storage.make_room)

        def on_started() -> None:
            for part in (app, boxes, models, gateway, runs, sessions, session_tools):
                part.begin()
            beside.append(asyncio.create_task(_load_sockets(app)))
            started(running, first_key)

        def on_stopping() -> None:
            shutdown.begin()
            addresses.close()
            tails.close()
            surface.close()

        config = make_config(
            front,
            functools.partial(StreamProtocol, service=streams, front=front),
            ws_max_size=_MAX_MESSAGE,
            ws_per_message_deflate=False,
            ws_ping_interval=_PING_SECONDS,
            # A slow reader answers pings late, and must not be disconnected. TCP detects dead clients.
            ws_ping_timeout=None,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            backlog=2048,
        )
        server = Server(config, on_starting, on_started, on_stopping)
        beside.append(asyncio.create_task(_sweep(server, settings.request_timeout, settings.keep_alive)))
        beside.append(asyncio.create_task(_watch_home(server, home)))
        beside.append(asyncio.create_task(_sweep_previews(addresses, boxes)))
        try:
            await server.serve(sockets=[listener])
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _load_sockets(app: Lazy[FastAPI]) -> None:
    """Load what WebSockets need, once the app is loaded, so that the first one does not delay all requests."""
    await app.get()
    await load_in_thread(lambda: importlib.import_module("holdfast.server.wire.websocket_protocol"))


async def _sweep(server: Server, request_timeout: float, keep_alive: float) -> None:
    """Close connections whose requests do not arrive in time, and idle ones."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(_SWEEP_SECONDS, request_timeout, keep_alive))
        if slow := sweep_connections(server.connections, loop.time(), request_timeout, keep_alive):
            log.info("closed %d connections whose requests did not arrive in time", slow)


async def _sweep_previews(addresses: PreviewAddresses, boxes: Lazy[Boxes]) -> None:
    """Close the addresses of boxes that are gone."""

    async def is_there(box: str) -> bool:
        try:
            return not (await (await boxes.get()).get(box)).tombstone
        except BoxNotFound:
            return False

    await addresses.keep_swept(is_there)


async def _watch_home(server: Server, home: Home) -> None:
    """Stop if the home is gone: clients could not find the server, and acknowledged entries would be lost."""
    while True:
        await asyncio.sleep(_HOME_SECONDS)
        if not home.is_there:
            log.error("the home %s was deleted, moved or replaced. The server stops", home.path)
            server.stop()
            return


def _session_hosts(hosts: BoxHosts, listener: socket.socket) -> SessionHosts:
    """Sessions have names below the operator's domain, or names of this machine."""
    if hosts.preview_url is None:
        return SessionHosts("http", f":{listener.getsockname()[1]}")
    scheme, domain, colon_port = hosts.preview_url
    return SessionHosts(scheme, colon_port, domain)


def _url(listener: socket.socket, host: str) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
