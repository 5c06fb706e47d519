"""One connection to a relay: reads requests, and forwards each to the server. Nothing is kept of them."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from holdfast.egress.http_body import relay_body
from holdfast.egress.http_head import UNTIL_CLOSE, BadHead, Request, parse_path_request, parse_response
from holdfast.egress.sockets import Ended, ReadsNoMore
from holdfast.relay.rules import Answer, for_server, own_answer
from holdfast.relay.wire import Silent, Wire
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from holdfast.relay.relay import RelayLimits
    from holdfast.relay.upstream import Upstream


class Refused(Exception):
    """The relay answers by itself."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class RelayConnection:
    """Runs as one task of the relay, which ends it by cancelling the task."""

    def __init__(self, client: Wire, upstream: Upstream, limits: RelayLimits) -> None:
        self._client = client
        self._to = upstream
        self._limits = limits
        self._server: Wire | None = None
        self._answered = False
        """Whether a byte of the answer to the current request was sent."""
        self._sent = False
        """Whether the whole current request was sent."""
        self.resting = True
        """Whether it waits for a request. Such a connection may be closed to make room for others."""
        client.stall = limits.stall

    async def run(self) -> None:
        try:
            while await self._exchange():
                pass
            await self._client.close()
        except Ended:
            pass  # the client has left, or the answer was cut off
        finally:
            self._client.abort()
            self._drop_server()

    async def _exchange(self) -> bool:
        """Returns whether another request may follow."""
        self._answered = self._sent = False
        request = None
        try:
            request = await self._request()
            if request is None:
                return False
            answer = own_answer(request)
            if answer is not None:
                raise Refused(answer)
            async with time_limit(self._limits.lifetime):
                return await self._forward(request)
        except TimeoutError:
            raise Ended(f"it took more than {self._limits.lifetime:g} s") from None
        except Refused as refused:
            self._drop_server()
            if self._answered:
                raise Ended(str(refused)) from None
            keep = request is not None and request.keep_alive and (request.body.empty or self._sent)
            await self._answer(refused.answer, request, last=not keep)
            return keep

    async def _request(self) -> Request | None:
        """Returns the next request, or None if there is none. Raises `Refused` and `Ended`."""
        self.resting = True
        try:
            if not self._client.ahead:
                async with time_limit(self._limits.between):
                    if not await self._client.more():
                        return None
        except TimeoutError:
            return None
        self.resting = False
        try:
            async with time_limit(self._limits.head):
                head = await self._client.head(self._limits.head_size)
            return None if head is None else parse_path_request(head, self._to.url.host, self._to.port)
        except TimeoutError:
            late = f"the head of the request did not arrive within {self._limits.head:g} s"
            raise Refused(Answer(408, "timeout", late)) from None
        except BadHead as problem:
            raise Refused(Answer(400, "bad_request", f"the request is invalid: {problem}")) from None

    async def _answer(self, answer: Answer, request: Request | None, *, last: bool) -> None:
        data = answer.to_bytes(last=last)
        if request is not None and request.method == "HEAD":
            data = data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        await self._client.write(data)
        if last:
            self._client.finish()
            await self._client.drain()

    # --- forwarding ---

    async def _forward(self, request: Request) -> bool:
        length = request.body.length
        if length is not None and length > self._limits.body:
            raise Refused(self._too_long())
        server = await self._connected()
        try:
            await server.write(for_server(request).to_bytes(self._to.usual_port))
        except Ended as ended:
            raise Refused(self._unreachable(str(ended))) from None
        sender = asyncio.create_task(self._send(request, server))
        receiver = asyncio.create_task(self._receive(request, server))
        try:
            await asyncio.wait((receiver, sender), return_when=asyncio.FIRST_COMPLETED)
            if not receiver.done():
                await sender  # raises what was wrong with the body, or that the client has left
            keep = await receiver
            # If the answer came before the whole request was sent, the rest would be read as the next request.
            return keep and self._sent
        finally:
            for task in (receiver, sender):
                task.cancel()
            await asyncio.gather(receiver, sender, return_exceptions=True)

    async def _connected(self) -> Wire:
        """Returns the connection to the server, the one of the last request if it is still good. Raises `Refused`."""
        before, self._server = self._server, None
        if before is not None and not await before.is_stale():
            self._server = before
            return before
        if before is not None:
            before.abort()
        try:
            async with time_limit(self._limits.connect):
                self._server = await self._to.connect(self._limits.head_size)
        except TimeoutError:
            waited = f"the server did not accept a connection within {self._limits.connect:g} s"
            raise Refused(self._late(waited)) from None
        except ssl.SSLError as error:
            raise Refused(self._unreachable(f"TLS failed: {error.reason or error}")) from None
        except OSError as error:
            raise Refused(self._unreachable(error.strerror or str(error))) from None
        self._server.idle, self._server.stall = self._limits.idle, self._limits.stall
        return self._server

    async def _send(self, request: Request, server: Wire) -> None:
        """Sends the body, and then waits until the client leaves or sends more. Raises `Refused` and `Ended`."""
        total = 0

        def allow(size: int) -> None:
            nonlocal total
            total += size
            if total > self._limits.body:
                raise Refused(self._too_long())

        try:
            async with time_limit(self._limits.body_seconds):
                await relay_body(self._client, server, request.body, allow)
        except TimeoutError:
            late = f"the body of the request did not arrive within {self._limits.body_seconds:g} s"
            raise Refused(Answer(408, "timeout", late)) from None
        except BadHead as problem:
            raise Refused(Answer(400, "bad_request", f"the body of the request is invalid: {problem}")) from None
        except ReadsNoMore:
            return  # the server may have answered already, probably with a refusal
        self._sent = True
        if not self._client.ahead and not await self._client.more():
            raise Ended("the client has left")

    async def _receive(self, request: Request, server: Wire) -> bool:
        """Forwards the answer. Returns whether the client may send another request."""
        while True:
            try:
                head = await server.head(self._limits.head_size)
                if head is None:
                    raise Refused(self._unreachable("the server closed the connection without an answer"))
                response = parse_response(head, request.method)
            except BadHead as problem:
                raise Refused(Answer(502, "bad_gateway", f"the server's answer is invalid: {problem}")) from None
            except Silent as silent:
                raise Refused(self._late(f"the server did not answer: {silent}")) from None
            except Ended as ended:
                raise Refused(self._unreachable(str(ended))) from None
            if response.status >= 200 or response.status == 101:
                break
            if request.version == b"HTTP/1.1":
                await self._client.write(response.to_bytes(last=False))
        if response.status == 101:
            raise Refused(Answer(502, "bad_gateway", "the server changed the protocol, which nobody asked for"))
        keep = request.keep_alive and response.body != UNTIL_CLOSE
        self._answered = True
        await self._client.write(response.to_bytes(last=not keep))
        try:
            await relay_body(server, self._client, response.body, lambda size: None)
        except BadHead as problem:
            raise Ended(str(problem)) from None
        if not response.keep_alive:
            self._drop_server()
        return keep

    def _drop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.abort()

    # --- refusals ---

    def _too_long(self) -> Answer:
        return Answer(413, "too_large", f"a request's body has at most {self._limits.body} bytes")

    def _unreachable(self, why: str) -> Answer:
        message = f"the relay cannot reach the Holdfast server at {self._to.url.origin}: {why}"
        return Answer(502, "bad_gateway", message, "check that the server is up and that the relay's host reaches it")

    def _late(self, why: str) -> Answer:
        message = f"the Holdfast server at {self._to.url.origin} is too slow: {why}"
        return Answer(504, "gateway_timeout", message, "check the server, and the network between it and the relay")
