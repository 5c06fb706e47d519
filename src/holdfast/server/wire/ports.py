"""Access to ports of boxes: who may use one, and which parts of requests and answers may pass.

Programs in boxes are not trusted: they never see our credentials, and their answers cannot set cookies or policies of
the API. Requests that may pass are relayed by `gateway.proxy`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.api.access.tenants import TenantRole
from holdfast.api.errors import Forbidden, InvalidRequest, Refused, Unauthorized
from holdfast.gateway.proxy.headers import (
    HOP_BY_HOP,
    NOT_TO_THE_BOX,
    NOT_TO_THE_CLIENT,
    Header,
    bearer,
    check_answer,
    cookies_named,
    first,
    host_only,
    is_navigation,
    named_by_connection,
    take_parameter,
    without_authority,
    without_cookies,
)
from holdfast.gateway.proxy.site import Visit
from holdfast.server.wire.box_hosts import BoxHosts, PortTarget, PreviewAddress
from holdfast.server.wire.login_cookie import COOKIES
from holdfast.server.wire.origins import OriginPolicy, is_same_site
from holdfast.server.wire.preview import COOKIE, TOKEN, Carrier, Previews
from holdfast.threads.access.credentials import Access, Grant
from holdfast.threads.access.tenant_names import KEY_PREFIX

_NOT_TO_THE_BOX: Final = NOT_TO_THE_BOX | {b"x-daytona-preview-token"}
_NOT_ON_OUR_ORIGIN: Final = frozenset({b"set-cookie", b"clear-site-data", b"nel", b"report-to", b"reporting-endpoints"})
"""Headers by which a box could affect the API's own pages, if it is visited by path."""
_SANDBOX: Final = (
    b"content-security-policy",
    b"sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
)
"""Gives a page its own origin although it has the API's address. This limits it; browsers should visit by name."""
_TOKEN_PART: Final = TOKEN.encode() + b"="
_OURS: Final = frozenset({COOKIE.encode()}) | COOKIES
_TOKEN_HEADER: Final = b"x-daytona-preview-token"
"""Programs written for Daytona send the token of a preview in this header."""


class Misdirected(Refused):
    """A page of another host leads to the address of a preview, as in DNS rebinding."""

    status = 421
    code = "misdirected"

    def __init__(self, url: str) -> None:
        super().__init__(f"this address belongs to a port of a box, and answers to {url} only")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A page that was opened with a token in its URL. It gets a cookie, and is opened again without the token."""

    location: bytes
    cookie: bytes


@dataclass(frozen=True, slots=True)
class KeyVisit(Visit):
    """A visit by an API key, which ends when the key loses the right to it."""

    credential: str | None = field(default=None, repr=False)
    grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class _CameBy:
    passes_authorization: bool
    """Whether an Authorization header is not for us."""
    credential: str | None = field(default=None, repr=False)
    grant: Grant | None = None
    """Of an API key. None for a URL, a link or a cookie of the port."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Decides by credentials and headers alone; touches no box."""

    access: Access
    origins: OriginPolicy
    previews: Previews
    hosts: BoxHosts = field(default_factory=BoxHosts)
    take_request: Callable[[], None] = lambda: None
    """Counts a request for the quota of the tenant. Raises if it is one too many."""

    def find(self, headers: list[Header], raw_path: bytes, address: PreviewAddress | None = None) -> PortTarget | None:
        """`address` is the one through which the request came, if it is not the server's own."""
        return self.hosts.find(first(headers, b"host"), raw_path, address)

    async def admit(
        self, target: PortTarget, method: str, query: bytes, headers: list[Header], *, scheme: str
    ) -> Visit | Exchange:
        """Return the request that may pass. Raises if the visitor may not use the port."""
        if not 1 <= target.port <= 65535:
            raise InvalidRequest(f"port {target.port} is not a number from 1 to 65535")
        host, origin = first(headers, b"host"), first(headers, b"origin")
        if target.address is not None and (host or b"").lower() != target.address.host:
            raise Misdirected(target.address.url)
        if target.prefix:
            self.origins.check(dict(headers))
        else:
            self.origins.check_port(host, origin)
        tokens, query = take_parameter(query, TOKEN)
        location = target.prefix + (target.path or b"/") + (b"?" + query if query else b"")
        shown = [*tokens, *(value.decode("latin-1") for name, value in headers if name == _TOKEN_HEADER)][:8]
        if target.token is not None:
            shown.append(target.token)
        opens = bool(tokens) and method == "GET" and is_navigation(headers)
        came_by = await self._authenticate(target, headers, shown, host, origin, opens=opens)
        self.take_request()
        if opens:
            return Exchange(without_authority(location), self._cookie(target))
        if not target.path:
            # Otherwise relative links would be wrong.
            return Exchange(without_authority(location), b"")
        path = (target.path or b"/") + (b"?" + query if query else b"")
        sent = _for_the_box(target, headers, host or b"localhost", scheme, authorization=came_by.passes_authorization)
        clean = functools.partial(for_the_client, target)
        if came_by.grant is None:
            return Visit(method.encode(), path, sent, clean)
        over = asyncio.get_running_loop().create_future()
        return KeyVisit(method.encode(), path, sent, clean, over, came_by.credential, came_by.grant)

    async def _authenticate(
        self,
        target: PortTarget,
        headers: list[Header],
        tokens: list[str],
        host: bytes | None,
        origin: bytes | None,
        *,
        opens: bool,
    ) -> _CameBy:
        """Returns who may visit the port. `opens` is a browser that opens a link, which uses it up."""
        credential, ours = bearer(headers), False
        problem: Refused | None = None
        if not self.access.required:
            return _CameBy(credential is None or not credential.startswith(KEY_PREFIX))
        if credential is not None:
            try:
                grant = await self.access.grant(credential)
                ours = True
                grant.check_administer()
                grant.check_role(TenantRole.MEMBER)
                return _CameBy(False, credential, grant)
            except Refused as error:
                ours = ours or credential.startswith(KEY_PREFIX)
                problem = error
        if any(self.previews.holds(token, Carrier.URL, target.box, target.port) for token in tokens):
            return _CameBy(not ours)
        for token in tokens:
            if self.previews.holds(token, Carrier.LINK, target.box, target.port) and self.previews.admits(token, opens):
                return _CameBy(not ours)
        cookies = cookies_named(headers, COOKIE)
        if any(self.previews.holds(each, Carrier.COOKIE, target.box, target.port) for each in cookies):
            # Browsers send cookies on their own, so only the port's own pages may use ours.
            if origin is not None and not is_same_site(origin, host):
                raise Forbidden("only pages of this port may use its cookie")
            return _CameBy(not ours)
        if target.box in self.previews.public:
            return _CameBy(not ours)
        if problem is not None:
            raise problem
        raise Unauthorized(
            "this port of a box needs an API key, or the URL of a preview",
            hint=f"holdfast box port {target.box} {target.port}",
        )

    def _cookie(self, target: PortTarget) -> bytes:
        value = self.previews.issue(Carrier.COOKIE, target.box, target.port)
        path = target.prefix.decode("latin-1") + "/"
        return f"{COOKIE}={value}; Path={path}; Max-Age=43200; HttpOnly; SameSite=Strict".encode("latin-1")


# --- what passes of an answer ---


def for_the_client(target: PortTarget, headers: list[Header]) -> list[Header]:
    """The headers of a box's answer for the client, without framing. Raises `BadAnswer` for invalid headers."""
    check_answer(headers)
    dropped = HOP_BY_HOP | NOT_TO_THE_CLIENT | named_by_connection(headers)
    if target.prefix:
        dropped |= _NOT_ON_OUR_ORIGIN
    kept = []
    for name, value in headers:
        if name in dropped:
            continue
        if name == b"set-cookie":
            cookie = host_only(value, _OURS)
            if cookie is None:
                continue
            value = cookie
        kept.append((name, value))
    if target.prefix:
        kept.append(_SANDBOX)
    return kept


# --- what passes of a request ---


def _for_the_box(
    target: PortTarget, headers: list[Header], host: bytes, scheme: str, *, authorization: bool
) -> list[Header]:
    dropped = HOP_BY_HOP | _NOT_TO_THE_BOX | named_by_connection(headers)
    if not authorization:
        dropped |= {b"authorization"}
    # By name, the box is the origin and gets its own name. By path, it has no usable origin.
    kept = [(b"host", b"localhost:%d" % target.port if target.prefix else host)]
    for name, value in headers:
        if name in dropped or name.startswith(b"x-forwarded-"):
            continue
        if name == b"cookie":
            # The box must not see cookies of our own address.
            value = b"" if target.prefix else without_cookies(value, _OURS)
            if not value:
                continue
        elif name == b"referer" and _TOKEN_PART in value:
            continue
        kept.append((name, value))
    kept += [(b"x-forwarded-host", host), (b"x-forwarded-proto", scheme.encode())]
    if target.prefix:
        kept.append((b"x-forwarded-prefix", target.prefix))
    return kept
