"""The stream API of the server: the protocol, live tails, subscriptions, and access to them."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qs

from holdfast.api.access.tenants import TenantRole
from holdfast.api.errors import Forbidden, InvalidRequest, NotFound, Refused
from holdfast.server.tenant.audit import AuditLog
from holdfast.server.tenant.quotas import Quotas
from holdfast.server.wire.login_cookie import login_of
from holdfast.server.wire.origins import OriginPolicy
from holdfast.threads.access.authority import KEY, TOKEN, Author
from holdfast.threads.access.credentials import Access, Grant
from holdfast.threads.access.tenant_names import tenant_named
from holdfast.threads.protocol.framing import WHOLE_BYTES
from holdfast.threads.protocol.messages import JSON_TYPE, Channel, Request, Response, error_body, error_response
from holdfast.threads.protocol.surface import StreamSurface, fork_source, stream_path
from holdfast.threads.protocol.tails import Tails
from holdfast.threads.store import Acknowledgement, Appended
from holdfast.threads.subscriptions import SubscriptionRoutes, is_control, needs_grant

log = logging.getLogger(__name__)

_PREFLIGHT: Final = [
    (b"access-control-allow-methods", b"GET, HEAD, PUT, POST, DELETE, OPTIONS"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, if-none-match, producer-id, producer-epoch, producer-seq, stream-seq,"
        b" stream-ttl, stream-expires-at, stream-closed, stream-forked-from, stream-fork-offset,"
        b" stream-fork-sub-offset",
    ),
    (b"access-control-max-age", b"600"),
]


@dataclass(frozen=True, slots=True)
class StreamTenant:
    """The streams of one tenant, and who may use them."""

    surface: StreamSurface
    tails: Tails
    access: Access
    subscriptions: SubscriptionRoutes
    quotas: Quotas
    audit: AuditLog


class StreamTenants(Protocol):
    """Finds the tenant of a request by the name in its credential. An unknown name is that of the default tenant, which
    refuses the credential.
    """

    def opened_streams(self, name: str) -> StreamTenant | None:
        """Returns None if the tenant has to be opened first."""
        ...

    async def streams(self, name: str) -> StreamTenant: ...

    def all_streams(self) -> Iterable[StreamTenant]:
        """Those of all open tenants."""
        ...


class StreamService:
    """Serves one request, independent of the transport: authenticates, dispatches, and answers errors in one form."""

    def __init__(
        self, tenants: StreamTenants, origins: OriginPolicy, *, max_body: int, public_url: str | None = None
    ) -> None:
        """`public_url` is the one that browsers use, if the operator named it."""
        self._tenants = tenants
        self._public_url = public_url
        self.origins = origins
        self.max_body = max_body
        self.answered: Counter[tuple[str, int]] = Counter()
        """Requests by method and status."""
        self._log_all = log.isEnabledFor(logging.DEBUG)
        self._prefix = secrets.token_hex(4)
        self._ids = itertools.count(1)

    def next_request_id(self) -> str:
        return f"{self._prefix}{next(self._ids):08x}"

    def note(self, request: Request, status: int) -> None:
        """Count a response. Usually only failures are logged, because this is the hot path."""
        self.answered[request.method, status] += 1
        if status >= 500 or self._log_all:
            details = {"method": request.method, "path": request.path, "status": status, "request_id": request.id}
            level = logging.WARNING if status >= 500 else logging.DEBUG
            log.log(level, "%s %s %s", request.method, request.path, status, extra=details)

    def _credential(self, request: Request) -> str | None:
        """The credential of a request: in its Authorization header, or in the cookie of a page of ours."""
        return bearer(request.headers) or login_of(request.headers, request.method, self._public_url)

    @property
    def open_tails(self) -> int:
        return sum(each.tails.open_count for each in self._tenants.all_streams())

    def takes_at_once(self, request: Request) -> bool:
        """Returns whether `append` can serve this append; `respond` serves all others."""
        return len(request.body) <= WHOLE_BYTES

    def append(self, raw_path: str, request: Request) -> Acknowledgement | None:
        """The hot path, without a task and with a single pass over the bytes. For appends that `takes_at_once` accepts.

        Returns None if the store has to look up the credential, or a large append is in progress: then `respond` serves
        the request.
        """
        request.path = path = stream_path(raw_path)
        _check_not_reserved(path)
        credential = self._credential(request)
        tenant = self._tenants.opened_streams(tenant_named(credential))
        if tenant is None or not tenant.surface.takes_at_once:
            return None
        grant = tenant.access.grant_known(credential)
        if grant is not None:
            tenant.quotas.take_request()
            tenant.quotas.check_storage()
        return None if grant is None else tenant.surface.append(request, _author(grant, request, path))

    def appended(self, request: Request, appended: Appended) -> Response:
        return StreamSurface.appended(request, appended)

    async def respond(self, raw_path: str, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(204, list(_PREFLIGHT))
        request.path = path = stream_path(raw_path)
        if is_control(path):
            return await self._respond_control(request)
        tenant, author, credential, grant = await self._authorize(request, path)
        if request.method == "GET" and b"live=" in request.query:
            async with tenant.access.while_granted(credential, grant):
                return await tenant.surface.respond(request, author)
        response = await tenant.surface.respond(request, author)
        if request.method == "DELETE":
            await tenant.audit.record(grant, "DELETE", f"/v1/stream/{path}", response.status)
        return response

    async def tail(self, raw_path: str, request: Request, channel: Channel) -> None:
        request.path = path = stream_path(raw_path)
        tenant, _, credential, grant = await self._authorize(request, path, in_url=True)
        async with tenant.access.while_granted(credential, grant):
            await tenant.tails.serve(request, channel)

    def refuse(self, error: BaseException, request_id: str) -> Response:
        """Turn any failure into a response. Unexpected ones are logged, without details in the response."""
        if isinstance(error, Refused):
            return error_response(error, request_id)
        if isinstance(error, UnicodeDecodeError):
            return error_response(InvalidRequest("the request is not valid UTF-8"), request_id)
        log.error("a request failed", exc_info=error, extra={"request_id": request_id})
        message = "the server failed; its log has details under this request id"
        return Response(500, [JSON_TYPE], error_body("internal", message, request_id))

    async def _respond_control(self, request: Request) -> Response:
        path, credential = request.path, self._credential(request)
        name = tenant_named(credential)
        if credential is None and (names := parse_qs(request.query.decode("latin-1")).get("tenant")):
            name = names[0]  # of the public keys of a tenant, which need no credential
        tenant = await self._tenants.streams(name)
        if needs_grant(path):
            grant = await tenant.access.grant(credential)
            grant.check_administer()
            grant.check_role(TenantRole.MEMBER)
            tenant.quotas.take_request()
        response = await tenant.subscriptions.handle(request.method, path, request.headers, request.body, request.id)
        if response is None:
            raise NotFound(f"there is no {path}")
        return response

    async def _authorize(
        self, request: Request, path: str, *, in_url: bool = False
    ) -> tuple[StreamTenant, Author, str | None, Grant]:
        """Returns the tenant, who writes, the credential, and what it allows."""
        _check_not_reserved(path)
        credential = self._credential(request)
        if credential is None and in_url:
            # A browser's EventSource cannot send headers.
            values = parse_qs(request.query.decode("latin-1")).get("token")
            credential = values[0] if values else None
        tenant = await self._tenants.streams(tenant_named(credential))
        grant = await tenant.access.grant(credential)
        author = _author(grant, request, path)
        tenant.quotas.take_request()
        if request.method in ("POST", "PUT"):
            tenant.quotas.check_storage()
        return tenant, author, credential, grant


def _check_not_reserved(path: str) -> None:
    if is_control(path):
        raise Forbidden(f"{path} is reserved and cannot be a stream")


def _author(grant: Grant, request: Request, path: str) -> Author:
    """Return the grant of the caller. Raises `Forbidden` if the caller may not do this to the stream."""
    grant.check_stream(path, request.method)
    if request.method == "PUT" and (source := fork_source(request)) is not None:
        grant.check_stream(source, "GET")
    if grant.thread is None:
        return KEY
    if request.headers.get(b"stream-closed", b"").lower() == b"true":
        raise Forbidden("a thread token cannot close its thread: use an API key")
    return TOKEN


def bearer(headers: dict[bytes, bytes]) -> str | None:
    """The credential of a request, or None."""
    value = headers.get(b"authorization")
    if value is None:
        return None
    scheme, _, credential = value.decode("latin-1").partition(" ")
    return credential.strip() if scheme.lower() == "bearer" and credential.strip() else None
