"""Sends requests to sessions, ports of boxes, the guest API or the API, by host and path alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.guest_url import GUEST_PREFIX
from holdfast.gateway.hosts import SessionHost, SessionHosts
from holdfast.gateway.proxy.headers import Header, first
from holdfast.gateway.proxy.site import Lease, Reply, Site, Visit, refusal
from holdfast.gateway.routes import TERMINAL_SOCKET
from holdfast.server.lazy import Lazy
from holdfast.server.wire.box_hosts import PortTarget, PreviewAddress
from holdfast.server.wire.ports import Ports

if TYPE_CHECKING:
    from holdfast.server.session.gateway import SessionGateway
    from holdfast.server.wire.port_relay import PortRelay

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
_GUEST: Final = f"{GUEST_PREFIX}/"


class Dispatch:
    """The outermost ASGI app.

    `relay` returns the same relay each time. Requests to the API and to sessions wait until those are loaded.
    """

    def __init__(
        self,
        api: Lazy[Any],
        ports: Ports,
        relay: Callable[[], PortRelay],
        guest_api: AsgiApp,
        session_hosts: SessionHosts,
        gateway: Lazy[SessionGateway],
    ) -> None:
        self._api = api
        self._guest_api = guest_api
        self.ports = ports
        self._relay = relay
        self._session_hosts = session_hosts
        self._gateway = gateway

    @property
    def relay(self) -> PortRelay:
        return self._relay()

    def is_elsewhere(self, host: bytes, address: PreviewAddress | None) -> bool:
        """Whether all paths of this host belong to a box or a session, and none to the API."""
        return address is not None or self.ports.hosts.named(host) is not None or self._session(host) is not None

    def ends_with_client(self, headers: list[Header], path: bytes, address: PreviewAddress | None) -> bool:
        """Whether a request goes to a program in a box, and ends when its client leaves."""
        return self.destination(headers, path, address) is not None

    def upgraded_site(self, headers: list[Header], path: bytes, address: PreviewAddress | None) -> Site | None:
        """The program that a WebSocket is for. None if this server answers it itself."""
        found = self.destination(headers, path, address)
        if isinstance(found, PortTarget):
            return self.relay.site(found)
        if found is None or (found.tunnel is None and path == TERMINAL_SOCKET):
            return None
        return _SessionSite(self._gateway, found, path)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = scope["type"]
        found: SessionHost | PortTarget | None = None
        if kind in ("http", "websocket"):
            address = scope["state"].get("preview") if kind == "http" else None
            found = self.destination(scope["headers"], scope["raw_path"], address)
        if isinstance(found, SessionHost):
            await (await self._gateway.get()).app(scope, receive, send)
        elif kind == "http" and found is not None:
            await self.relay(scope, receive, send)
        elif kind == "http" and scope["path"].startswith(_GUEST):
            await self._guest_api(scope, receive, send)
        else:
            await (await self._api.get())(scope, receive, send)

    def destination(
        self, headers: list[Header], path: bytes, address: PreviewAddress | None
    ) -> SessionHost | PortTarget | None:
        """On the host of a session, no path means a port of a box."""
        session = self._session(first(headers, b"host") or b"") if address is None else None
        return session if session is not None else self.ports.find(headers, path, address)

    def _session(self, host: bytes) -> SessionHost | None:
        return self._session_hosts.named(host)


class PortDispatch:
    """What a connection to an address of its own has to know: all its requests are for the port of that address."""

    def __init__(self, ports: Ports, relay: Callable[[], PortRelay]) -> None:
        self._ports = ports
        self._relay = relay

    @property
    def relay(self) -> PortRelay:
        return self._relay()

    def is_elsewhere(self, host: bytes, address: PreviewAddress | None) -> bool:
        return True

    def ends_with_client(self, headers: list[Header], path: bytes, address: PreviewAddress | None) -> bool:
        return True

    def upgraded_site(self, headers: list[Header], path: bytes, address: PreviewAddress | None) -> Site | None:
        found = self._ports.find(headers, path, address)
        return None if found is None else self.relay.site(found)


class _SessionSite(Site):
    """A site of the gateway, which may not be open yet."""

    def __init__(self, gateway: Lazy[SessionGateway], host: SessionHost, path: bytes) -> None:
        self._gateway = gateway
        self._host = host
        self._path = path
        self._site: Site | None = None

    async def admit(
        self, method: str, query: bytes, headers: list[Header], *, scheme: str, upgrade: bool
    ) -> Visit | Reply:
        self._site = (await self._gateway.get()).app.site(self._host, self._path)
        return await self._site.admit(method, query, headers, scheme=scheme, upgrade=upgrade)

    @asynccontextmanager
    async def connected(self, visit: Visit, *, may_reuse: bool = False) -> AsyncIterator[Lease]:
        assert self._site is not None
        async with self._site.connected(visit, may_reuse=may_reuse) as lease:
            yield lease

    def refuse(self, error: Exception, request_id: str, headers: list[Header]) -> Reply:
        return refusal(error, request_id) if self._site is None else self._site.refuse(error, request_id, headers)
