"""HTTP/1.1 for the scripted model. Small, and able to cut a stream on purpose."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

import httptools
import orjson

MAX_BODY: Final = 64 * 1024 * 1024
_MAX_HEAD: Final = 64 * 1024
_MAX_WAITING: Final = 16
"""How many requests one connection may send ahead."""


class BodyUnreadable(Exception):
    """The body has an unsupported encoding, or is not in the encoding that it claims."""


class Exchange:
    """One request and its response."""

    def __init__(
        self, connection: ModelConnection, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self._body = body
        self._connection = connection
        self._chunked = False
        self.is_begun = False

    def body(self) -> bytes:
        """Returns the decoded body. Raises `BodyUnreadable`."""
        encoding = self.headers.get("content-encoding", "identity")
        if encoding == "identity":
            return self._body
        if encoding != "gzip":
            raise BodyUnreadable(f"this model does not support content-encoding {encoding}")
        unpacking = zlib.decompressobj(wbits=31)
        try:
            body = unpacking.decompress(self._body, MAX_BODY)
        except zlib.error as error:
            raise BodyUnreadable(f"the body is not gzip: {error}") from None
        if unpacking.unconsumed_tail:
            raise BodyUnreadable(f"the body is larger than {MAX_BODY} bytes")
        return body

    async def answer(self, status: int, content: object, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete JSON response."""
        data = orjson.dumps(content) + b"\n"
        fields = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        await self._head(status, fields)
        await self._connection.write(b"" if self.method == "HEAD" else data)
        self._connection.end_exchange()

    async def begin_events(self, headers: Mapping[str, str] | None = None) -> None:
        """Begin a stream of events. `send` and `finish` follow."""
        self._chunked = True
        fields = {"content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked"}
        await self._head(200, {**fields, **(headers or {})})

    async def send(self, data: bytes) -> None:
        await self._connection.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def finish(self) -> None:
        await self._connection.write(b"0\r\n\r\n")
        self._connection.end_exchange()

    async def cut(self) -> None:
        """Close the connection in the middle of the response, after what was sent so far."""
        self._connection.cut()

    async def _head(self, status: int, fields: Mapping[str, str]) -> None:
        self.is_begun = True
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in fields.items())]
        await self._connection.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


class ModelConnection(asyncio.Protocol):
    """A client connection. Requests are answered one at a time. When the client disconnects, the current response is
    cancelled.
    """

    def __init__(self, respond: Callable[[Exchange], Awaitable[None]], open_connections: set[ModelConnection]) -> None:
        self._respond = respond
        self._open = open_connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._waiting: list[Exchange] = []
        self._task: asyncio.Task[None] | None = None
        self._keep_alive = True
        self._begin_message()

    async def write(self, data: bytes) -> None:
        await self._writable.wait()
        if self._transport is not None:
            self._transport.write(data)

    def end_exchange(self) -> None:
        if not self._keep_alive and self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # --- transport callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._waiting.clear()
        self._open.discard(self)
        if self._task is not None:
            self._task.cancel()

    # --- parser callbacks ---

    def _begin_message(self) -> None:
        self._url, self._headers, self._pieces, self._size = b"", {}, [], 0
        self._head_size = 0

    _url: bytes
    _headers: dict[str, str]
    _pieces: list[bytes]
    _size: int
    _head_size: int

    def on_message_begin(self) -> None:
        self._begin_message()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MAX_BODY:
            self._pieces.append(body)
        elif self._transport is not None:
            self._transport.abort()

    def on_message_complete(self) -> None:
        self._keep_alive = self._parser.should_keep_alive()
        method, path = self._parser.get_method().decode("latin-1"), self._url.decode("latin-1")
        self._waiting.append(Exchange(self, method, path, self._headers, b"".join(self._pieces)))
        if len(self._waiting) > _MAX_WAITING and self._transport is not None:
            self._transport.abort()
        elif self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._answer())

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > _MAX_HEAD and self._transport is not None:
            self._transport.abort()

    async def _answer(self) -> None:
        try:
            while self._waiting:
                await self._respond(self._waiting.pop(0))
        except Exception:
            self.cut()  # rather than let the client wait; the loop reports the error
            raise
