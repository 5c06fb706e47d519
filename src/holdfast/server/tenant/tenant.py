"""One tenant of a server: its storage, its threads, boxes and runs, and the apps that answer its requests.

A tenant has a home of its own: its own database, root secret, providers and egress. Nothing of it can be reached
with a credential of another tenant, because no object of another tenant is there (docs/decisions/0080).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from holdfast.api.access.tenants import DEFAULT_TENANT
from holdfast.api.errors.boxes import BoxNotFound
from holdfast.server.config import Settings
from holdfast.server.home import Home
from holdfast.server.lazy import Lazy, load_in_thread
from holdfast.server.tenant.core import ServerParts, TenantCore, open_core
from holdfast.server.tenant.parts import TenantParts, make_parts
from holdfast.server.tenant.rest_app import open_rest_app
from holdfast.server.wire.box_hosts import PreviewAddress
from holdfast.server.wire.dispatch import Dispatch, PortDispatch
from holdfast.server.wire.ports import Ports
from holdfast.server.wire.preview import Previews, expiry
from holdfast.server.wire.preview_addresses import PreviewAddresses
from holdfast.server.wire.preview_links import PreviewLinks
from holdfast.server.wire.streams import StreamTenant
from holdfast.threads.subscriptions import SubscriptionRoutes

if TYPE_CHECKING:
    from fastapi import FastAPI

    from holdfast.compat.daytona.service import Daytona
    from holdfast.server.routes.services import Services


class Tenant:
    """An open tenant. Its parts are opened in the background, when they are needed or have work."""

    def __init__(
        self,
        core: TenantCore,
        parts: TenantParts,
        streams: StreamTenant,
        addresses: PreviewAddresses,
        app: Lazy[FastAPI],
        front: Dispatch,
    ) -> None:
        self.name = core.name
        self.storage = core.storage
        self.access = core.access
        self.logins = core.logins
        self.streams = streams
        self.app = app
        self.front = front
        self._parts = parts
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
        self._parts.begin()

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
                return not (await (await self._parts.boxes.get()).get(box)).tombstone
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
    async with contextlib.AsyncExitStack() as stack:
        core = await stack.enter_async_context(open_core(name, settings, home, server, session_key))
        streams = StreamTenant(
            core.surface, core.tails, core.access, SubscriptionRoutes(core.subscriptions), core.quotas, core.audit
        )
        previews = Previews(core.key("box previews"), required=settings.auth)
        ports = Ports(core.access, core.origins, previews, server.hosts, core.quotas.take_request)
        parts = make_parts(core, ports, stack)
        port_dispatch = PortDispatch(ports, parts.port_relay)

        async def serve_preview(listener: socket.socket, address: PreviewAddress) -> asyncio.AbstractServer:
            return await server.listen(listener, port_dispatch, address)

        addresses = PreviewAddresses(
            core.key("preview addresses"), serve_preview, lambda token: expiry(token) * 1000, previews.clock
        )
        links = PreviewLinks(server.hosts, addresses)
        app = Lazy("REST API", lambda: open_rest_app(core, parts, previews, links))
        stack.push_async_callback(app.close)
        front = Dispatch(
            app, ports, parts.port_relay, parts.guest_api.by_url, core.session_hosts, parts.session_gateway
        )
        await core.projection.start()
        tenant = Tenant(core, parts, streams, addresses, app, front)
        sweep = asyncio.create_task(tenant.keep_previews_swept(), name="sweep of preview addresses")
        try:
            yield tenant
        finally:
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
