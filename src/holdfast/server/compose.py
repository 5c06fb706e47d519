"""Opens the home, composes the parts of a server, serves until a signal comes, and closes everything again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import uvloop

import holdfast
from holdfast.api.access.tenants import DEFAULT_TENANT
from holdfast.api.ids import now_ms
from holdfast.client.local_server import RunningServer
from holdfast.gateway.hosts import SessionHosts
from holdfast.harnesses import registry
from holdfast.server.clocks import Clocks
from holdfast.server.components import FindAgent
from holdfast.server.config import Settings
from holdfast.server.home import Home
from holdfast.server.lazy import Lazy, load_in_thread
from holdfast.server.shutdown import Shutdown
from holdfast.server.telemetry import logs
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.tenant.core import MakeOutside, OpenProviders, ServerParts
from holdfast.server.tenant.tenant import open_tenant
from holdfast.server.tenant.tenants import Tenants, open_on_home
from holdfast.server.wire.box_hosts import BoxHosts, PreviewAddress
from holdfast.server.wire.dispatch import PortDispatch
from holdfast.server.wire.http_protocol import StreamProtocol, sweep_connections
from holdfast.server.wire.origins import OriginPolicy, is_loopback
from holdfast.server.wire.streams import StreamService
from holdfast.server.wire.tenant_dispatch import TenantDispatch
from holdfast.server.wire.uvicorn_adapter import Server, make_config
from holdfast.storage import CannotOpen
from holdfast.threads.access.credentials import new_key

if TYPE_CHECKING:
    from fastapi import FastAPI

    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.server.egress import Outside

log = logging.getLogger(__name__)

Started = Callable[[RunningServer, str | None, str | None], None]
"""Called once the server answers, with the first API key if one was just created, and with a link that logs a browser
in, if keys are required."""

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
    await load_in_thread(_load_opening)  # in a thread, because it takes long
    from holdfast.providers import factory

    return await factory.open_providers(
        settings.home, egress=egress, settings=settings.provider_settings, kinds=settings.provider_kinds
    )


def _load_opening() -> None:
    importlib.import_module("holdfast.providers.factory")


def make_outside(settings: Settings) -> Outside:
    """The network of this machine."""
    from holdfast.server.egress import this_machine

    return this_machine(
        os.environ,
        allow_private=settings.allow_private,
        proxy=settings.egress_proxy,
        public_only=settings.public_only,
    )


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
                    make_outside,
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
    make_outside: MakeOutside,
    clocks: Clocks,
    find_agent: FindAgent,
) -> None:
    url = _url(listener, settings.host)
    session_key = new_key() if settings.auth else None
    shutdown = Shutdown()
    hosts = BoxHosts(settings.preview_url)
    async with contextlib.AsyncExitStack() as stack:
        tenants = Tenants(settings.home, lambda name: open_on_home(name, settings, parts), clocks.now)
        origins = OriginPolicy(
            open_server=not settings.auth, hosts=hosts, sessions=_session_hosts(hosts, listener, DEFAULT_TENANT)
        )
        streams = StreamService(tenants, origins, max_body=settings.max_body, public_url=settings.public_url)
        metrics = Metrics(streams.answered, lambda: tenants.default.storage.statistics(), lambda: streams.open_tails)

        async def listen(
            listener: socket.socket, front: PortDispatch, address: PreviewAddress
        ) -> asyncio.AbstractServer:
            return await server.listen(
                listener, functools.partial(StreamProtocol, service=streams, front=front, preview=address)
            )

        parts = ServerParts(
            url,
            hosts,
            functools.partial(_session_hosts, hosts, listener),
            shutdown,
            metrics,
            streams.next_request_id,
            listen,
            open_providers,
            make_outside,
            clocks,
            find_agent,
            tenants,
        )
        opening = open_tenant(DEFAULT_TENANT, settings, home, parts, session_key)
        try:
            default = await stack.enter_async_context(opening)
        except CannotOpen as error:
            raise CannotServe(str(error)) from error
        await tenants.start(default)
        stack.push_async_callback(tenants.close)
        first_key = None
        if settings.auth and settings.first_key and not await default.access.list_keys():
            _, first_key = await default.access.create_key("first")
        beside: list[asyncio.Task[None]] = []

        running = RunningServer(url, os.getpid(), holdfast.__version__, now_ms(), session_key)

        def on_starting() -> None:
            # Before the first answer: a client with the previous server's key then finds the new key in the home.
            home.announce(running, default.storage.make_room)

        def on_started() -> None:
            default.begin()
            tenants.begin()
            beside.append(asyncio.create_task(_load_sockets(default.app)))
            link = None
            if settings.auth:
                code, _ = default.logins.issue_code(default.access.everything)
                link = f"{(settings.public_url or url).rstrip('/')}/login#code={code}"
            started(running, first_key, link)

        def on_stopping() -> None:
            shutdown.begin()
            for tenant in tenants.opened():
                tenant.stop_streams()

        front = TenantDispatch(default.front, tenants)
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


async def _watch_home(server: Server, home: Home) -> None:
    """Stop if the home is gone: clients could not find the server, and acknowledged entries would be lost."""
    while True:
        await asyncio.sleep(_HOME_SECONDS)
        if not home.is_there:
            log.error("the home %s was deleted, moved or replaced. The server stops", home.path)
            server.stop()
            return


def _session_hosts(hosts: BoxHosts, listener: socket.socket, tenant: str) -> SessionHosts:
    """Sessions have names below the operator's domain, or names of this machine."""
    if hosts.preview_url is None:
        return SessionHosts("http", f":{listener.getsockname()[1]}", tenant=tenant)
    scheme, domain, colon_port = hosts.preview_url
    return SessionHosts(scheme, colon_port, domain, tenant)


def _url(listener: socket.socket, host: str) -> str:
    """Returns an address that this machine can open: 0.0.0.0 means all addresses, and not every browser opens it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
