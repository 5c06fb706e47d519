"""The pages and programs of a session as the browser sees them: who may open which, and where each leads."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.api.errors import Forbidden, HoldfastError, NotFound, Refused, Unauthorized
from holdfast.api.errors.boxes import BoxError
from holdfast.gateway import pages
from holdfast.gateway.credentials.cookies import COOKIE, SECURE_COOKIE
from holdfast.gateway.credentials.tokens import is_of_holdfast, looks_like_token
from holdfast.gateway.hosts import SessionHost
from holdfast.gateway.proxy.headers import (
    HOP_BY_HOP,
    NOT_TO_THE_BOX,
    NOT_TO_THE_CLIENT,
    BadAnswer,
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
from holdfast.gateway.proxy.kept_connections import Route as KeptRoute
from holdfast.gateway.proxy.relay import connect
from holdfast.gateway.proxy.site import Lease, Reply, Site, Visit, refusal
from holdfast.gateway.routes import Kind, Route, parse_path
from holdfast.gateway.sessions import ProgramView, SessionView
from holdfast.gateway.tunnel.tunnels import host_label
from holdfast.gateway.uses import Use, may
from holdfast.gateway.visitors import Visitor

if TYPE_CHECKING:
    from holdfast.gateway.app import Gateway

TOKEN: Final = "token"
"""The query parameter of a link to a session."""
TICKET: Final = "holdfast_token"
"""The query parameter by which a browser comes to a tunnel. A program may have a `token` of its own."""
_OURS: Final = frozenset({COOKIE.lower().encode(), SECURE_COOKIE.lower().encode()})
_ELSEWHERE: Final = frozenset({b"cross-site", b"same-site"})
_FRAMES: Final = frozenset({b"iframe", b"frame", b"embed", b"object", b"fencedframe"})
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NOT_FROM_PROGRAMS: Final = frozenset({b"clear-site-data"})
"""With it, a program could end the login of the session, whose origin it shares."""
_STARTING: Final = frozenset({"waiting", "starting", "restarting"})
_SHOWN: Final = _STARTING | {"blocked", "failed"}
"""States in which a program of a workstation is on the page without a link. One that is missing is not shown."""
_TITLES: Final = {"vscode": "The editor", "vnc": "The desktop"}
_PROGRAMS: Final = {"vscode": "editor", "vnc": "desktop"}
"""The program of a workstation that a path leads to."""


class NotReady(BadAnswer):
    """The program of a session does not answer yet."""

    code = "not_ready"

    def __init__(self, what: str, session: SessionView, reason: str) -> None:
        missing = f", still starting: {', '.join(session.starting)}" if session.starting else ""
        super().__init__(f"{what} does not answer: the session is {session.state}{missing} ({reason})")
        self.what = what
        self.session = session


class NoProgram(NotFound):
    """The session has no such program, so there is nothing to wait for."""

    code = "no_program"


class SessionSite(Site):
    """One request to the origin of a session or of a tunnel."""

    def __init__(self, gateway: Gateway, host: SessionHost, path: bytes) -> None:
        self._gateway = gateway
        self._host = host
        self._path = path
        self._cookie = SECURE_COOKIE if gateway.hosts.scheme == "https" else COOKIE
        self._session: SessionView | None = None
        self._visitor: Visitor | None = None
        self._port = 0
        self._what = ""
        self._program = ""
        """The program of a workstation that is asked for, or empty."""

    async def admit(
        self, method: str, query: bytes, headers: list[Header], *, scheme: str, upgrade: bool
    ) -> Visit | Reply:
        route = parse_path(self._path) if self._host.tunnel is None else Route(Kind.TUNNEL, path=self._path or b"/")
        if route.kind is Kind.HEALTH:
            return Reply(200, [(b"content-type", b"application/json")], b'{"status":"ok"}')
        check_origin(method, headers, upgrade=upgrade)
        if self._host.tunnel is not None:
            check_no_service_worker(headers)
        else:
            check_not_framed(headers)
        tokens, rest = self._take_tokens(query)
        if tokens:
            query = rest  # it is never for the program
            if method == "GET" and not upgrade:
                return await self._open_link(tokens[0], query, headers)
        session, visitor, authorization = await self.identify(headers)
        self._session, self._visitor = session, visitor
        if self._host.tunnel is not None or route.kind is Kind.TUNNEL:
            return await self._admit_tunnel(route, method, query, headers, scheme, upgrade, authorization)
        if route.kind is Kind.PROGRAM:
            _check_use(visitor, Use.PROGRAM)
            if not route.path:
                return _redirect(308, f"/{route.name}/".encode() + _query(query))
            self._port, self._what = session.services.get(route.name, 0), _TITLES[route.name]
            self._program = _PROGRAMS[route.name]
            if not self._port:
                raise NotFound(f"session {session.id} has no {route.name}")
            prefix = f"/{route.name}".encode()
            return self._visit(method, route.path + _query(query), headers, scheme, prefix, authorization)
        if method not in ("GET", "HEAD"):
            raise Forbidden(f"pages of the gateway are only read, not changed by {method}")
        if route.kind is Kind.INDEX:
            return await self._index(session, visitor)
        if route.kind is Kind.TERMINAL:
            return _terminal_page(route, query)
        raise NotFound(f"the gateway has no {self._path[:200].decode('latin-1')}")

    async def identify(self, headers: list[Header]) -> tuple[SessionView, Visitor, bool]:
        """Returns who makes the request, and whether its Authorization header is for the program. Raises."""
        session = await self._find()
        access, tunnel = self._gateway.access, self._host.tunnel
        token = bearer(headers)
        problem: HoldfastError | None = None
        if token is not None:
            try:
                # A token of the session is one for all of its tunnels, too: programs need no second one.
                return session, await access.by_token(session, token), False
            except HoldfastError as error:
                problem = error
        visitor = await access.by_cookies(session, cookies_named(headers, self._cookie), tunnel)
        if visitor is not None:
            return session, visitor, token is None or not is_of_holdfast(token)
        raise problem or _unauthorized()

    @contextlib.asynccontextmanager
    async def connected(self, visit: Visit, *, may_reuse: bool = False) -> AsyncIterator[Lease]:
        session, visitor = self._session, self._visitor
        assert session is not None
        assert visitor is not None
        kept, lease = self._gateway.kept, None
        try:
            async with self._gateway.access.present(session, visitor):
                if session.box is None:
                    raise NotReady(self._what, session, "it has no box now")
                async with self._gateway.boxes.open(session) as box:
                    route = KeptRoute(session.box, self._port, visitor.credential)
                    reused = kept.take(route) if may_reuse else None
                    lease = Lease(reused or await connect(box, self._port), can_keep=True, reused=reused is not None)
                    try:
                        visitor.check_not_over()  # nothing is sent for who lost the right to it meanwhile
                        yield lease
                    finally:
                        if lease.keep and not visitor.over.done():
                            kept.keep(route, lease.connection)
                        else:
                            await lease.connection.close()
        except (BoxError, BadAnswer) as error:
            if lease is not None or isinstance(error, NotReady):
                raise
            raise await self._not_ready(session, error) from error

    def refuse(self, error: Exception, request_id: str, headers: list[Header]) -> Reply:
        reply = refusal(error, request_id)
        if not is_navigation(headers) or not isinstance(error, HoldfastError):
            return reply
        if isinstance(error, NotReady):
            return pages.starting_page(error.what, error.session.state, error.session.starting)
        if isinstance(error, NoProgram):
            return pages.problem_page(reply.status, f"No {self._program} here", error.message, error.hint)
        titles = {401: "Please sign in", 403: "Not for you", 404: "Not found", 502: "No answer", 504: "No answer"}
        shown = pages.problem_page(reply.status, titles.get(reply.status, "That failed"), error.message, error.hint)
        return Reply(shown.status, [*shown.headers, *error.headers], shown.body)

    async def _not_ready(self, session: SessionView, error: HoldfastError) -> HoldfastError:
        """Returns what a program that does not answer means: there is none, or it has not started yet."""
        if self._host.tunnel is not None or session.box is None:
            return NotReady(self._what, session, error.message)
        programs = await self._gateway.sessions.programs(session)
        if self._program and session.state == "running":
            none = no_program(session.id, self._program, programs)
            if none is not None:
                return none
        missing = [f"{each.title}: {each.state} {each.detail}".strip() for each in programs if each.state != "running"]
        return NotReady(self._what, replace(session, starting=tuple(missing)), error.message)

    # --- who comes ---

    async def _find(self) -> SessionView:
        session = await self._gateway.sessions.find(self._host.session)
        if session is None:
            raise _unauthorized()  # not whether it exists
        return session

    def _take_tokens(self, query: bytes) -> tuple[list[str], bytes]:
        """Our tokens in a query, and the query without them. On the session's origin, what does not look like a token
        is left to the programs."""
        if self._host.tunnel is not None:
            return take_parameter(query, TICKET)
        tokens, rest = take_parameter(query, TOKEN)
        return (tokens, rest) if any(map(looks_like_token, tokens)) else ([], query)

    async def _open_link(self, token: str, query: bytes, headers: list[Header]) -> Reply:
        """Exchange the token in a URL for a new cookie, and open the URL again without it."""
        session = await self._find()
        access, tunnel = self._gateway.access, self._host.tunnel
        location = without_authority((self._path or b"/") + _query(query))
        try:
            if tunnel is None:
                visitor = await access.by_token(session, token)
            else:
                visitor = await access.by_ticket(session, token, tunnel)
        except Refused:
            # Somebody who is already here may open an old link again.
            if await access.by_cookies(session, cookies_named(headers, self._cookie), tunnel) is None:
                raise
            return _redirect(303, location)
        value = await access.issue_cookie(session, visitor, tunnel)
        secure = "; Secure" if self._cookie == SECURE_COOKIE else ""
        cookie = f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Lax{secure}".encode()
        return _redirect(303, location, (b"set-cookie", cookie))

    # --- where it leads ---

    async def _admit_tunnel(
        self,
        route: Route,
        method: str,
        query: bytes,
        headers: list[Header],
        scheme: str,
        upgrade: bool,
        authorization: bool,
    ) -> Visit | Reply:
        session, visitor = self._session, self._visitor
        assert session is not None
        assert visitor is not None
        tunnels = (await self._gateway.access.records.get(session.thread)).tunnels
        if self._host.tunnel is not None:
            found = next((each for each in tunnels.values() if host_label(each.name) == self._host.tunnel), None)
        else:
            found = tunnels.get(route.name)
        if found is None:
            raise NotFound(f"session {session.id} has no tunnel {route.name or self._host.tunnel!r}")
        reads = method in _SAFE and not upgrade
        _check_use(visitor, Use.READ_TUNNEL if reads else Use.USE_TUNNEL)
        prefix = b""
        if self._host.tunnel is None:
            if visitor.cookie is not None:
                if upgrade or not reads:
                    raise Forbidden(f"tunnel {found.name} has an origin of its own: open /t/{found.name}/ in a browser")
                return await self._to_tunnel(session, visitor, host_label(found.name), route.path or b"/", query)
            if not route.path:
                return _redirect(308, f"/t/{found.name}/".encode() + _query(query))
            prefix = f"/t/{found.name}".encode()
        self._port, self._what = found.port, f"Tunnel {found.name}"
        self._visitor = replace(visitor, tunnel=found)
        return self._visit(method, route.path + _query(query), headers, scheme, prefix, authorization)

    async def _to_tunnel(self, session: SessionView, visitor: Visitor, label: str, path: bytes, query: bytes) -> Reply:
        """Take a browser to the origin of a tunnel, with a ticket that it exchanges for a cookie there."""
        ticket = await self._gateway.access.issue_ticket(session, visitor, label)
        origin = self._gateway.hosts.origin(session.id, label).encode()
        parts = [each for each in (query, f"{TICKET}={ticket}".encode()) if each]
        return _redirect(303, origin + without_authority(path) + b"?" + b"&".join(parts))

    def _visit(
        self, method: str, path: bytes, headers: list[Header], scheme: str, prefix: bytes, authorization: bool
    ) -> Visit:
        assert self._visitor is not None
        sent = for_the_program(headers, scheme, prefix, authorization=authorization)
        shares_origin = self._host.tunnel is None
        # The editor registers a service worker for all of its pages, from a script further down.
        worker_scope = prefix + b"/" if shares_origin and not prefix.startswith(b"/t/") else None
        clean = functools.partial(for_the_browser, shares_origin=shares_origin, worker_scope=worker_scope)
        return Visit(method.encode(), path, sent, clean, self._visitor.over)

    async def _index(self, session: SessionView, visitor: Visitor) -> Reply:
        tunnels = (await self._gateway.access.records.get(session.thread)).tunnels
        shows = may(visitor.role, Use.PROGRAM)
        programs = await self._gateway.sessions.programs(session) if shows else ()
        links = [pages.Item("Terminal", "/tty/")]
        links += [
            pages.Item(each.title, each.path, "" if each.path is not None else f"{each.state} {each.detail}".strip())
            for each in programs
            if each.path is not None or each.state in _SHOWN
        ]
        links += [pages.Item(f"{each.name} (port {each.port})", f"/t/{each.name}/") for each in tunnels.values()]
        waits = any(each.state in _STARTING for each in programs)
        return pages.index_page(session.id, session.state, links, refresh=2 if waits else None)


# --- decisions ---


def no_program(session: str, wanted: str, programs: Sequence[ProgramView]) -> NoProgram | None:
    """Returns why a session has no such program, or None if it has one that may still start."""
    found = next((each for each in programs if each.name == wanted), None)
    if found is None:
        message = f"session {session} has no {wanted}: its box was made without a workstation"
        return NoProgram(message, hint="make one with holdfast session new --workstation; its terminal is at /tty/")
    if found.state == "missing":
        message = f"session {session} has no {wanted}: {found.detail or 'its box has no such program'}"
        return NoProgram(message, hint="an image with it: holdfast image build workstation; a terminal is at /tty/")
    if found.state == "failed":
        message = f"the {wanted} of session {session} has failed: {found.detail}".rstrip(": ")
        return NoProgram(message, hint=f"see its output: holdfast session diagnose {session}")
    return None


def check_origin(method: str, headers: list[Header], *, upgrade: bool) -> None:
    """Only pages of the same origin may change something or open a WebSocket. Raises `Forbidden`.

    Browsers always say where such a request comes from. Programs, which have no Origin, bring a token.
    """
    origin, host = first(headers, b"origin"), first(headers, b"host") or b""
    ours = (b"http://" + host.lower(), b"https://" + host.lower())
    if origin is not None and origin.lower() not in ours and (upgrade or method not in _SAFE):
        raise Forbidden("a page of another origin cannot use this session")
    if first(headers, b"sec-fetch-site") in _ELSEWHERE and first(headers, b"sec-fetch-mode") != b"navigate":
        raise Forbidden("a page of another origin cannot use this session")


def check_not_framed(headers: list[Header]) -> None:
    """A page of another origin, such as that of a tunnel, cannot show the session inside itself. Raises `Forbidden`."""
    if first(headers, b"sec-fetch-site") in _ELSEWHERE and first(headers, b"sec-fetch-dest") in _FRAMES:
        raise Forbidden("a page of another origin cannot show this session in a frame")


def check_no_service_worker(headers: list[Header]) -> None:
    """A service worker of a tunnel would see the tickets of its visitors. Raises `Forbidden`.

    Browsers send this header with each request for the script of one. Answers vary by it, so that none comes from a
    browser's cache.
    """
    if first(headers, b"service-worker") is not None or first(headers, b"sec-fetch-dest") == b"serviceworker":
        raise Forbidden("pages of tunnels cannot have service workers")


def for_the_program(headers: list[Header], scheme: str, prefix: bytes, *, authorization: bool) -> list[Header]:
    """The headers of a request for a program in the box, without framing, and without our credentials."""
    dropped = HOP_BY_HOP | NOT_TO_THE_BOX | named_by_connection(headers)
    if not authorization:
        dropped |= {b"authorization"}
    host = first(headers, b"host") or b"localhost"
    kept = [(b"host", host)]
    for name, value in headers:
        if name in dropped or name.startswith(b"x-forwarded-"):
            continue
        if name == b"cookie":
            value = without_cookies(value, _OURS)
            if not value:
                continue
        elif name == b"referer" and (TICKET.encode() + b"=" in value or TOKEN.encode() + b"=eyJ" in value):
            continue
        kept.append((name, value))
    kept += [(b"x-forwarded-host", host), (b"x-forwarded-proto", scheme.encode())]
    if prefix:
        kept.append((b"x-forwarded-prefix", prefix))
    return kept


def for_the_browser(headers: list[Header], *, shares_origin: bool, worker_scope: bytes | None = None) -> list[Header]:
    """The headers of a program's answer, without framing. It cannot set our cookie. Raises `BadAnswer`.

    `worker_scope` is the path that a service worker of the program may have at most. Others have the folder of their
    script, and never a page of ours, which gets the tokens of links.
    """
    check_answer(headers)
    dropped = HOP_BY_HOP | NOT_TO_THE_CLIENT | named_by_connection(headers)
    if shares_origin:
        dropped |= _NOT_FROM_PROGRAMS
    kept: list[Header] = []
    asks_for_scope = False
    for name, value in headers:
        asks_for_scope = asks_for_scope or name == b"service-worker-allowed"
        if name in dropped:
            continue
        if name == b"set-cookie":
            cookie = host_only(value, _OURS)
            if cookie is None:
                continue
            value = cookie
        kept.append((name, value))
    if asks_for_scope and worker_scope is not None:
        kept.append((b"service-worker-allowed", worker_scope))
    if shares_origin:
        kept.append((b"content-security-policy", b"frame-ancestors 'self'"))  # each policy holds, also beside others
    else:
        kept.append((b"vary", b"service-worker"))
    return kept


def _check_use(visitor: Visitor, use: Use) -> None:
    if not may(visitor.role, use):
        raise Forbidden(
            f"a {visitor.role.value} may watch terminals and read pages of tunnels, and nothing else",
            hint="ask the owner of the session for another role",
        )


def _unauthorized() -> Unauthorized:
    return Unauthorized(
        "this session needs a link or a token",
        hint="get a link with holdfast session open SESSION",
    )


def _query(query: bytes) -> bytes:
    return b"?" + query if query else b""


def _redirect(status: int, location: bytes, *headers: Header) -> Reply:
    return Reply(status, [(b"location", location), *headers, *pages.COMMON])


def _terminal_page(route: Route, query: bytes) -> Reply:
    if not route.path:
        return _redirect(308, b"/tty/" + _query(query))
    if route.path == b"/":
        return pages.static("terminal.html")
    if route.path[1:].decode("latin-1") in pages.TERMINAL_FILES:
        return pages.static(route.path[1:].decode("latin-1"))
    if route.path == b"/token":  # clients of ttyd ask for it; the cookie is what counts here
        return Reply(200, [(b"content-type", b"application/json"), *pages.COMMON], json.dumps({"token": ""}).encode())
    raise NotFound(f"the gateway has no /tty{route.path[:200].decode('latin-1')}")
