"""The thread's hot path below ASGI: a uvicorn HTTP protocol that answers the stream surface itself.

Requests under `/v1/stream/` are parsed, answered and written here, without a task or a scope per append; everything
else goes to the ASGI app as usual. Why not plain ASGI: docs/decisions/0003-hot-path-below-asgi.md. Upgraded connections
are handed over to uvicorn's WebSocket protocol, or directly to a port of a box.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import httptools

from holdfast.api.errors import Refused, TooLarge
from holdfast.server.wire.box_hosts import PreviewAddress
from holdfast.server.wire.coalesced_writes import CoalescedWrites
from holdfast.server.wire.dispatch import Dispatch, PortDispatch
from holdfast.server.wire.streams import StreamService
from holdfast.server.wire.tenant_dispatch import TenantDispatch
from holdfast.server.wire.uvicorn_adapter import STATUS_LINE, HttpToolsProtocol
from holdfast.threads.protocol.messages import JSON_TYPE, Request, Response, Rest, error_body, error_response
from holdfast.threads.protocol.surface import PREFIX, parse_query
from holdfast.threads.store import Appended
from holdfast.threads.subscriptions import is_control

_PREFIX: Final = PREFIX.encode()
_BOXES: Final = b"/v1/boxes/"
_COMPLETIONS: Final = b"/v1/completions"
_SOCKETS: Final = (_BOXES, b"%b/socket" % _COMPLETIONS, b"/compat/daytona/")
"""Prefixes of paths that can be WebSockets."""
_MAX_HEADER_BYTES: Final = 64 * 1024
_MAX_URL_BYTES: Final = 16 * 1024
_SECURITY: Final = b"x-content-type-options: nosniff\r\ncross-origin-resource-policy: cross-origin\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_CONGESTED_BYTES: Final = 256 * 1024
_LINGER_SECONDS: Final = 5.0
_SLOWEST_BODY: Final = 8 * 1024
"""Bytes per second that give a body more time to arrive."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)(?=[ \t]*\r\n)", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_MOST_DIGITS: Final = 7


class Exchange:
    """One request to the stream surface and its response. Takes the place of uvicorn's request cycle."""

    __slots__ = (
        "body",
        "chunked",
        "disconnected",
        "keep_alive",
        "message_event",
        "refusal",
        "request",
        "response_complete",
        "size",
        "started",
        "target",
        "task",
        "whole",
        "wire",
    )

    def __init__(
        self, wire: StreamProtocol, request: Request, target: str, *, keep_alive: bool, chunked: bool = True
    ) -> None:
        self.wire = wire
        self.request = request
        self.target = target
        """The path after the prefix, still quoted."""
        self.keep_alive = keep_alive
        self.chunked = chunked
        """Whether the client understands a chunked body; HTTP/1.0 reads to the end of the connection."""
        self.refusal: Response | None = None
        """The answer, if it is known before the request's turn."""
        self.body: list[bytes] = []
        self.size = 0
        self.whole = False
        self.started = False
        self.response_complete = False
        self.disconnected = False
        self.task: asyncio.Task[None] | None = None
        self.message_event = _NO_EVENT

    # Channel

    def start(self, response: Response) -> None:
        if self.disconnected or self.started:
            return
        self.started = True
        self.wire.service.note(self.request, response.status)
        self.wire.write(self._head(response, _CHUNKED if self.chunked else b""))

    def write(self, data: bytes) -> None:
        if not self.disconnected and not self.response_complete:
            self.wire.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def finish(self) -> None:
        if self.disconnected or self.response_complete:
            return
        if self.chunked:
            self.wire.write(b"0\r\n\r\n")
        self._complete()

    @property
    def congested(self) -> bool:
        return self.wire.flow.write_paused and not self.disconnected

    async def drain(self) -> None:
        await self.wire.flow.drain()

    # Whole responses

    def respond(self, response: Response) -> None:
        if self.disconnected or self.started:
            return
        self.started = True
        status, body = response.status, response.body
        self.wire.service.note(self.request, status)
        if status in (204, 304) or self.request.method == "HEAD":
            self.wire.write(self._head(response, b""))
        else:
            self.wire.write(self._head(response, b"content-length: %d\r\n" % len(body)) + body)
        self._complete()

    def respond_appended(self, appended: Appended | None, error: Refused | None) -> None:
        """Answer an append with its result or its error."""
        service = self.wire.service
        if appended is not None:
            self.respond(service.appended(self.request, appended))
        elif error is not None:
            self.respond(service.refuse(error, self.request.id))

    async def stream(self, response: Response, rest: Rest) -> None:
        """Send a response whose length is known, as fast as the client reads it."""
        if self.disconnected or self.started:
            return
        self.started = True
        self.wire.service.note(self.request, response.status)
        length = len(response.body) + rest.length
        self.wire.write(self._head(response, b"content-length: %d\r\n" % length) + response.body)
        async for piece in rest.pieces:
            while self.congested:
                await self.drain()
            if self.disconnected:
                return
            self.wire.write(piece)
        self._complete()

    def _head(self, response: Response, framing: bytes) -> bytes:
        request = self.request
        lines = [STATUS_LINE[response.status], _COMMON.encode(self.wire.server_state.default_headers)]
        headers = response.headers
        origin = request.headers.get(b"origin")
        if origin is not None:
            headers = headers + self.wire.service.origins.response_headers(origin)
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        lines += (b"x-request-id: ", request.id.encode(), b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines += (framing, b"\r\n")
        return b"".join(lines)

    def _complete(self) -> None:
        self.response_complete = True
        self.wire.exchange_complete(self)


class _CommonHeaders:
    """The headers of every response, encoded once for each list that uvicorn makes, which is one a second."""

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._encoded = b""

    def encode(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._headers:
            self._encoded = _SECURITY + b"".join([b"%b: %b\r\n" % header for header in headers])
            self._headers = headers
        return self._encoded


_COMMON: Final = _CommonHeaders()


class _NoEvent:
    """Takes the place of the event that uvicorn sets for its own cycles. Nothing waits for ours."""

    def set(self) -> None:
        pass


_NO_EVENT: Any = _NoEvent()


class _StopReading(Exception):
    """Stops parsing, because an answer that ends the connection is being sent."""


def _is_sse(query: bytes) -> bool:
    return b"live=" in query and parse_query(query).get("live") == "sse"


def _is_live(cycle: Any) -> bool:
    return isinstance(cycle, Exchange) and b"live=" in cycle.request.query and not cycle.response_complete


def _ends_with_client(cycle: Any, front: Dispatch | PortDispatch | TenantDispatch) -> bool:
    """Whether a request ends when its client leaves: work in a box, which nothing else would end, and requests to a
    model, which cost money."""
    if cycle is None or isinstance(cycle, Exchange) or cycle.response_complete:
        return False
    scope = cycle.scope
    return bool(scope["raw_path"].startswith((_BOXES, _COMPLETIONS))) or front.ends_with_client(
        scope["headers"], scope["raw_path"], scope["state"].get("preview")
    )


class StreamProtocol(HttpToolsProtocol):
    """A connection. Reads requests in order; answers stream requests itself, in order."""

    def __init__(
        self,
        *args: Any,
        service: StreamService,
        front: Dispatch | PortDispatch | TenantDispatch,
        preview: PreviewAddress | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.service = service
        self.front = front
        self._preview = preview
        """The port of a box for which the address stands that the client connected to."""
        self._upgrading = False
        """The last request on this connection, after which it no longer speaks HTTP."""
        self.reading_since: float | None = None
        """When the incomplete request began; for the sweep of slow clients."""
        self._reading_head = False
        self._head_bytes = 0
        """Bytes of an incomplete head."""
        self._header_bytes = 0
        self._deaf = False
        """Whether further input is discarded."""
        self._hanging_up: asyncio.TimerHandle | None = None
        self.cycle: Any = None
        self._answering: Any = None
        """The cycle whose turn it is; `cycle` is the latest one."""
        self._repeated: RepeatedHead | None = None
        """The head of the last append, which the next one usually repeats."""
        self._idle_since = 0.0
        """When the last response was complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_CONGESTED_BYTES)
        self.write = transport.write
        self.reading_since = self._idle_since = self.loop.time()
        self._lost = self.loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set_result(None)
        if self._hanging_up is not None:
            self._hanging_up.cancel()
        for cycle in {self._answering, self.cycle, *(queued for queued, _ in self.pipeline)}:
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
                if isinstance(cycle, Exchange) and cycle.task is not None:
                    cycle.task.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to stay open. A client that has finished sending still gets answers. One that was reading live, or in
        the middle of a request, has left."""
        cycle = self.cycle
        if self._deaf or cycle is None or cycle.response_complete or self._is_coming_in(cycle):
            return False
        cycles = (self._answering, *(queued for queued, _ in self.pipeline))
        if any(_is_live(each) or _ends_with_client(each, self.front) for each in cycles):
            return False
        cycle.keep_alive = False
        return True

    # Parsing

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._reading_head = True
        self._upgrading = False
        self._head_bytes = self._header_bytes = 0
        self.reading_since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > _MAX_URL_BYTES:
            self._refuse_connection(414, "uri_too_long", f"a URL has at most {_MAX_URL_BYTES} bytes")
            raise _StopReading

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:
            self._refuse_headers()
            raise _StopReading
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._reading_head = False
        if self._deaf or self.transport.is_closing():
            return
        if not self.url.startswith(_PREFIX):
            self._hand_to_asgi()
            return
        headers = dict(self.headers)
        if self._is_of_a_box(headers):
            self._hand_to_asgi()  # all paths of such a host belong to the box
            return
        target, _, query = self.url[len(_PREFIX) :].partition(b"?")
        method = self.parser.get_method().decode("ascii")
        request = Request(method, "", query.partition(b"#")[0], headers, id=self.service.next_request_id())
        modern = self.parser.get_http_version() == "1.1"
        keep_alive = modern and self.parser.should_keep_alive()
        exchange = Exchange(self, request, target.decode("ascii"), keep_alive=keep_alive, chunked=modern)
        length = request.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.service.max_body:
            exchange.refusal = self._too_large(exchange)
        self._take_turn(exchange)

    def _learn_head(self, data: bytes) -> None:
        """Keep the head of an append that is complete in `data`. If the next one repeats it, it needs no parsing."""
        exchange = self.cycle
        self._repeated = None
        if isinstance(exchange, Exchange) and exchange.whole and exchange.keep_alive and not self.expect_100_continue:
            request = exchange.request
            if request.method == "POST":
                self._repeated = RepeatedHead.learn(data, request, exchange.target)

    def _repeat(self, head: RepeatedHead, body: bytes) -> None:
        """Answer a request whose head was parsed before. No other request is in progress on this connection."""
        request = Request("POST", "", head.query, head.headers, body, id=self.service.next_request_id())
        exchange = Exchange(self, request, head.target, keep_alive=True)
        exchange.whole = True
        self.cycle = self._answering = exchange
        self._answer(exchange)

    def _take_turn(self, exchange: Exchange) -> None:
        """Start a request, or queue it behind earlier ones."""
        previous, self.cycle = self.cycle, exchange
        if previous is not None and not previous.response_complete:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]
        else:
            self._begin(exchange)

    def _begin(self, exchange: Exchange) -> None:
        self._answering = exchange
        if exchange.refusal is not None:
            self._refuse(exchange, exchange.refusal)
        elif exchange.whole:
            self._answer(exchange)
        elif self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _hand_to_asgi(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        self.scope["state"]["transport"] = self.transport
        self.scope["state"]["lost"] = self._lost
        self.scope["state"]["preview"] = self._preview
        if sum(name == b"host" for name, _ in headers) > 1:
            self._refuse_connection(
                400, "bad_request", "a request must have exactly one Host"
            )  # else two parts of us could disagree
            return
        self._upgrading = bool(self.parser.should_upgrade()) and self._should_upgrade()
        if self._upgrading and not self._may_upgrade():
            self._refuse_connection(400, "bad_request", "only a GET without a body, after all answers, can upgrade")
            return
        previous = self.cycle
        super().on_headers_complete()
        if self.cycle is not previous:
            self.cycle.transport = CoalescedWrites(self.transport, self.loop)

    # Upgrading

    def _should_upgrade_to_ws(self) -> bool:
        """Only a few paths can be upgraded. Any other gets a plain answer."""
        headers = dict(self.headers)
        return b"sec-websocket-key" in headers and (self.url.startswith(_SOCKETS) or self._is_of_a_box(headers))

    def _is_of_a_box(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the client asks for a box or a session, by the host name or the address that it uses."""
        return self.front.is_elsewhere(headers.get(b"host", b""), self._preview)

    def _may_upgrade(self) -> bool:
        names = {name for name, _ in self.headers}
        idle = self.cycle is None or self.cycle.response_complete
        return (
            idle and self.parser.get_method() == b"GET" and names.isdisjoint((b"content-length", b"transfer-encoding"))
        )

    def _upgrade(self, rest: bytes) -> None:
        """Hand over the connection, with the bytes after the head."""
        if self._deaf or self.transport.is_closing():
            return
        if not self._upgrading:
            return  # a plain answer follows
        url = httptools.parse_url(self.url)
        site = self.front.upgraded_site(self.headers, url.path or b"/", self._preview)
        if site is None:
            # Imported here, because it takes long.
            from holdfast.server.wire.websocket_protocol import WebSocketProtocol

            self.ws_protocol_class = WebSocketProtocol
            self.handle_websocket_upgrade()
            if rest:
                self.transport.get_protocol().data_received(rest)  # type: ignore[attr-defined]
            return
        from holdfast.gateway.proxy.upgrade import UpgradedConnection

        self.connections.discard(self)
        UpgradedConnection(
            self.transport,
            self.front.relay.relay,
            site,
            method=self.scope["method"],
            query=url.query or b"",
            headers=self.headers,
            scheme=self.scheme or "http",
            request_id=self.service.next_request_id(),
            rest=rest,
            connections=self.connections,
            tasks=self.tasks,
        )

    # Bodies

    def on_body(self, body: bytes) -> None:
        if self.reading_since is not None:
            # A large body may take long, as long as it keeps coming.
            self.reading_since = min(self.loop.time(), self.reading_since + len(body) / _SLOWEST_BODY)
        exchange = self.cycle
        if not isinstance(exchange, Exchange):
            super().on_body(body)
            return
        if exchange.refusal is not None:
            return
        exchange.size += len(body)
        if exchange.size > self.service.max_body:
            exchange.body = []
            exchange.refusal = self._too_large(exchange)
            if exchange is self._answering:
                self._refuse(exchange, exchange.refusal)
            return
        exchange.body.append(body)

    def on_message_complete(self) -> None:
        self.reading_since = None
        if self._upgrading:
            return
        exchange = self.cycle
        if not isinstance(exchange, Exchange):
            super().on_message_complete()
            return
        body = exchange.body
        exchange.request.body = body[0] if len(body) == 1 else b"".join(body)
        exchange.body = []
        exchange.whole = True
        if exchange is self._answering and not exchange.response_complete:
            self._answer(exchange)

    # Answering

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Also called by uvicorn when it is a pipelined request's turn."""
        if isinstance(cycle, Exchange):
            self._begin(cycle)
        else:
            self._answering = cycle
            super()._start_asgi_task(cycle, app)

    def _answer(self, exchange: Exchange) -> None:
        request, service = exchange.request, self.service
        try:
            if request.method != "OPTIONS":
                service.origins.check(request.headers)
            # A quoted spelling of a reserved path is refused as a stream.
            if request.method == "POST" and service.takes_at_once(request) and not is_control(exchange.target):
                appending = service.append(exchange.target, request)
                if appending is not None:
                    appending.then(exchange.respond_appended)
                    return
        except Exception as error:
            exchange.respond(service.refuse(error, request.id))
            return
        task = exchange.task = self.loop.create_task(self._run(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        request, service = exchange.request, self.service
        try:
            if request.method == "GET" and _is_sse(request.query):
                await service.tail(exchange.target, request, exchange)
            else:
                response = await service.respond(exchange.target, request)
                if response.rest is None:
                    exchange.respond(response)
                else:
                    await exchange.stream(response, response.rest)
        except asyncio.CancelledError:
            self.transport.close()
            raise
        except Exception as error:
            if exchange.started:
                service.refuse(error, request.id)
                self.transport.close()
            else:
                exchange.respond(service.refuse(error, request.id))

    def exchange_complete(self, exchange: Exchange) -> None:
        if not exchange.keep_alive and self._hanging_up is None:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """As in uvicorn, but without its timer: `sweep_connections` closes all idle connections at once."""
        answered = self._answering
        if answered is not None and not isinstance(answered, Exchange):
            answered.transport.flush()  # before the next answer
        now = self._idle_since = self.loop.time()
        if self.reading_since is not None and self.flow.read_paused:
            self.reading_since = now  # it could not arrive while we did not read
        if self._hanging_up is not None:
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    # Refusing

    def _too_large(self, exchange: Exchange) -> Response:
        error = TooLarge(f"a request body has at most {self.service.max_body} bytes: send it in parts")
        return error_response(error, exchange.request.id)

    def _refuse(self, exchange: Exchange, refusal: Response) -> None:
        """Answer without reading the whole request, and close the connection.

        Closing with unread input causes a reset, which could overtake the answer. So we close for writing, and read on
        for a while.
        """
        self._deaf = True
        self._hanging_up = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
        self.reading_since = None
        exchange.keep_alive = False
        exchange.respond(refusal)
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()

    def _refuse_connection(self, status: int, code: str, message: str) -> None:
        """Answer an unreadable request, after all earlier ones, and close the connection."""
        if self._deaf or self.transport.is_closing():
            return
        self._deaf = True
        self.reading_since = None
        self._forget_incoming()
        request = Request("GET", "", b"", {}, id=self.service.next_request_id())
        exchange = Exchange(self, request, "", keep_alive=False)
        exchange.refusal = Response(status, [JSON_TYPE], error_body(code, message, request.id))
        self._take_turn(exchange)

    def _refuse_headers(self) -> None:
        self._refuse_connection(431, "headers_too_large", f"headers have at most {_MAX_HEADER_BYTES} bytes")

    def _forget_incoming(self) -> None:
        """An incomplete request gets no answer."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not self._is_coming_in(cycle):
            return
        if cycle is self._answering:
            cycle.disconnected = True
            cycle.message_event.set()
            self.cycle = None
        else:
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._answering

    def _is_coming_in(self, cycle: Any) -> bool:
        return not cycle.whole if isinstance(cycle, Exchange) else bool(cycle.more_body)

    def send_400_response(self, msg: str) -> None:
        if self.parser is not None:
            self._refuse_connection(400, "bad_request", msg)

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        between_requests = self._between_requests
        if between_requests and self._repeated is not None:
            body = self._repeated.body_in(data)
            if body is not None and len(body) <= self.service.max_body:
                self._repeat(self._repeated, body)
                return
        if self._reading_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        else:
            if between_requests:
                self._learn_head(data)
        if self._reading_head and self._head_bytes > _MAX_URL_BYTES + _MAX_HEADER_BYTES:
            self._refuse_headers()  # an incomplete one, which was not passed on

    @property
    def _between_requests(self) -> bool:
        """Whether the last request is answered, and nothing of the next one has arrived."""
        return self.reading_since is None and self.cycle is not None and self.cycle.response_complete

    def is_slow(self, now: float, limit: float) -> bool:
        """Returns whether a request takes too long to arrive. Time in which we do not read does not count."""
        return self.reading_since is not None and not self.flow.read_paused and now - self.reading_since > limit

    def is_idle(self, now: float, limit: float) -> bool:
        """Returns whether the client has kept the connection open without a request for longer than this."""
        return self._between_requests and not self._deaf and now - self._idle_since > limit

    def time_out(self) -> None:
        """Called by the sweep if a request has not arrived in time."""
        self._refuse_connection(408, "timeout", "the request did not arrive in time")


def sweep_connections(connections: set[Any], now: float, request_timeout: float, keep_alive: float) -> int:
    """Close connections that are idle or whose request takes too long to arrive. Returns how many were slow."""
    wires = [wire for wire in connections if isinstance(wire, StreamProtocol)]
    slow = [wire for wire in wires if wire.is_slow(now, request_timeout)]
    for wire in slow:
        wire.time_out()
    for wire in wires:
        if wire.is_idle(now, keep_alive):
            wire.transport.close()
    return len(slow)


class RepeatedHead:
    """The head of a request that a connection has sent before, split around the digits of its content length.

    A client that appends sends the same head with every request: only the length of the body changes. The parser has
    accepted that head once, so the next request with the same bytes needs no second parse. Whatever differs in more
    than the digits of the length goes to the parser.
    """

    __slots__ = ("_after", "_before", "headers", "query", "target")

    def __init__(self, before: bytes, after: bytes, request: Request, target: str) -> None:
        self._before = before
        self._after = after
        self.headers = request.headers
        self.query = request.query
        self.target = target

    @classmethod
    def learn(cls, data: bytes, request: Request, target: str) -> RepeatedHead | None:
        """The head of `request`, which the parser found in `data`, with nothing before or after it in there.

        Returns None for a head that has no content length, or for data that holds more than this one request.
        """
        head_end = data.find(_HEAD_END) + len(_HEAD_END)
        lengths = list(_LENGTH.finditer(data, 0, head_end))
        if len(lengths) != 1 or lengths[0][1] != request.headers.get(b"content-length"):
            return None
        if int(lengths[0][1]) != len(data) - head_end or b"transfer-encoding" in request.headers:
            return None
        begin, end = lengths[0].span(1)
        return cls(data[:begin], data[end:head_end], request, target)

    def body_in(self, data: bytes) -> bytes | None:
        """The body of the next request, if `data` is exactly one request with this head."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        begin = len(before)
        end = data.find(after, begin, begin + _MOST_DIGITS + len(after))
        length = data[begin:end]
        if end < 0 or not length.isdigit():
            return None
        body = data[end + len(after) :]
        return body if len(body) == int(length) else None
