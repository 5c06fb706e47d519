"""Upgraded connections to programs in boxes: checks the handshake, and forwards the rest byte for byte.

What a client sends before the program has answered waits in a buffer of limited size, and then in the network.
"""

from __future__ import annotations

import asyncio
import http
from typing import Any, Final

from holdfast.api.box.process import Connection
from holdfast.api.errors import InvalidRequest
from holdfast.gateway.proxy.answer import Answer, CutShort, Head
from holdfast.gateway.proxy.headers import BadAnswer, Header
from holdfast.gateway.proxy.relay import Relay, SlowAnswer, answer_headers, request_head
from holdfast.gateway.proxy.site import Reply, Site, Visit
from holdfast.time_limit import time_limit

_BUFFER: Final = 64 * 1024
_GOODBYE_SECONDS: Final = 10.0
"""How long one side may continue after the other has ended."""


class UpgradedConnection:
    """Takes over a client's connection after the head of its request. It counts among the server's connections."""

    def __init__(
        self,
        transport: asyncio.Transport,
        relay: Relay,
        site: Site,
        *,
        method: str,
        query: bytes,
        headers: list[Header],
        scheme: str,
        request_id: str,
        rest: bytes,
        connections: set[Any],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._relay = relay
        self._site = site
        self._method = method
        self._query = query
        self._headers = headers
        self._scheme = scheme
        self._request_id = request_id
        self._reader = asyncio.StreamReader(limit=_BUFFER, loop=loop)
        protocol = asyncio.StreamReaderProtocol(self._reader, loop=loop)
        protocol.connection_made(transport)
        transport.set_protocol(protocol)
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)
        if rest:
            self._reader.feed_data(rest)
        self._connections = connections
        connections.add(self)
        self._task = loop.create_task(self._run())
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)
        # Not only in the task, which does nothing if it is cancelled before its first step.
        self._task.add_done_callback(self._let_go)

    def shutdown(self) -> None:
        """Called by the server when it stops."""
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._serve()
        except asyncio.CancelledError:
            pass  # only this object cancels the task
        except (CutShort, OSError):
            pass
        except Exception as error:
            reply = self._site.refuse(error, self._request_id, self._headers)
            self._send_reply(reply)

    def _let_go(self, _: asyncio.Task[None]) -> None:
        self._connections.discard(self)
        self._writer.close()

    def _send_reply(self, reply: Reply) -> None:
        more = [(b"x-request-id", self._request_id.encode()), (b"content-length", b"%d" % len(reply.body))]
        self._writer.write(_head(reply.status, [*reply.headers, *more]) + reply.body)

    async def _serve(self) -> None:
        visit = await self._site.admit(self._method, self._query, self._headers, scheme=self._scheme, upgrade=True)
        if isinstance(visit, Reply):
            raise InvalidRequest("this page cannot be opened by an upgrade")
        async with self._site.connected(visit) as lease:
            connection = lease.connection
            wanted = [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
            await connection.write(request_head(visit, [], wanted))
            answer = Answer(connection, method=visit.method)
            try:
                async with time_limit(self._relay.answer_seconds):
                    head = await answer.head()
            except TimeoutError:
                raise SlowAnswer("the program in the box did not answer in time") from None
            if head.status == 101:
                self._writer.write(_head(101, _switching(visit, head)))
                if answer.rest:
                    self._writer.write(answer.rest)
                await self._pass_on(connection, visit.over)
            else:
                await self._pass_answer(visit, head, answer)

    async def _pass_answer(self, visit: Visit, head: Head, answer: Answer) -> None:
        """Forward the plain HTTP answer of a box that does not upgrade."""
        self._writer.write(_head(head.status, answer_headers(visit, head)))
        async for piece in answer.body(head):
            self._writer.write(piece)
            await self._writer.drain()

    async def _pass_on(self, connection: Connection, over: asyncio.Future[None] | None) -> None:
        """Forward in both directions until both have ended, or the visitor may no longer be here."""

        async def up() -> None:
            while data := await self._reader.read(_BUFFER):
                if over is not None and over.done():
                    return  # it was sent, and waited here, before the visitor lost the right to it
                await connection.write(data)
            await connection.close_write()

        async def down() -> None:
            while data := await connection.read(_BUFFER):
                self._writer.write(data)
                await self._writer.drain()
            if self._writer.can_write_eof():
                self._writer.write_eof()

        directions = [asyncio.create_task(up()), asyncio.create_task(down())]
        waiting: list[asyncio.Future[None]] = [*directions] if over is None else [*directions, over]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if over is None or not over.done():
                await asyncio.wait(directions, timeout=_GOODBYE_SECONDS)
        finally:
            for task in directions:
                task.cancel()
            await asyncio.gather(*directions, return_exceptions=True)


def _switching(visit: Visit, head: Head) -> list[Header]:
    upgrades = [value.strip().lower() for name, value in head.headers if name == b"upgrade"]
    if upgrades != [b"websocket"]:
        raise BadAnswer("the program in the box switched to another protocol than requested")
    return [*visit.clean(head.headers), (b"connection", b"upgrade"), (b"upgrade", b"websocket")]


def _head(status: int, headers: list[Header]) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    closing = [] if status == 101 else [(b"connection", b"close")]
    line = f"HTTP/1.1 {status} {phrase}\r\n".encode()
    return b"".join((line, *(b"%b: %b\r\n" % header for header in (*headers, *closing)), b"\r\n"))
