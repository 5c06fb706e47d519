"""Relays plain HTTP requests to programs in boxes, as an ASGI app, streamed both ways.

Most requests have no body. Those need no second task, and may share a connection one after the other (`Relay._fetch`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Connection
from holdfast.api.errors import Forbidden, HoldfastError, Unavailable
from holdfast.api.errors.boxes import BoxError
from holdfast.boxes.network_policy import PROXY_PORT
from holdfast.gateway.proxy.answer import Answer, CutShort, Head
from holdfast.gateway.proxy.headers import BadAnswer, Header
from holdfast.gateway.proxy.site import Lease, Reply, Site, Visit
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 120.0
"""How long the start of an answer may take, after the box has read the last byte of the request."""

_CLOSE: Final[list[Header]] = [(b"connection", b"close")]
_KEEP: Final[list[Header]] = [(b"connection", b"keep-alive")]

Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]
Over = asyncio.Future[None]
"""Done when a request has to end: the server stops, or the client may no longer be here. It is only waited for."""


class SlowAnswer(BadAnswer):
    """The program in the box read the request, but did not answer in time."""

    status = 504
    code = "gateway_timeout"


class _Left(Exception):
    """The client has left, or may no longer be here."""


async def connect(box: Box, port: int, seconds: float = CONNECT_SECONDS) -> Connection:
    """Connect to a port of an open box. Raises `SlowAnswer` if that takes too long.

    Raises `Forbidden` for the port of the box's egress: what comes from there counts as the box itself.
    """
    if port == PROXY_PORT:
        raise Forbidden(f"port {port} of a box leads to the server, and cannot be reached from outside")
    try:
        async with time_limit(seconds):
            return await box.connect(port)
    except TimeoutError:
        raise SlowAnswer(f"port {port} of box {box.id} did not accept a connection in time") from None


class Relay:
    """Opens a connection for each request. A `Site` decides who may do that, and where it leads."""

    def __init__(
        self,
        next_request_id: Callable[[], str],
        count: Callable[[str, int], None],
        stopping: Callable[[], Over],
        *,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`count` is called with the method and the status of each request; `stopping` returns what is done when the
        server stops."""
        self._next_request_id = next_request_id
        self._count = count
        self._stopping = stopping
        self.answer_seconds = answer_seconds

    async def serve(self, site: Site, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.perf_counter(), 500
        request_id = self._next_request_id()
        try:
            status = await self._answer(site, scope, receive, send)
        except _Left:
            status = 499
        except CutShort:
            status = 502
            await _hang_up(scope, receive)
        except Exception as error:
            reply = site.refuse(error, request_id, scope["headers"])
            status = reply.status
            await send_reply(send, reply, (b"x-request-id", request_id.encode()))
        finally:
            self._count(scope["method"], status)
            milliseconds = round((time.perf_counter() - began) * 1000, 1)
            # The path without its query, which may have a token.
            details = {"method": scope["method"], "path": scope["path"], "status": status, "ms": milliseconds}
            log.info("port of a box: %s %s %s", scope["method"], scope["path"], status, extra=details)

    async def _answer(self, site: Site, scope: Scope, receive: Receive, send: Send) -> int:
        headers: list[Header] = scope["headers"]
        visit = await site.admit(scope["method"], scope["query_string"], headers, scheme=scope["scheme"], upgrade=False)
        if isinstance(visit, Reply):
            await send_reply(send, visit)
            return visit.status
        if visit.method == b"GET" and not body_framing(headers):
            return await self._fetch(site, visit, scope["state"]["lost"], send)
        async with site.connected(visit) as lease:
            return await self._relay(lease.connection, visit, headers, receive, send)

    async def _fetch(self, site: Site, visit: Visit, lost: Over, send: Send) -> int:
        """Relay a GET without a body. If a connection that was kept turns out to be closed, it is sent on a new one."""
        async with site.connected(visit, may_reuse=True) as lease:
            status = await self._pass(lease, visit, lost, send)
        if status is None:
            async with site.connected(visit) as lease:
                status = await self._pass(lease, visit, lost, send)
                assert status is not None
        return status

    async def _pass(self, lease: Lease, visit: Visit, lost: Over, send: Send) -> int | None:
        """Returns the status of the answer, or None if a reused connection turned out to be closed."""
        answer = Answer(lease.connection, method=visit.method)
        limit = time_limit(self.answer_seconds)
        stopping, over = self._stopping(), visit.over
        endings: list[Over] = []
        passing: list[Header] | None = None

        def end(which: Over) -> None:
            if not endings and not limit.expired():
                endings.append(which)
                limit.reschedule(0)

        watched = [each for each in (lost, stopping, over) if each is not None]
        for each in watched:
            each.add_done_callback(end)
        try:
            async with limit:
                await _write(lease.connection, request_head(visit, [], _KEEP if lease.can_keep else _CLOSE))
                head = await _head_of(answer)
                limit.reschedule(None)
                passing = answer_headers(visit, head)
                await _send_answer(send, head, passing, answer)
                lease.keep = answer.keeps_open
                return head.status
        except TimeoutError:
            if not limit.expired():
                raise
            if not endings:
                raise SlowAnswer("the program in the box did not answer in time") from None
            if endings[0] is lost:
                raise _Left from None
            if passing is None and endings[0] is stopping:
                raise _stopped() from None
            raise CutShort from None
        except HoldfastError as error:
            if lease.reused and not answer.begun:
                return None
            if passing is None:
                raise
            raise CutShort from error
        finally:
            endings.append(lost)  # a callback that is already on its way must change nothing
            for each in watched:
                each.remove_done_callback(end)

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
                    head = await _head_of(answer)
            except TimeoutError:
                raise SlowAnswer("the program in the box did not answer in time") from None
            passing = answer_headers(visit, head)
            started.append(head)
            await _send_answer(send, head, passing, answer)

        framing = body_framing(headers)
        up = send_request(connection, visit, framing, _body(receive), progress)
        try:
            await _first_of(down(), up, self._stopping(), visit.over)
        except HoldfastError as error:
            if not started:
                raise
            raise CutShort from error
        return started[0].status


async def _head_of(answer: Answer) -> Head:
    head = await answer.head()
    if head.status == 101:
        raise BadAnswer("the program in the box switched protocols without being asked to")
    return head


async def _send_answer(send: Send, head: Head, headers: list[Header], answer: Answer) -> None:
    """Pass an answer on as it comes. Raises `CutShort`."""
    await send({"type": "http.response.start", "status": head.status, "headers": headers})
    left = head.length
    async for piece in answer.body(head):
        left = None if left is None else left - len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": left != 0})
    if left != 0 or not head.length:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _stopped() -> Unavailable:
    return Unavailable("the server is stopping", hint="ask again when it is back")


async def _first_of(
    down: Coroutine[Any, Any, None], up: Coroutine[Any, Any, None], stopping: Over, over: Over | None
) -> None:
    """Run until the answer is complete. If the request fails, for example because the client leaves, that ends both."""
    downward, upward = asyncio.ensure_future(down), asyncio.ensure_future(up)
    waiting: set[asyncio.Future[None]] = {downward, upward, stopping}
    if over is not None:
        waiting.add(over)
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not downward.done():
            if over is not None and over.done():
                raise CutShort
            if stopping.done():
                raise _stopped()
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


def request_head(visit: Visit, framing: list[Header], connection: list[Header] = _CLOSE) -> bytes:
    """The request for the box, written anew from its parsed parts."""
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
    headers = visit.clean(head.headers)
    if head.length is not None and head.status not in (204, 304):
        headers.append((b"content-length", b"%d" % head.length))
    return headers


async def send_reply(send: Send, reply: Reply, *more: Header) -> None:
    framing = [(b"content-length", b"%d" % len(reply.body)), (b"x-content-type-options", b"nosniff")]
    headers = [*reply.headers, *more, *framing]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """The answer cannot be completed, so the connection is closed: it must not look complete."""
    scope["state"]["transport"].abort()
    while (await receive())["type"] != "http.disconnect":
        pass
