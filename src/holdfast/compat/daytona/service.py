"""The Daytona API of one server: its parts, and who may use them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from starlette.requests import HTTPConnection

from holdfast.api.access.tenants import TenantRole
from holdfast.api.errors import HoldfastError
from holdfast.boxes.service.boxes import Boxes
from holdfast.compat.daytona.http.errors import ApiError
from holdfast.compat.daytona.records import RecordStore
from holdfast.compat.daytona.sandbox_record import Sandbox
from holdfast.compat.daytona.sandboxes import Sandboxes
from holdfast.compat.daytona.secrets import DaytonaSecrets, Vault
from holdfast.compat.daytona.snapshot.images import Images
from holdfast.compat.daytona.snapshot.snapshots import Snapshots
from holdfast.compat.daytona.volumes import Volumes
from holdfast.images.registry.pull import Puller
from holdfast.threads.access.credentials import Access, Grant

log = logging.getLogger(__name__)

PREFIX: Final = "/compat/daytona"


class Previews(Protocol):
    """Who may visit the ports of boxes. The server checks it."""

    def preview_token(self, box: str, port: int, seconds: int) -> str:
        """Returns a token for one port of one box."""

    def set_public(self, box: str, public: bool) -> None: ...

    def ends_early(self, token: str, box: str, port: int) -> bool:
        """Whether this is a token of this port that has not expired yet."""

    def expire(self, token: str) -> None:
        """End a token before its time."""


class Links(Protocol):
    """Links to the ports of boxes that have an origin of their own."""

    async def link(self, caller: HTTPConnection, box: str, port: int, token: str | None = None) -> str:
        """The URL of a port, for the caller of a request. With a token, it is all that a visitor needs."""

    async def reopen(self, box: str, port: int, token: str | None) -> None:
        """Serve a link that an earlier server gave."""

    def close_box(self, box: str) -> None:
        """Close the links of a box that was deleted."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the Daytona API needs of a server."""

    access: Access
    boxes: Callable[[], Awaitable[Boxes]]
    records: Callable[[], Awaitable[RecordStore]]
    puller: Callable[[], Awaitable[Puller]]
    network_ready: Callable[[], Awaitable[None]]
    previews: Previews
    links: Links
    secret: bytes
    """Signs file URLs. The key that encrypts secrets is derived from it."""
    check_origin: Callable[[dict[bytes, bytes]], None]
    """Raises for requests of web pages that may not ask this server."""
    until_stopping: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]
    """Ends a stream when the server stops."""
    note_caller: Callable[[HTTPConnection, str | None, Grant], None]
    """Notes who sent a request, for the audit log of the tenant."""
    count_request: Callable[[HTTPConnection], None]
    """Counts a request for the quotas of the tenant. Raises if it is one too many."""
    vault: Callable[[], Awaitable[Vault]]
    """The secrets of the server."""
    of_tenant: Callable[[str | None], Awaitable[Daytona]] | None = None
    """Returns the API of the tenant that a credential names. None if this one serves a single tenant."""


class Daytona:
    """Opened with its first request, and closed with the server."""

    def __init__(self, needs: Dependencies) -> None:
        self.needs = needs
        self._opening: asyncio.Task[Parts] | None = None
        self.closers: list[Callable[[], Awaitable[None]]] = []
        """Called when it closes."""
        self._closed = asyncio.Event()

    def begin(self) -> None:
        """Open it in the background: ports of public sandboxes may be visited before the first request comes."""
        self._opening = asyncio.create_task(self._open(), name="opening the Daytona API")
        self._opening.add_done_callback(_log_failure)

    async def parts(self) -> Parts:
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._open(), name="opening the Daytona API")
        return await asyncio.shield(self._opening)

    async def _open(self) -> Parts:
        boxes, records = await self.needs.boxes(), await self.needs.records()
        images = Images(boxes, records, self.needs.puller, self.needs.network_ready)
        snapshots, volumes = Snapshots(boxes, records, images), Volumes(boxes, records)
        key = hmac.new(self.needs.secret, b"secrets", hashlib.sha256).digest()
        secrets = DaytonaSecrets(boxes, records, self.needs.vault, key)
        sandboxes = Sandboxes(
            boxes,
            records,
            images,
            snapshots,
            volumes,
            secrets,
            self.needs.network_ready,
            self.needs.previews.set_public,
            self._close_ports,
        )
        for sandbox in await sandboxes.all():  # none is being built yet
            self.needs.previews.set_public(sandbox.row.id, sandbox.details.public)
            for token in sandbox.details.expired_previews:
                self.needs.previews.expire(token)
            await self._reopen(sandbox)
        await snapshots.open()
        sandboxes.open()
        return Parts(boxes, sandboxes, snapshots, volumes, secrets)

    def _close_ports(self, box: str) -> None:
        self.needs.previews.set_public(box, False)
        self.needs.links.close_box(box)

    async def _reopen(self, sandbox: Sandbox) -> None:
        """Links of sandboxes outlive the server."""
        for port, token in sandbox.details.links:
            if token is None or self.needs.previews.ends_early(token, sandbox.row.id, port):
                try:
                    await self.needs.links.reopen(sandbox.row.id, port, token)
                except HoldfastError as error:
                    log.warning("the link to port %d of sandbox %s is not served: %s", port, sandbox.id, error)

    async def until_closed(self) -> None:
        """Returns when this API closes, which can be before the server does: its tenant was removed."""
        await self._closed.wait()

    async def close(self) -> None:
        self._closed.set()
        for close in self.closers:
            await close()
        if self._opening is None:
            return
        self._opening.cancel()
        (opened,) = await asyncio.gather(self._opening, return_exceptions=True)
        if isinstance(opened, Parts):
            await opened.sandboxes.close()
            await opened.snapshots.close()

    # --- who is calling ---

    async def admit(self, connection: HTTPConnection) -> Parts:
        """Returns the parts for a caller with an API key. Raises for any other."""
        await self.grant(connection)
        return await self.parts()

    async def of_tenant(self, credential: str | None) -> Daytona:
        """Returns the API of the tenant that a credential names, for what is asked before it is known who asks."""
        return self if self.needs.of_tenant is None else await self.needs.of_tenant(credential)

    async def grant(self, connection: HTTPConnection) -> Grant:
        return await self.grant_to(connection, bearer_of(connection))

    async def grant_to(self, connection: HTTPConnection, credential: str | None) -> Grant:
        """Returns what a credential allows, and counts the request. Raises if it is not enough for this API."""
        grant = await self.needs.access.grant(credential)
        self.needs.note_caller(connection, credential, grant)
        self.needs.count_request(connection)
        grant.check_administer()
        grant.check_role(TenantRole.MEMBER)
        return grant

    async def sandbox(self, connection: HTTPConnection) -> tuple[Parts, Sandbox]:
        """Returns the sandbox that a path names, for a caller with an API key. Raises while it has no box yet."""
        parts = await self.admit(connection)
        return parts, await parts.sandboxes.find(connection.path_params["sandbox"])

    async def any_sandbox(self, connection: HTTPConnection) -> tuple[Parts, Sandbox]:
        """As `sandbox`, but also returns one that has no box yet."""
        parts = await self.admit(connection)
        return parts, await parts.sandboxes.find_any(connection.path_params["sandbox"])

    # --- signed URLs of files ---

    def signing_key(self, sandbox: Sandbox) -> str:
        text = f"daytona files {sandbox.id} {sandbox.record.created_at} {sandbox.details.key_version}"
        return hmac.new(self.needs.secret, text.encode(), hashlib.sha256).hexdigest()

    def check_signature(self, sandbox: Sandbox, method: str, connection: HTTPConnection) -> None:
        """Check the signature that the SDK puts into URLs of files. Raises if it does not hold."""
        query = connection.query_params
        path, expires, signature = query.get("path", ""), query.get("expires", ""), query.get("signature", "")
        if not expires.isascii() or not expires.isdigit() or len(expires) > 12:
            raise ApiError(401, "the signature of this URL does not hold")
        canonical = f"v1:files:{method}:{path}:{int(expires)}".encode()
        digest = hmac.new(self.signing_key(sandbox).encode(), canonical, hashlib.sha256).digest()
        expected = "v1_" + urlsafe_b64encode(digest).rstrip(b"=").decode()
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()):
            raise ApiError(401, "the signature of this URL does not hold")
        if int(expires) and time.time() > int(expires):
            raise ApiError(401, "this URL has expired")
        self.needs.count_request(connection)  # not before: strangers must not use up what the tenant may send


@dataclass(frozen=True, slots=True)
class Parts:
    boxes: Boxes
    sandboxes: Sandboxes
    snapshots: Snapshots
    volumes: Volumes
    secrets: DaytonaSecrets

    @property
    def organization(self) -> str:
        return self.boxes.tenant


def daytona_of(connection: HTTPConnection) -> Daytona:
    daytona: Daytona = connection.app.state.daytona
    return daytona


def base_url(connection: HTTPConnection) -> str:
    """The URL of the API as the caller reaches it."""
    scheme = {"ws": "http", "wss": "https"}.get(connection.url.scheme, connection.url.scheme)
    host = connection.headers.get("host") or "localhost"
    return f"{scheme}://{host}{PREFIX}"


def toolbox_url(connection: HTTPConnection) -> str:
    return f"{base_url(connection)}/toolbox"


def _log_failure(task: asyncio.Task[Parts]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the Daytona API failed to open", exc_info=error)


@asynccontextmanager
async def opened_daytona(needs: Dependencies) -> AsyncIterator[Daytona]:
    daytona = Daytona(needs)
    daytona.begin()
    try:
        yield daytona
    finally:
        await daytona.close()


def bearer_of(connection: HTTPConnection) -> str | None:
    """The credential of a request or a socket."""
    scheme, _, credential = connection.headers.get("authorization", "").partition(" ")
    return credential.strip() or None if scheme.lower() == "bearer" else None
