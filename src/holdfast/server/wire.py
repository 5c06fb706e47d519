"""The thread's hot path below ASGI: a uvicorn HTTP protocol that answers the stream surface itself.

Requests under `/v1/stream/` are parsed, answered and written here, without a task or a scope per append; everything
else goes on to the ASGI app as usual. Why not plain ASGI: docs/decisions/0003-hot-path-below-asgi.md.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.server.streams import StreamService
from holdfast.threads.errors import BodyTooLarge
from holdfast.threads.messages import JSON_TYPE, Request, Response, error_body, error_response
from holdfast.threads.surface import PREFIX

_PREFIX: Final = PREFIX.encode()
_CONTROL: Final = "__ds"
"""Not streams: these answer POST in other ways. (A quoted spelling of it is refused as a stream.)"""
_MAX_HEADER_BYTES: Final = 64 * 1024
_MAX_URL_BYTES: Final = 16 * 1024
_SECURITY: Final = b"x-content-type-options: nosniff\r\ncross-origin-resource-policy: cross-origin\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_CONGESTED_BYTES: Final = 256 * 1024
_LINGER_SECONDS: Final = 5.0


class Exchange:
    """One request to the stream surface and its response. Stands where uvicorn keeps its own request cycle."""

    __slots__ = (
        "body",
        "disconnected",
        "keep_alive",
        "message_event",
        "request",
        "response_complete",
        "size",
        "started",
        "target",
        "task",
        "whole",
        "wire",
    )

    def __init__(self, wire: StreamWire, request: Request, target: str, *, keep_alive: bool) -> None:
        self.wire = wire
        self.request = request
        self.target = target
        """The path after the prefix, still quoted."""
        self.keep_alive = keep_alive
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
        self.wire.write(self._head(response, _CHUNKED))

    def write(self, data: bytes) -> None:
        if not self.disconnected and not self.response_complete:
            self.wire.write(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self) -> None:
        if self.disconnected or self.response_complete:
            return
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

    def _head(self, response: Response, framing: bytes) -> bytes:
        request = self.request
        lines = [STATUS_LINE[response.status], _SECURITY]
        headers = response.headers
        origin = request.headers.get(b"origin")
        if origin is not None:
            headers = headers + self.wire.service.origins.response_headers(origin)
        for name, value in self.wire.server_state.default_headers:
            lines += (name, b": ", value, b"\r\n")
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


class _NoEvent:
    """In the place of the event that uvicorn sets for its own cycles: nobody waits for ours."""

    def set(self) -> None:
        pass


_NO_EVENT: Any = _NoEvent()


class StreamWire(HttpToolsProtocol):
    """A connection. Reads requests in order; answers stream requests itself, in order."""

    def __init__(self, *args: Any, service: StreamService, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.service = service
        self.reading_since: float | None = None
        """When the request began that is still coming in; for the sweep of slow clients."""
        self._header_bytes = 0
        self._discarding = False
        """We have answered and will close; the rest of the request is read and forgotten."""
        self._unreadable = False
        """Nothing that still comes can be understood."""
        self.cycle: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_CONGESTED_BYTES)
        self.write = transport.write
        self.reading_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in (self.cycle, *(queued for queued, _ in self.pipeline)):
            if isinstance(cycle, Exchange) and not cycle.response_complete:
                cycle.disconnected = True
                if cycle.task is not None:
                    cycle.task.cancel()
        super().connection_lost(exc)

    # Parsing

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._header_bytes = 0
        self.reading_since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > _MAX_URL_BYTES:
            self._refuse_connection(414, "uri_too_long", f"a URL has at most {_MAX_URL_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:
            self._refuse_connection(431, "headers_too_large", f"headers have at most {_MAX_HEADER_BYTES} bytes")
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return
        if not self.url.startswith(_PREFIX):
            self._hand_to_asgi()
            return
        target, _, query = self.url[len(_PREFIX) :].partition(b"?")
        method = self.parser.get_method().decode("ascii")
        request = Request(method, "", query.partition(b"#")[0], dict(self.headers), id=self.service.next_request_id())
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        previous, exchange = self.cycle, Exchange(self, request, target.decode("latin-1"), keep_alive=keep_alive)
        self.cycle = exchange
        if previous is not None and not previous.response_complete:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]
            return
        self._expect_body(exchange)

    def _expect_body(self, exchange: Exchange) -> None:
        length = exchange.request.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.service.max_body:
            self._refuse_body(exchange)
        elif self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _hand_to_asgi(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        exchange = self.cycle
        if not isinstance(exchange, Exchange):
            super().on_body(body)
            return
        if exchange.response_complete:
            return
        exchange.size += len(body)
        if exchange.size > self.service.max_body:
            self._refuse_body(exchange)
            return
        exchange.body.append(body)
        self.reading_since = self.loop.time()

    def on_message_complete(self) -> None:
        self.reading_since = None
        if self._discarding:
            self.transport.close()
            return
        exchange = self.cycle
        if not isinstance(exchange, Exchange):
            super().on_message_complete()
            return
        body = exchange.body
        exchange.request.body = body[0] if len(body) == 1 else b"".join(body)
        exchange.body = []
        exchange.whole = True
        if not exchange.response_complete and not self._is_queued(exchange):
            self._answer(exchange)

    def _is_queued(self, exchange: Exchange) -> bool:
        return any(id(cycle) == id(exchange) for cycle, _ in self.pipeline)

    # Answering

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Called by uvicorn also when a pipelined request's turn has come."""
        if not isinstance(cycle, Exchange):
            super()._start_asgi_task(cycle, app)
        elif cycle.whole:
            self._answer(cycle)
        else:
            self._expect_body(cycle)

    def _answer(self, exchange: Exchange) -> None:
        request, service = exchange.request, self.service
        try:
            if request.method != "OPTIONS":
                service.origins.check(request.headers)
            if request.method == "POST" and not exchange.target.startswith(_CONTROL):
                self._append(exchange)
                return
        except Exception as error:
            exchange.respond(service.refuse(error, request.id))
            return
        task = exchange.task = self.loop.create_task(self._run(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _append(self, exchange: Exchange) -> None:
        request, service = exchange.request, self.service
        future = asyncio.ensure_future(service.append(exchange.target, request), loop=self.loop)

        def done(settled: asyncio.Future[Any]) -> None:
            try:
                exchange.respond(service.appended(request, settled.result()))
            except asyncio.CancelledError:
                self.transport.close()
            except Exception as error:
                exchange.respond(service.refuse(error, request.id))

        if future.done():
            done(future)
        else:
            future.add_done_callback(done)

    async def _run(self, exchange: Exchange) -> None:
        request, service = exchange.request, self.service
        try:
            if request.method == "GET" and b"live=sse" in request.query:
                await service.tail(exchange.target, request, exchange)
            else:
                exchange.respond(await service.respond(exchange.target, request))
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
        if not exchange.keep_alive:
            if exchange.whole:
                self.transport.close()
            else:
                self._linger()
        self.on_response_complete()

    def _linger(self) -> None:
        """Read on and forget, for a while: a client that still sends would lose our answer if we hung up on it."""
        self._discarding = True
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    # Refusing

    def _refuse_body(self, exchange: Exchange) -> None:
        error = BodyTooLarge(f"a request body has at most {self.service.max_body} bytes: send it in parts")
        exchange.keep_alive = False
        exchange.respond(error_response(error, exchange.request.id))

    def _refuse_connection(self, status: int, code: str, message: str) -> None:
        """Answer what cannot be read as a request, and hang up."""
        if self.transport.is_closing():
            return
        self._unreadable = True
        request = Request("GET", "", b"", {}, id=self.service.next_request_id())
        exchange = self.cycle = Exchange(self, request, "", keep_alive=False)
        exchange.respond(Response(status, [JSON_TYPE], error_body(code, message, request.id)))

    def send_400_response(self, msg: str) -> None:
        if self.parser is not None and not self.transport.is_closing():
            self._refuse_connection(400, "bad_request", msg)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._unreadable:
            return
        super().data_received(data)

    def time_out(self) -> None:
        """Called by the sweep for a client that has not finished its request in time."""
        if self.cycle is None or self.cycle.response_complete:
            self._refuse_connection(408, "timeout", "the request did not arrive in time")
        else:
            self.transport.close()


def sweep_slow(connections: set[Any], now: float, limit: float) -> int:
    """End connections whose request has been coming in for too long; returns how many."""
    slow = [
        wire
        for wire in connections
        if isinstance(wire, StreamWire) and wire.reading_since is not None and now - wire.reading_since > limit
    ]
    for wire in slow:
        wire.time_out()
    return len(slow)
