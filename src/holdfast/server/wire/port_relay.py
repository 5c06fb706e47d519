"""Relays plain HTTP requests to ports of boxes, as an ASGI app: one connection each, streamed both ways."""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Connection
from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import BoxError
from holdfast.boxes.service.boxes import Boxes
from holdfast.server.lazy import Lazy
from holdfast.server.metrics import Metrics
from holdfast.server.shutdown import Shutdown
from holdfast.server.wire.port_response import Answer, CutShort, Head
from holdfast.server.wire.ports import BadAnswer, Exchange, Header, Ports, Visit, for_the_client
from holdfast.threads.protocol.messages import error_body
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 120.0
"""How long the start of an answer may take, after the box has read the last byte of the request."""

Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


class SlowAnswer(BadAnswer):
    """The program in the box read the request, but did not answer in time."""

    status = 504
    code = "gateway_timeout"


class _Left(Exception):
    """The client has left."""


class PortRelay:
    """Opens a connection to a box for each request. `Ports` decides who may do that."""

    def __init__(
        self,
        ports: Ports,
        boxes: Lazy[Boxes],
        shutdown: Shutdown,
        metrics: Metrics,
        next_request_id: Callable[[], str],
        *,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.ports = ports
        self.boxes = boxes
        self._shutdown = shutdown
        self._metrics = metrics
        self._next_request_id = next_request_id
        self._connect_seconds = connect_seconds
        self.answer_seconds = answer_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.perf_counter(), 500
        request_id = self._next_request_id()
        try:
            status = await self._answer(scope, receive, send)
        except _Left:
            status = 499
        except CutShort:
            status = 502
            await _hang_up(scope, receive)
        except Exception as error:
            status, headers, body = refusal(error, request_id)
            await _send_whole(send, status, [*headers, (b"x-request-id", request_id.encode())], body)
        finally:
            self._metrics.count(scope["method"], status)
            milliseconds = round((time.perf_counter() - began) * 1000, 1)
            details = {"method": scope["method"], "path": scope["path"], "status": status, "ms": milliseconds}
            log.info("port of a box: %s %s %s", scope["method"], scope["path"], status, extra=details)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> int:
        headers: list[Header] = scope["headers"]
        target = self.ports.find(headers, scope["raw_path"], scope["state"].get("preview"))
        assert target is not None
        visit = await self.ports.admit(target, scope["method"], scope["query_string"], headers, scheme=scope["scheme"])
        if isinstance(visit, Exchange):
            await _exchange(send, visit)
            return 200 if visit.cookie else 308
        async with self.connected(visit) as connection:
            return await self._relay(connection, visit, headers, receive, send)

    @contextlib.asynccontextmanager
    async def connected(self, visit: Visit) -> AsyncIterator[Connection]:
        """Connect to the port. The box counts as active meanwhile."""
        boxes = await self.boxes.get()
        id = visit.target.box
        with boxes.working(id):
            box: Box
            async with await boxes.open(id) as box:
                try:
                    async with time_limit(self._connect_seconds):
                        connection = await box.connect(visit.target.port)
                except TimeoutError:
                    raise SlowAnswer(
                        f"port {visit.target.port} of box {id} did not accept a connection in time"
                    ) from None
                async with connection:
                    yield connection

    async def _relay(
        self, connection: Connection, visit: Visit, headers: list[Header], receive: Receive, send: Send
    ) -> int:
        """Runs until the answer is complete, the client leaves, or the server stops."""
        answer = Answer(connection, method=visit.method)
        limit = time_limit(self.answer_seconds)
        started: list[Head] = []

        def progress() -> None:
            if not started:
                limit.reschedule(asyncio.get_running_loop().time() + self.answer_seconds)

        async def down() -> None:
            try:
                async with limit:
                    head = await answer.head()
                    if head.status == 101:
                        raise BadAnswer("the program in the box switched protocols without being asked to")
            except TimeoutError:
                raise SlowAnswer("the program in the box did not answer in time") from None
            passing = answer_headers(visit, head)
            started.append(head)
            await send({"type": "http.response.start", "status": head.status, "headers": passing})
            async for piece in self._shutdown.until_stopping(answer.body(head)):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        framing = body_framing(headers)
        up = send_request(connection, visit, framing, _body(receive), progress)
        try:
            await _first_of(down(), up)
        except HoldfastError as error:
            if not started:
                raise
            raise CutShort from error
        return started[0].status


async def _first_of(down: Any, up: Any) -> None:
    """Run until the answer is complete. If the request fails, for example because the client leaves, that ends both."""
    downward, upward = asyncio.ensure_future(down), asyncio.ensure_future(up)
    try:
        await asyncio.wait((downward, upward), return_when=asyncio.FIRST_COMPLETED)
        if not downward.done():
            upward.result()
        await downward
    finally:
        for task in (downward, upward):
            task.cancel()
        await asyncio.gather(downward, upward, return_exceptions=True)


async def _body(receive: Receive) -> AsyncIterator[bytes | None]:
    """Yield the body as it comes, then None. Afterwards wait for the client to leave, and raise that."""
    ended = False
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Left
        if ended:
            continue
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body", False):
            ended = True
            yield None


async def send_request(
    connection: Connection,
    visit: Visit,
    framing: list[Header],
    body: AsyncIterator[bytes | None],
    on_progress: Callable[[], None],
) -> None:
    """Write a request as its body comes, and then wait for the client to leave."""
    chunked = framing == [(b"transfer-encoding", b"chunked")]
    taking = await _write(connection, request_head(visit, framing))
    on_progress()
    async for piece in body:
        if taking:
            # A program that reads no more may still answer.
            taking = await _write(connection, _framed(piece, chunked=chunked))
        on_progress()


def _framed(piece: bytes | None, *, chunked: bool) -> bytes:
    if piece is None:
        return b"0\r\n\r\n" if chunked else b""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece


async def _write(connection: Connection, data: bytes) -> bool:
    try:
        if data:
            await connection.write(data)
    except (BoxError, OSError):
        return False
    return True


def request_head(visit: Visit, framing: list[Header], upgrade: list[Header] | None = None) -> bytes:
    """The request for the box, written anew from its parsed parts."""
    connection = upgrade or [(b"connection", b"close")]
    lines = [b"%b %b HTTP/1.1\r\n" % (visit.method, visit.path)]
    lines += [b"%b: %b\r\n" % header for header in (*visit.headers, *framing, *connection)]
    return b"".join(lines) + b"\r\n"


def body_framing(headers: list[Header]) -> list[Header]:
    """The framing header of the body, as in the request."""
    framing: list[Header] = []
    for name, value in headers:
        if name == b"transfer-encoding":
            return [(b"transfer-encoding", b"chunked")]
        if name == b"content-length":
            framing = [(b"content-length", value)]
    return framing


def answer_headers(visit: Visit, head: Head) -> list[Header]:
    headers = for_the_client(visit.target, head.headers)
    if head.length is not None and head.status not in (204, 304):
        headers.append((b"content-length", b"%d" % head.length))
    return headers


def refusal(error: Exception, request_id: str) -> tuple[int, list[Header], bytes]:
    """Turn any failure into an answer. Unexpected ones are logged, without details in the answer."""
    kind: Header = (b"content-type", b"application/json")
    if isinstance(error, HoldfastError):
        body = error_body(error.code, error.message, request_id, error.hint)
        return error.status or 500, [kind, *error.headers], body
    log.error("a request to a port of a box failed", exc_info=error, extra={"request_id": request_id})
    message = "the server failed; its log has details under this request id"
    return 500, [kind], error_body("internal", message, request_id)


async def _exchange(send: Send, exchange: Exchange) -> None:
    if not exchange.cookie:
        await _send_whole(send, 308, [(b"location", exchange.location)], b"")
        return
    # Not a redirect: after a link from another site, a browser would not send the new cookie.
    place = html.escape(exchange.location.decode("latin-1"), quote=True)
    page = f'<!doctype html><meta http-equiv="refresh" content="0;url={place}"><title>One moment</title>'
    headers = [
        (b"content-type", b"text/html; charset=latin-1"),
        (b"set-cookie", exchange.cookie),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", b"default-src 'none'"),
    ]
    await _send_whole(send, 200, headers, page.encode("latin-1"))


async def _send_whole(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    framed = [*headers, (b"content-length", b"%d" % len(body)), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": framed})
    await send({"type": "http.response.body", "body": body})


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """The answer cannot be completed, so the connection is closed: it must not look complete."""
    scope["state"]["transport"].abort()
    while (await receive())["type"] != "http.disconnect":
        pass
