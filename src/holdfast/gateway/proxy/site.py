"""What the proxy needs to know about a place that requests go to: who may visit it, and how to connect to it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from holdfast.api.box.process import Connection
from holdfast.api.errors import HoldfastError
from holdfast.gateway.proxy.headers import Header
from holdfast.threads.protocol.messages import error_body

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that may pass to a program in a box."""

    method: bytes
    path: bytes
    """With the query, without our token."""
    headers: list[Header]
    """The headers for the box, without framing."""
    clean: Callable[[list[Header]], list[Header]]
    """Returns the headers of an answer that may pass, without framing. Raises `BadAnswer`."""
    over: asyncio.Future[None] | None = None
    """Done when the visitor loses the right to be there: the connection is closed then."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of our own, instead of a visit. Its headers are without framing."""

    status: int
    headers: list[Header]
    body: bytes = b""


@dataclass(slots=True)
class Lease:
    """A connection to a program, for one request."""

    connection: Connection
    can_keep: bool = False
    """Whether the site can keep it for another request of the same visitor."""
    reused: bool = False
    """Whether it has served another request before. The program may have closed it meanwhile."""
    keep: bool = False
    """Set by the relay if another request may follow. Otherwise the connection is closed."""


class Site(ABC):
    """A place that requests go to. There is one for each request."""

    @abstractmethod
    async def admit(
        self, method: str, query: bytes, headers: list[Header], *, scheme: str, upgrade: bool
    ) -> Visit | Reply:
        """Decide about a request by its credentials and headers. Raises if it may not pass."""

    @abstractmethod
    def connected(self, visit: Visit, *, may_reuse: bool = False) -> AbstractAsyncContextManager[Lease]:
        """Connect to the program in the box, which counts as in use meanwhile. `may_reuse` allows a connection that was
        kept after an earlier request."""

    def refuse(self, error: Exception, request_id: str, headers: list[Header]) -> Reply:
        """Turn a failure into an answer. `headers` are those of the request."""
        return refusal(error, request_id)


def refusal(error: Exception, request_id: str) -> Reply:
    """The answer to a failure, for programs. Unexpected ones are logged, without details in the answer."""
    kind: Header = (b"content-type", b"application/json")
    if isinstance(error, HoldfastError):
        body = error_body(error.code, error.message, request_id, error.hint)
        return Reply(error.status or 500, [kind, *error.headers], body)
    log.error("a request to a program in a box failed", exc_info=error, extra={"request_id": request_id})
    message = "the server failed; its log has details under this request id"
    return Reply(500, [kind], error_body("internal", message, request_id))
