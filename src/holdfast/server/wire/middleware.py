"""Surrounds every REST request: gives it an id, checks its origin, limits its body, logs and counts it."""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import DISK_HINT
from holdfast.server.telemetry import logs
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.wire.origins import OriginPolicy
from holdfast.threads.access.credentials import Access
from holdfast.threads.protocol.messages import error_body

log = logging.getLogger(__name__)


GRANT: Final = "holdfast.grant"
"""Where the scope of a request has who sent it, once its credential was checked."""
CREDENTIAL: Final = "holdfast.credential"
"""The credential itself, where it can be taken away while an answer is streamed."""
_UNSAFE: Final = ("POST", "PUT", "PATCH", "DELETE")
_FREQUENT: Final = re.compile(
    r"POST /v1/boxes/\{id\}/(exec|files/.*|processes.*)|(PUT|DELETE) /v1/boxes/\{id\}/(files|tree)"
    r"|POST /v1/interpreters/\{id\}/execute.*|POST /v1/(completions|runs/check|environments/check)"
    r"|POST /v1/threads/\{id\}/chat|POST /v1/tokens/renew"
)
"""Routes that change things inside a box or a thread, by the hundred. Their effect is on the thread."""
_TOOLBOX: Final = "/compat/daytona/toolbox/"
"""The same of the Daytona API, whose routes are in an app of their own."""


class Audit(Protocol):
    def record(self, grant: Any, method: str, path: str, status: int) -> Awaitable[None]: ...


class RequestServices(Protocol):
    @property
    def metrics(self) -> Metrics: ...

    @property
    def origins(self) -> OriginPolicy: ...

    @property
    def max_body(self) -> int: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def access(self) -> Access: ...

    def next_request_id(self) -> str: ...


def error_answer(
    status: int, code: str, message: str, hint: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    body = error_body(code, message, logs.request_id.get() or "", hint)
    return Response(body, status, headers, media_type="application/json")


def refusal(error: HoldfastError) -> Response:
    headers = {name.decode(): value.decode("latin-1") for name, value in error.headers}
    return error_answer(error.status or 500, error.code, error.message, error.hint, headers)


def failure(error: Exception) -> Response:
    """The answer to an unexpected failure. A full disk, which can happen anywhere, is reported as such."""
    log.error("a request failed", exc_info=error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error_answer(507, "no_space", "the server's disk is full: this may be only partly done", DISK_HINT)
    return error_answer(500, "internal", "the server failed; its log has details under this request id")


_STREAMED: Final = re.compile(
    r"PUT /v1/boxes/[^/]+/(files|tree)|POST /v1/boxes/[^/]+/processes/[^/]+/stdin|POST /v1/(snapshots|images)/import"
    r"|POST /v1/workspaces|PUT /v1/interpreters/[^/]+/state"
    r"|POST /compat/daytona/toolbox/[^/]+/files/(bulk-upload|upload|upload-v2)"
)


def is_streamed(method: str, path: str) -> bool:
    """Returns whether a body is streamed, and may have any size."""
    return _STREAMED.fullmatch(f"{method} {path}") is not None


class RequestMiddleware:
    """The outermost ASGI layer of the REST API. No exception leaves it."""

    def __init__(self, app: ASGIApp, services: RequestServices) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id = self._services.next_request_id()
        token = logs.request_id.set(id)
        answer = _Answer(send, id, lambda status: self._audit(scope, status), lambda: self._watched(scope))
        began = time.perf_counter()
        try:
            self._services.origins.check(dict(scope["headers"]))
            bounded = receive if is_streamed(scope["method"], scope["path"]) else self._bounded(receive)
            await self._app(scope, bounded, answer)
        except HoldfastError as error:
            await answer.instead(refusal(error), scope)
        except Exception as error:
            await answer.instead(failure(error), scope)
        finally:
            self._note(scope, answer.status, time.perf_counter() - began)
            if not answer.started:  # the client left
                self._audit(scope, answer.status)
            await answer.stop_watching()
            logs.request_id.reset(token)

    def _watched(self, scope: Scope) -> AbstractAsyncContextManager[None] | None:
        """Cuts an answer that is streamed when its caller loses the right to it: it must not look complete."""
        if CREDENTIAL not in scope:
            return None
        return self._services.access.watched(scope[CREDENTIAL], scope[GRANT], scope["state"]["transport"].abort)

    def _bounded(self, receive: Receive) -> Receive:
        size = 0
        limit = self._services.max_body

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, f"a request body has at most {limit} bytes")
            return message

        return bounded

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method, path = scope["method"], scope["path"]
        details: dict[str, Any] = {"method": method, "path": path, "status": status, "ms": round(seconds * 1000, 1)}
        log.log(logging.ERROR if status >= 500 else logging.INFO, "%s %s %s", method, path, status, extra=details)
        self._services.metrics.count(method, status)

    def _audit(self, scope: Scope, status: int) -> Awaitable[None] | None:
        """Record a request that changes something, or was refused. The result, if any, ends when that is on disk."""
        method, path = scope["method"], scope["path"]
        if GRANT not in scope:
            return None
        if status not in (401, 403):
            route = getattr(scope.get("route"), "path", path)
            is_frequent = path.startswith(_TOOLBOX) or _FREQUENT.fullmatch(f"{method} {route}") is not None
            if is_frequent or method not in _UNSAFE:
                return None
        return self._services.audit.record(scope[GRANT], method, path, status)


class _Answer:
    """Forwards the app's answer once it is recorded, adds the common headers, and remembers how much was sent."""

    def __init__(
        self,
        send: Send,
        id: str,
        record: Callable[[int], Awaitable[None] | None],
        watched: Callable[[], AbstractAsyncContextManager[None] | None],
    ) -> None:
        self._send = send
        self._id = id
        self._record = record
        self._watched = watched
        self._watching: AbstractAsyncContextManager[None] | None = None
        self._streams = False
        self.started = False
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            if (recorded := self._record(self.status)) is not None:
                await recorded
            message = {
                **message,
                "headers": [
                    *message["headers"],
                    (b"x-request-id", self._id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ],
            }
        elif message.get("more_body") and not self._streams:
            self._streams = True
            if (watching := self._watched()) is not None:
                await watching.__aenter__()
                self._watching = watching
        await self._send(message)

    async def stop_watching(self) -> None:
        if self._watching is not None:
            await self._watching.__aexit__(None, None, None)

    async def instead(self, response: Response, scope: Scope) -> None:
        """Send this answer, unless the app has started its own."""
        if not self.started:
            await response(scope, _never, self)


async def _never() -> Message:
    return {"type": "http.disconnect"}
