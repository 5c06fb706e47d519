"""The model gateway: carries what an agent asks of its model to the provider and back, and adds the key on the way.

An agent holds a token of its run. What that grants is found out by who calls `handle`; here it becomes a key, for the
model of that run alone. Bodies go through as they come, both ways, and nothing of them is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import httpx
import orjson

from holdfast.api.errors.models import ModelError
from holdfast.egress.models.headers import (
    ModelRequest,
    find_route,
    forwarded_query,
    headers_for_agent,
    headers_for_provider,
)
from holdfast.egress.models.registry import Endpoint, Models
from holdfast.egress.models.upstream import Upstream
from holdfast.redaction import Scrubber
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

REASON: Final = b"x-holdfast-reason"
"""A header of the gateway's own refusals, which tells them from the provider's."""

_MAX_DIGITS: Final = 15

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
TellTrouble = Callable[[str], Awaitable[None]]
_TROUBLES: Final = ("unreachable", "silent", "broken", "redirect")
"""Reasons for which the provider or the connection to it is to blame, not the agent."""
_SHORTEST: Final = 16
"""Shorter ones are not secret, and may occur as words in an answer."""


class Grant(Protocol):
    """What the token of a run allows. `threads.access.credentials.RunGrant` implements it."""

    @property
    def run(self) -> str: ...

    @property
    def model(self) -> str:
        """`NAME/MODEL`."""
        ...


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Times in seconds, sizes in bytes."""

    body: int = 64 * 1024 * 1024
    """Of a request."""
    body_idle: float = 60.0
    """Between two pieces of a request's body."""
    connect: float = 15.0
    idle: float = 900.0
    """How long a provider may send nothing. One that thinks without streaming is silent for minutes."""
    at_once: int = 64
    """Concurrent requests of one run."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a request, for accounting."""

    run: str
    model: str
    """`NAME/MODEL`, as granted to the run."""
    status: int
    """499 if the agent disconnected first. 502 from the provider, or from us if the provider could not be reached."""
    sent: int
    """Bytes of the request's body."""
    received: int
    """Bytes of the answer's body."""
    milliseconds: int


OnAnswer = Callable[[Answered], None]


class _Refused(Exception):
    """The gateway answers by itself."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class _Left(Exception):
    """The agent has disconnected."""


class _Cut(Exception):
    """The provider's answer was cut off."""


class ModelGateway:
    """Plain ASGI under `/model`, for callers with a grant. The creator closes it."""

    def __init__(
        self,
        models: Models,
        make_upstream: Callable[[], Upstream],
        *,
        limits: GatewayLimits | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        """`make_upstream` is called on the first request. `on_answer` is called after each request."""
        self._models = models
        self._make_upstream = make_upstream
        self._upstream: Upstream | None = None
        self._limits = limits or GatewayLimits()
        self._on_answer = on_answer or (lambda answered: None)
        self._busy: Counter[str] = Counter()

    async def close(self) -> None:
        """Closing twice has no effect."""
        if self._upstream is not None:
            upstream, self._upstream = self._upstream, None
            await upstream.close()

    async def handle(
        self, scope: Any, receive: Receive, send: Send, grant: Grant, *, tell: TellTrouble | None = None
    ) -> None:
        """Answer a request of the run that has this grant.

        Before the agent gets an error, `tell` is called with the reason why the provider gave no answer, since not
        every agent reports it. If the provider breaks off in the middle, this returns without completing the answer.
        Then the server closes the connection, and the agent sees a broken one as it would have without the gateway.
        """
        exchange = _Exchange(scope, receive, send, self._limits)
        began = time.monotonic()
        status = 499
        try:
            status = await self._answer(exchange, grant)
        except _Refused as refused:
            status = refused.status
            if tell is not None and refused.reason in _TROUBLES:
                await tell(refused.message)
            await exchange.refuse(refused.status, refused.reason, refused.message)
        except _Left:
            pass
        except _Cut as cut:
            status = 502
            log.warning("the answer of model %s for run %s broke off: %s", grant.model, grant.run, cut)
        finally:
            spent = round((time.monotonic() - began) * 1000)
            answered = Answered(grant.run, grant.model, status, exchange.sent, exchange.received, spent)
            log.info("model %s for run %s: %d", grant.model, grant.run, status, extra={"status": status, "ms": spent})
            self._on_answer(answered)

    async def refuse(self, scope: Any, send: Send, status: int, message: str) -> None:
        """Send an error in a form that agents understand, whatever API they use."""
        await _refuse(scope, send, status, "refused", message)

    # --- one request ---

    async def _answer(self, exchange: _Exchange, grant: Grant) -> int:
        scope = exchange.scope
        route = find_route(scope["method"], scope["raw_path"])
        if route is None:
            raise _Refused(
                404, "path", "the model gateway does not serve this path: it only forwards requests for answers"
            )
        try:
            choice = self._models.resolve(grant.model)
        except ModelError as error:
            raise _Refused(403, "model", _with_hint(error)) from None
        if route == "alive":
            return await exchange.answer(200, {})
        if route == "models":
            return await exchange.answer(200, _catalog(choice.model))
        assert isinstance(route, ModelRequest)
        query = forwarded_query(scope["query_string"])
        if query is None:
            raise _Refused(400, "query", "the query of this request is not supported by models")
        try:
            endpoint = self._models.endpoint(choice.name, route.api)
        except ModelError as error:
            raise _Refused(403, "model", _with_hint(error)) from None
        if endpoint is None:
            spoken = ", ".join(choice.apis)
            raise _Refused(404, "api", f"model {choice.name} does not speak {route.api}: it speaks {spoken}")
        if self._busy[grant.run] >= self._limits.at_once:
            raise _Refused(429, "busy", f"this run asks its model {self._limits.at_once} things at once already")
        self._busy[grant.run] += 1
        try:
            return await self._forward(exchange, route, endpoint, query)
        finally:
            self._busy[grant.run] -= 1
            if not self._busy[grant.run]:
                del self._busy[grant.run]

    async def _forward(self, exchange: _Exchange, route: ModelRequest, endpoint: Endpoint, query: str) -> int:
        """Returns when the answer is complete or the agent has disconnected. Then the provider's work is cancelled
        too."""
        exchange.check_length()
        carrying = asyncio.create_task(self._relay(exchange, route, endpoint, query))
        watching = asyncio.create_task(exchange.until_disconnected())
        try:
            await asyncio.wait((carrying, watching), return_when=asyncio.FIRST_COMPLETED)
            if carrying.done():
                return carrying.result()
            raise _Left
        finally:
            for task in (carrying, watching):
                task.cancel()
            await asyncio.gather(carrying, watching, return_exceptions=True)

    async def _relay(self, exchange: _Exchange, route: ModelRequest, endpoint: Endpoint, query: str) -> int:
        body = exchange.body()
        request = httpx.Request(
            "POST",
            f"{endpoint.url}{route.path}{f'?{query}' if query else ''}",
            headers=headers_for_provider(exchange.scope["headers"], route.api, endpoint.key),
            content=body,
            extensions={"timeout": self._timeouts()},
        )
        host = urlsplit(endpoint.url).netloc
        try:
            response = await self._send(request, host, endpoint)
        finally:
            await body.aclose()
            exchange.has_read()
        try:
            if 300 <= response.status_code < 400:
                where = urlsplit(response.headers.get("location", "")).netloc[:200] or "somewhere"
                message = f"{host} sends us on to {where}, where its key does not go: correct the base URL"
                raise _Refused(502, "redirect", message)
            return await exchange.pass_on(response, Scrubber(endpoint.key))
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request, host: str, endpoint: Endpoint) -> httpx.Response:
        """Returns the provider's answer without its body."""
        if self._upstream is None:
            self._upstream = self._make_upstream()
        try:
            return await self._upstream.send(request)
        except httpx.PoolTimeout:
            raise _Refused(503, "busy", "too many requests are in progress: try again") from None
        except httpx.ConnectTimeout:
            raise _Refused(504, "unreachable", f"{host} did not answer within {self._limits.connect:g} s") from None
        except httpx.ConnectError as error:
            raise _Refused(502, "unreachable", f"{host} cannot be reached: {str(error) or 'no connection'}") from None
        except httpx.TimeoutException:
            raise _Refused(504, "silent", f"{host} sent nothing for {self._limits.idle:g} s") from None
        except httpx.TransportError as error:
            message = f"{host} broke off: {str(error) or type(error).__name__}"
            raise _Refused(502, "broken", Scrubber(endpoint.key).text(message)) from None

    def _timeouts(self) -> dict[str, float]:
        limits = self._limits
        return {"connect": limits.connect, "read": limits.idle, "write": limits.body_idle, "pool": limits.connect}


class _Exchange:
    """One request of an agent and its answer, in terms of ASGI."""

    def __init__(self, scope: Any, receive: Receive, send: Send, limits: GatewayLimits) -> None:
        self.scope = scope
        self.sent = 0
        self.received = 0
        self._receive = receive
        self._send = send
        self._limits = limits
        self._begun = False
        self._read = asyncio.Event()
        """Set when the whole body has arrived."""

    def check_length(self) -> None:
        """Refuse a body whose declared length is too large before it is sent."""
        for name, value in self.scope["headers"]:
            if name.lower() == b"content-length" and (len(value) > _MAX_DIGITS or int(value) > self._limits.body):
                raise self._too_large()

    async def body(self) -> AsyncGenerator[bytes]:
        while True:
            try:
                async with time_limit(self._limits.body_idle):
                    message = await self._receive()
            except TimeoutError:
                raise _Refused(408, "slow", "the request did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise _Left
            piece = message.get("body", b"")
            self.sent += len(piece)
            if self.sent > self._limits.body:
                raise self._too_large()
            if piece:
                yield piece
            if not message.get("more_body"):
                self.has_read()
                return

    def has_read(self) -> None:
        """The rest of the body is not needed."""
        self._read.set()

    async def until_disconnected(self) -> None:
        """Returns when the agent has disconnected. After the body, ASGI delivers nothing else."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def pass_on(self, response: httpx.Response, scrubber: Scrubber) -> int:
        forwarded = headers_for_agent(response.headers.raw)
        headers = [(name, scrubber.text(value.decode("latin-1")).encode("latin-1")) for name, value in forwarded]
        await self._start(response.status_code, headers)
        try:
            async for piece in response.aiter_raw():
                self.received += len(piece)
                if clean := scrubber.feed(piece):
                    async with time_limit(self._limits.idle):
                        await self._send({"type": "http.response.body", "body": clean, "more_body": True})
        except TimeoutError:
            raise _Left from None
        except httpx.TransportError as error:
            raise _Cut(str(error) or type(error).__name__) from None
        await self._send({"type": "http.response.body", "body": scrubber.rest()})
        return response.status_code

    async def answer(self, status: int, content: Any) -> int:
        """Send our own answer."""
        body = orjson.dumps(content)
        length = b"%d" % len(body)
        await self._start(status, [(b"content-type", b"application/json"), (b"content-length", length)])
        await self._send({"type": "http.response.body", "body": b"" if self.scope["method"] == "HEAD" else body})
        return status

    async def refuse(self, status: int, reason: str, message: str) -> None:
        if not self._begun:
            self._begun = True
            await _refuse(self.scope, self._send, status, reason, message)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _too_large(self) -> _Refused:
        return _Refused(413, "too_large", f"a request to a model has at most {self._limits.body} bytes")


_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


async def _refuse(scope: Any, send: Send, status: int, reason: str, message: str) -> None:
    """In the format of all APIs at once: each finds its own fields in it."""
    kind = _TYPES.get(status, "api_error")
    error = {"type": kind, "message": f"Holdfast: {message}", "code": reason, "param": None}
    body = orjson.dumps({"type": "error", "error": error})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (REASON, reason.encode()),
    ]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _catalog(model: str) -> dict[str, Any]:
    """Returns the only model of a run, in the format of all APIs at once."""
    both = {"id": model, "object": "model", "created": 0, "owned_by": "holdfast"}
    data = {**both, "type": "model", "display_name": model, "created_at": "1970-01-01T00:00:00Z"}
    return {"object": "list", "data": [data], "has_more": False, "first_id": model, "last_id": model}


def _with_hint(error: ModelError) -> str:
    return f"{error.message}: {error.hint}" if error.hint else error.message
