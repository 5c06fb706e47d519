"""Access to ports of boxes: who may use one, and which parts of requests and answers may pass.

Programs in boxes are not trusted: they never see our credentials, and their answers cannot set cookies or policies of
the API. Plain requests are relayed by `port_relay`, upgraded connections by `tunnel`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.errors import Forbidden, InvalidRequest, Refused, Unauthorized
from holdfast.api.guest_url import GUEST_PREFIX
from holdfast.server.lazy import Lazy
from holdfast.server.wire.box_hosts import BoxHosts, PortTarget, PreviewAddress
from holdfast.server.wire.origins import OriginPolicy, is_same_site
from holdfast.server.wire.preview import COOKIE, TOKEN, Carrier, Previews
from holdfast.threads.access.credentials import KEY_PREFIX, Access

if TYPE_CHECKING:
    from holdfast.server.wire.port_relay import PortRelay

Header = tuple[bytes, bytes]
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

_GUEST: Final = f"{GUEST_PREFIX}/"

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_NOT_TO_THE_BOX: Final = frozenset({b"expect", b"content-length", b"host", b"forwarded", b"x-daytona-preview-token"})
_NOT_TO_THE_CLIENT: Final = frozenset(
    {b"content-length", b"alt-svc", b"strict-transport-security", b"public-key-pins", b"service-worker-allowed"}
)
_NOT_ON_OUR_ORIGIN: Final = frozenset({b"set-cookie", b"clear-site-data", b"nel", b"report-to", b"reporting-endpoints"})
"""Headers by which a box could affect the API's own pages, if it is visited by path."""
_SANDBOX: Final = (
    b"content-security-policy",
    b"sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
)
"""Gives a page its own origin although it has the API's address. This limits it; browsers should visit by name."""
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_TOKEN_PART: Final = TOKEN.encode() + b"="
_TOKEN_HEADER: Final = b"x-daytona-preview-token"
"""Programs written for Daytona send the token of a preview in this header."""


class BadAnswer(Refused):
    """The program in the box did not speak HTTP."""

    status = 502
    code = "bad_gateway"


class Misdirected(Refused):
    """A page of another host leads to the address of a preview, as in DNS rebinding."""

    status = 421
    code = "misdirected"

    def __init__(self, url: str) -> None:
        super().__init__(f"this address belongs to a port of a box, and answers to {url} only")


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that may pass to a port of a box."""

    target: PortTarget
    method: bytes
    path: bytes
    """With the query, without our token."""
    headers: list[Header]
    """The headers for the box, without framing."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A page that was opened with a token in its URL. It gets a cookie, and is opened again without the token."""

    location: bytes
    cookie: bytes


@dataclass(frozen=True, slots=True)
class Ports:
    """Decides by credentials and headers alone; touches no box."""

    access: Access
    origins: OriginPolicy
    previews: Previews
    hosts: BoxHosts = field(default_factory=BoxHosts)

    def find(self, headers: list[Header], raw_path: bytes, address: PreviewAddress | None = None) -> PortTarget | None:
        """`address` is the one through which the request came, if it is not the server's own."""
        return self.hosts.find(_first(headers, b"host"), raw_path, address)

    async def admit(
        self, target: PortTarget, method: str, query: bytes, headers: list[Header], *, scheme: str
    ) -> Visit | Exchange:
        """Return the request that may pass. Raises if the visitor may not use the port."""
        if not 1 <= target.port <= 65535:
            raise InvalidRequest(f"port {target.port} is not a number from 1 to 65535")
        host, origin = _first(headers, b"host"), _first(headers, b"origin")
        if target.address is not None and (host or b"").lower() != target.address.host:
            raise Misdirected(target.address.url)
        if target.prefix:
            self.origins.check(dict(headers))
        else:
            self.origins.check_port(host, origin)
        tokens, query = _take_token(query)
        location = target.prefix + (target.path or b"/") + (b"?" + query if query else b"")
        shown = [*tokens, *(value.decode("latin-1") for name, value in headers if name == _TOKEN_HEADER)][:8]
        if target.token is not None:
            shown.append(target.token)
        passing_authorization = await self._authenticate(target, headers, shown, host, origin)
        if tokens and method == "GET" and _is_navigation(headers):
            return Exchange(_without_authority(location), self._cookie(target))
        if not target.path:
            # Otherwise relative links would be wrong.
            return Exchange(_without_authority(location), b"")
        path = (target.path or b"/") + (b"?" + query if query else b"")
        sent = _for_the_box(target, headers, host or b"localhost", scheme, authorization=passing_authorization)
        return Visit(target, method.encode(), path, sent)

    async def _authenticate(
        self, target: PortTarget, headers: list[Header], tokens: list[str], host: bytes | None, origin: bytes | None
    ) -> bool:
        """Returns whether an Authorization header is not for us, and may pass."""
        credential, ours = None, False
        value = _first(headers, b"authorization")
        if value is not None:
            scheme, _, text = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                credential = text.strip() or None
        problem: Refused | None = None
        if not self.access.required:
            return credential is None or not credential.startswith(KEY_PREFIX)
        if credential is not None:
            try:
                grant = await self.access.grant(credential)
                ours = True
                grant.check_administer()
                return False
            except Refused as error:
                ours = ours or credential.startswith(KEY_PREFIX)
                problem = error
        if any(self.previews.holds(token, Carrier.URL, target.box, target.port) for token in tokens):
            return not ours
        if any(self.previews.holds(each, Carrier.COOKIE, target.box, target.port) for each in _cookies(headers)):
            # Browsers send cookies on their own, so only the port's own pages may use ours.
            if origin is not None and not is_same_site(origin, host):
                raise Forbidden("only pages of this port may use its cookie")
            return not ours
        if target.box in self.previews.public:
            return not ours
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
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadAnswer("the program in the box answered with invalid headers")
    dropped = _HOP_BY_HOP | _NOT_TO_THE_CLIENT | _named_by_connection(headers)
    if target.prefix:
        dropped |= _NOT_ON_OUR_ORIGIN
    kept = []
    for name, value in headers:
        if name in dropped:
            continue
        if name == b"set-cookie":
            cookie = _host_only(value)
            if cookie is None:
                continue
            value = cookie
        kept.append((name, value))
    if target.prefix:
        kept.append(_SANDBOX)
    return kept


def _host_only(cookie: bytes) -> bytes | None:
    """Restrict a box's cookie to its own host. Returns None if it has the name of ours."""
    pair, *attributes = cookie.split(b";")
    if pair.partition(b"=")[0].strip().lower() == COOKIE.encode():
        return None
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([pair, *kept])


# --- what passes of a request ---


def _for_the_box(
    target: PortTarget, headers: list[Header], host: bytes, scheme: str, *, authorization: bool
) -> list[Header]:
    dropped = _HOP_BY_HOP | _NOT_TO_THE_BOX | _named_by_connection(headers)
    if not authorization:
        dropped |= {b"authorization"}
    # By name, the box is the origin and gets its own name. By path, it has no usable origin.
    kept = [(b"host", b"localhost:%d" % target.port if target.prefix else host)]
    for name, value in headers:
        if name in dropped or name.startswith(b"x-forwarded-"):
            continue
        if name == b"cookie":
            # The box must not see cookies of our own address.
            value = b"" if target.prefix else _without_ours(value)
            if not value:
                continue
        elif name == b"referer" and _TOKEN_PART in value:
            continue
        kept.append((name, value))
    kept += [(b"x-forwarded-host", host), (b"x-forwarded-proto", scheme.encode())]
    if target.prefix:
        kept.append((b"x-forwarded-prefix", target.prefix))
    return kept


def _named_by_connection(headers: list[Header]) -> frozenset[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(part.strip().lower() for value in values for part in value.split(b","))


def _without_ours(cookies: bytes) -> bytes:
    kept = [each for each in cookies.split(b";") if each.partition(b"=")[0].strip() != COOKIE.encode()]
    return b";".join(kept).strip()


def _cookies(headers: list[Header]) -> list[str]:
    """All values of our cookie: a box may have tried to set one of the same name."""
    pairs = (each.strip().partition(b"=") for name, value in headers if name == b"cookie" for each in value.split(b";"))
    return [value.decode("latin-1") for name, _, value in pairs if name == COOKIE.encode()][:8]


def _take_token(query: bytes) -> tuple[list[str], bytes]:
    """Our tokens in a query, and the query without them."""
    parts = query.split(b"&") if query else []
    tokens = [part[len(_TOKEN_PART) :].decode("latin-1") for part in parts if part.startswith(_TOKEN_PART)]
    return tokens[:8], b"&".join(part for part in parts if not part.startswith(_TOKEN_PART))


def _is_navigation(headers: list[Header]) -> bool:
    mode = _first(headers, b"sec-fetch-mode")
    return mode == b"navigate" or (mode is None and b"text/html" in (_first(headers, b"accept") or b""))


def _without_authority(location: bytes) -> bytes:
    """A path that starts with two slashes would mean another host."""
    return b"/" + location.lstrip(b"/\\") if location[:1] in b"/\\" else location


def _first(headers: list[Header], name: bytes) -> bytes | None:
    return next((value for each, value in headers if each == name), None)


class Dispatch:
    """The outermost ASGI app: sends requests to ports of boxes, the guest API or the API, by host and path alone.

    The relay is created for the first request to a port, so that the start does not wait for its modules. Requests to
    the API wait until that is loaded.
    """

    def __init__(self, api: Lazy[Any], ports: Ports, make_relay: Callable[[], PortRelay], guest_api: AsgiApp) -> None:
        self._api = api
        self._guest_api = guest_api
        self.ports = ports
        self._make_relay = make_relay

    @functools.cached_property
    def relay(self) -> PortRelay:
        return self._make_relay()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        address = scope["state"].get("preview") if scope["type"] == "http" else None
        if scope["type"] == "http" and self.ports.find(scope["headers"], scope["raw_path"], address) is not None:
            await self.relay(scope, receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(_GUEST):
            await self._guest_api(scope, receive, send)
        else:
            await (await self._api.get())(scope, receive, send)
