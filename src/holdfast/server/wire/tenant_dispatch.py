"""Gives each request to the tenant that its credential, its host or its box names. Decides nothing else.

A request that names no tenant is for the default one. Each tenant then checks the credential by itself, with secrets
and keys that no other tenant has.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from holdfast.api.access.tenants import TENANT_NAME
from holdfast.api.guest_url import GUEST_PREFIX
from holdfast.gateway.hosts import SessionHost
from holdfast.gateway.proxy.headers import Header, bearer, first
from holdfast.gateway.proxy.site import Lease, Reply, Site, Visit, refusal
from holdfast.server.wire.box_hosts import PortTarget, PreviewAddress
from holdfast.server.wire.dispatch import Dispatch
from holdfast.server.wire.login_cookie import login_named
from holdfast.threads.access.tenant_names import tenant_named

_GUEST: Final = f"{GUEST_PREFIX}/"
_LOGIN: Final = re.compile(r"GET /(login|s)(/.*)?|GET /v1/login/methods|POST /v1/login")
_SIGNED: Final = re.compile(r"/compat/daytona/toolbox/([A-Za-z0-9-]{1,64})/files/.*")
"""Paths of files in a box, which may be opened with a signature instead of a key."""

_HOOK: Final = re.compile(rf"/v1/(?:hooks|channel-events)/({TENANT_NAME})~.*")
"""Paths of webhooks, which are signed and have no key. Those of other tenants than the default one name theirs."""


class Fronts(Protocol):
    """The apps of tenants."""

    @property
    def has_others(self) -> bool:
        """Whether there is another tenant than the default one."""
        ...

    async def front(self, name: str) -> Dispatch: ...

    async def front_of_box(self, box: str) -> Dispatch: ...


class TenantDispatch:
    """The outermost ASGI app of a server."""

    def __init__(self, default: Dispatch, fronts: Fronts) -> None:
        self._default = default
        self._fronts = fronts
        self.is_elsewhere = default.is_elsewhere
        self.ends_with_client = default.ends_with_client

    @property
    def relay(self) -> Any:
        """What relays upgraded connections. It has no state of a tenant."""
        return self._default.relay

    def upgraded_site(self, headers: list[Header], path: bytes, address: PreviewAddress | None) -> Site | None:
        site = self._default.upgraded_site(headers, path, address)
        if site is None or not self._fronts.has_others:
            return site
        found = self._default.destination(headers, path, address)
        assert found is not None

        async def find() -> Site:
            front = await self._front_of(found)
            own = front.upgraded_site(headers, path, address)
            assert own is not None
            return own

        return _TenantSite(find)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        front = self._default
        if self._fronts.has_others and scope["type"] in ("http", "websocket"):
            try:
                front = await self._front(scope)
            except Exception as error:  # its data is damaged, for example
                await _refuse(error, scope, receive, send)
                return
        await front(scope, receive, send)

    async def _front(self, scope: Any) -> Dispatch:
        headers = scope["headers"]
        address = scope["state"].get("preview") if scope["type"] == "http" else None
        found = self._default.destination(headers, scope["raw_path"], address)
        if found is not None:
            return await self._front_of(found)
        if _LOGIN.fullmatch(f"{scope.get('method')} {scope['path']}") is not None:
            return self._default  # a browser that logs in may have the cookie of an earlier login, of another tenant
        credential = bearer(headers)
        if credential is None:
            if scope["path"].startswith(_GUEST):  # an agent may send its token as the key of a model
                credential = (first(headers, b"x-api-key") or b"").decode("latin-1") or None
            elif (login := login_named(dict(headers))) is not None:
                credential = login
            elif (signed := _SIGNED.fullmatch(scope["path"])) is not None:
                return await self._fronts.front_of_box(signed[1])
            elif (hook := _HOOK.fullmatch(scope["path"])) is not None:
                return await self._fronts.front(hook[1])
        return await self._fronts.front(tenant_named(credential))

    async def _front_of(self, found: SessionHost | PortTarget) -> Dispatch:
        if isinstance(found, SessionHost):
            return await self._fronts.front(found.tenant)
        return await self._fronts.front_of_box(found.box)


async def _refuse(error: Exception, scope: Any, receive: Any, send: Any) -> None:
    """Answer for a tenant that cannot be opened."""
    from holdfast.server.wire.middleware import failure

    if scope["type"] == "http":
        await failure(error)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1011})


class _TenantSite(Site):
    """A site of a tenant that is found when the first request comes."""

    def __init__(self, find: Callable[[], Awaitable[Site]]) -> None:
        self._find = find
        self._site: Site | None = None

    async def admit(
        self, method: str, query: bytes, headers: list[Header], *, scheme: str, upgrade: bool
    ) -> Visit | Reply:
        self._site = await self._find()
        return await self._site.admit(method, query, headers, scheme=scheme, upgrade=upgrade)

    @asynccontextmanager
    async def connected(self, visit: Visit, *, may_reuse: bool = False) -> AsyncIterator[Lease]:
        assert self._site is not None
        async with self._site.connected(visit, may_reuse=may_reuse) as lease:
            yield lease

    def refuse(self, error: Exception, request_id: str, headers: list[Header]) -> Reply:
        return refusal(error, request_id) if self._site is None else self._site.refuse(error, request_id, headers)
