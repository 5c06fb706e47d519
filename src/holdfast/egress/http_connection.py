"""One connection to a server over HTTP/1.1, in the clear or inside TLS: a request, its answer, and then the next one.

Answers are parsed as strictly as requests of boxes are. A connection on which anything unexpected happens is closed, so
an answer never belongs to another request than its own. Errors are those of httpx.
"""

from __future__ import annotations

import asyncio
import math
import select
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import httpx

from holdfast.egress.http_head import BadHead, Headers, Response, parse_response, request_head, values
from holdfast.egress.sockets import Ended, ReadAhead

MOST_HEAD: Final = 64 << 10
_MOST_INTERIM: Final = 100
"""Answers before the final one, such as 100 and 103."""
_MOST_DIGITS: Final = 15
_MOST_BUFFERED: Final = 64 << 10
"""Bytes after which no more is read until they are used."""


Origin = tuple[str, str, int]
"""Scheme, host and port."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds, or None for no limit."""

    connect: float | None = None
    read: float | None = None
    write: float | None = None
    pool: float | None = None

    @classmethod
    def of(cls, request: httpx.Request) -> Timeouts:
        given: Mapping[str, float | None] = request.extensions.get("timeout", {})
        return cls(given.get("connect"), given.get("read"), given.get("write"), given.get("pool"))


class Unanswered(httpx.RemoteProtocolError):
    """The server closed without sending a byte of an answer. It may have received the request."""


class HttpConnection(ReadAhead, asyncio.Protocol):
    """Belongs to its pool, and to one request at a time."""

    def __init__(self, origin: Origin, head_seconds: float, on_idle_end: Callable[[HttpConnection], None]) -> None:
        """`head_seconds` is the most from the first byte of an answer's head to its last. `on_idle_end` is called if
        the connection becomes useless between two requests.
        """
        super().__init__()
        self.origin = origin
        self.is_idle = False
        self._head_seconds = head_seconds
        self._on_idle_end = on_idle_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        """Whether nothing comes any more."""
        self._error: Exception | None = None
        """Why it was lost, or None for an orderly end."""
        self._is_full = False
        """Whether reading is paused."""
        self._is_blocked = False
        """Whether the server reads more slowly than we write."""
        self._changed: asyncio.Future[None] | None = None
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._head_due = math.inf
        self._timeouts = Timeouts()
        self._can_continue = False
        """Whether the connection is fit for another request after this answer."""

    # --- as asyncio has it ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._ahead += data
        if self.is_idle:
            self._on_idle_end(self)
        elif len(self._ahead) > _MOST_BUFFERED and not self._is_full:
            self._is_full = True
            assert self._transport is not None
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._wake()

    def _end(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed, self._error = True, error
            if self.is_idle:
                self._on_idle_end(self)
            self._wake()

    # --- waiting ---

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _change(self, seconds: float | None) -> None:
        """Returns after the next event. Raises TimeoutError."""
        self._changed = self._loop.create_future()
        self._set_due(min(math.inf if seconds is None else self._loop.time() + seconds, self._head_due))
        try:
            await self._changed
        finally:
            self._changed = None

    def _set_due(self, due: float) -> None:
        """One timer for all waits: each only moves its time, because most are over long before it."""
        self._due = due
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_at(due, self._on_timer), due

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self._changed is None and not self.is_idle:
            return
        if self._loop.time() < self._due:
            self._set_due(self._due)
        elif self._changed is None:
            self._on_idle_end(self)
        elif not self._changed.done():
            self._changed.set_exception(TimeoutError())

    async def more(self) -> bool:
        if self._is_closed:
            if self._error is not None:
                raise httpx.ReadError(str(self._error) or type(self._error).__name__)
            return False
        before = len(self._ahead)
        self._resume_reading()
        try:
            while len(self._ahead) == before and not self._is_closed:
                await self._change(self._timeouts.read)
        except TimeoutError:
            raise httpx.ReadTimeout("it sends nothing") from None
        return len(self._ahead) > before or await self.more()

    def _resume_reading(self) -> None:
        if self._is_full and self._transport is not None:
            self._is_full = False
            self._transport.resume_reading()

    # --- between two requests ---

    def rest(self, seconds: float) -> None:
        """Wait for the next request. `on_idle_end` is called if none comes within this time."""
        self.is_idle = True
        self._resume_reading()
        self._set_due(self._loop.time() + seconds)

    def wake_up(self) -> bool:
        """Returns whether another request can be sent."""
        self.is_idle = False
        assert self._transport is not None
        if self._is_closed or self._ahead or self._transport.is_closing():
            return False
        # The server may have closed it, which the event loop has not seen yet.
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        """Close at once. Has no effect the second time."""
        self.is_idle = False
        self._end(ConnectionAbortedError("the connection was closed here"))
        if self._transport is not None:
            self._transport.abort()

    # --- a request and its answer ---

    async def ask(
        self,
        request: httpx.Request,
        pieces: AsyncIterator[bytes],
        first: bytes,
        timeouts: Timeouts,
    ) -> Response:
        """Send a request, whose body begins with `first`. Returns the head of its answer, which may come before the
        request was sent whole.
        """
        self._timeouts = timeouts
        try:
            head = request_head(request.method, request.url.raw_path, request.headers.raw)
        except BadHead as error:
            raise httpx.LocalProtocolError(str(error)) from None
        try:
            response, is_sent = await self._send(request, head, pieces, first)
            if response is None:
                response = await self._head(request.method)
        except (BadHead, Ended) as error:
            raise httpx.RemoteProtocolError(str(error)) from None
        self._can_continue = is_sent and response.keep_alive
        return response

    def can_continue(self) -> bool:
        """Returns whether another request may follow. Only after the body was read to its end."""
        return self._can_continue and not self._ahead and not self._is_closed

    async def _send(
        self, request: httpx.Request, head: bytes, pieces: AsyncIterator[bytes], first: bytes
    ) -> tuple[Response | None, bool]:
        """Returns the answer if it has come meanwhile, and whether the request was sent whole."""
        length = _length(request.headers.raw)
        left = length or 0
        piece: bytes | None = first
        interim = 0
        while piece is not None:
            if length is None:
                data = head + (b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b"")
            else:
                left -= len(piece)
                if left < 0:
                    raise httpx.LocalProtocolError("the body is longer than its Content-Length")
                data = head + piece
            head = b""
            await self._write(data)
            while self._ahead:
                # Only a whole head stops the request: an interim one does not.
                if b"\r\n\r\n" not in self._ahead and not self._is_closed:
                    break
                response = await self._head_once(request.method)
                if response.status >= 200:
                    return response, False
                interim += 1
                if interim > _MOST_INTERIM:
                    raise BadHead(f"more than {_MOST_INTERIM} interim answers")
            if self._is_closed:
                return None, False
            piece = await anext(pieces, None)
        if left:
            raise httpx.LocalProtocolError("the body is shorter than its Content-Length")
        if length is None:
            await self._write(b"0\r\n\r\n")
        return None, True

    async def _write(self, data: bytes) -> None:
        """Returns when more can be written, or when the server has sent something."""
        if self._is_closed or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        seen = len(self._ahead)
        try:
            while self._is_blocked and not self._is_closed and len(self._ahead) == seen:
                await self._change(self._timeouts.write)
        except TimeoutError:
            raise httpx.WriteTimeout("it does not read the request") from None

    async def _head(self, method: str) -> Response:
        for _ in range(_MOST_INTERIM + 1):
            response = await self._head_once(method)
            if response.status >= 200:
                return response
        raise BadHead(f"more than {_MOST_INTERIM} interim answers")

    async def _head_once(self, method: str) -> Response:
        if not self._ahead and not await self.more():
            raise Unanswered("it closed the connection without an answer")
        self._head_due = self._loop.time() + self._head_seconds
        try:
            head = await self.head(MOST_HEAD)
        except httpx.ReadTimeout:
            raise BadHead(f"the head of its answer takes longer than {self._head_seconds:g} s") from None
        finally:
            self._head_due = math.inf
        if head is None:
            raise Unanswered("it closed the connection without an answer")
        response = parse_response(head, method)
        if response.status == 101:
            raise BadHead("it changes the protocol, which was not asked for")
        return response


def _length(headers: Headers) -> int | None:
    """Returns the length of a request's body, or None if it is sent in chunks."""
    lengths, codings = values(headers, b"content-length"), values(headers, b"transfer-encoding")
    if not lengths and codings == [b"chunked"]:
        return None
    if codings or len(lengths) > 1 or not all(value.isdigit() and len(value) <= _MOST_DIGITS for value in lengths):
        raise httpx.LocalProtocolError("the request does not tell clearly how long its body is")
    return int(lengths[0]) if lengths else 0
