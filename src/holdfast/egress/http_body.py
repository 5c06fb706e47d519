"""Relays the body of an HTTP message from one connection to another. Chunks are parsed strictly and written anew."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol, TypeVar

from holdfast.egress.http_head import BadHead, Body, parse_trailer
from holdfast.egress.sockets import Ended, ReadAhead

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e]*)?")
_SIZE_LINE: Final = re.compile(_SIZE.pattern + rb"\r\n")
_LONGEST_LINE: Final = 4096
_MOST_TRAILERS: Final = 50
_GATHER: Final = 64 << 10


class Sink(Protocol):
    async def write(self, data: bytes | bytearray | memoryview) -> None: ...


SinkT = TypeVar("SinkT", bound=Sink, contravariant=True)


class Source(Protocol[SinkT]):
    """A connection that is read from. `egress.sockets.Socket` says what each method does."""

    async def line(self, most: int) -> bytes: ...

    def line_ready(self) -> bool: ...

    def take(self, most: int) -> bytes: ...

    async def pump(self, to: SinkT, most: int | None = None) -> int: ...


async def relay_body(source: Source[SinkT], to: SinkT, body: Body, allow: Callable[[int], None]) -> None:
    """Relays a body: by length, in chunks, or until the end. Chunks are parsed strictly and rewritten.

    Calls `allow` with each size before it is sent, which may raise. Raises `BadHead` and `Ended`.
    """
    if body.chunked:
        await _relay_chunks(source, to, allow)
    elif body.length is None:
        await source.pump(to)
    elif body.length:
        allow(body.length)
        if await source.pump(to, body.length) < body.length:
            raise Ended("the connection closed within a body")


async def read_body(source: ReadAhead, body: Body) -> AsyncIterator[bytes]:
    """Yields the content of a body, piece by piece, without the framing of chunks and without trailers.

    Chunks that have arrived together are yielded together. Raises `BadHead` and `Ended`.
    """
    buffer = source.buffer
    if not body.chunked:
        left = body.length
        while left is None or left > 0:
            if not buffer and not await source.more():
                if left is None:
                    return
                raise Ended("the connection closed within a body")
            piece = source.take(_GATHER if left is None else min(left, _GATHER))
            left = None if left is None else left - len(piece)
            yield piece
        return
    chunks = Chunks()
    while not chunks.is_whole:
        if buffer and (piece := chunks.take(buffer)):
            yield piece
        elif not chunks.is_whole and not await source.more():
            raise Ended("the connection closed within a chunk")


class Chunks:
    """Takes the content of a chunked body out of a buffer, as far as it has arrived. Strict, and without effects."""

    def __init__(self) -> None:
        self.is_whole = False
        """Whether the body has ended. What is left in the buffer then belongs to no body."""
        self._left = 0
        """Bytes of the current chunk that have not arrived."""
        self._is_ending = False
        """Whether the line end after a chunk comes next."""
        self._trailers: int | None = None
        """How many there were, or None before the last chunk."""

    def take(self, buffer: bytearray) -> bytes:
        """Returns all content that has arrived, and removes what was read from the buffer.

        Raises `BadHead`, after the content before it was returned.
        """
        content = bytearray()
        at, size = 0, len(buffer)
        try:
            while not self.is_whole:
                if self._left:
                    piece = buffer[at : at + self._left]
                    content += piece
                    at += len(piece)
                    self._left -= len(piece)
                    if self._left:
                        break
                    self._is_ending = True
                if self._is_ending:
                    if not buffer.startswith(b"\r\n", at):
                        if not b"\r\n".startswith(buffer[at : at + 2]):
                            raise BadHead("a chunk is longer than its size")
                        break
                    at += 2
                    self._is_ending = False
                if self._trailers is None:
                    if (found := _SIZE_LINE.match(buffer, at)) is None:
                        if size - at > _LONGEST_LINE or buffer.find(b"\n", at) >= 0:
                            raise BadHead("a chunk has no size")
                        break
                    self._left = int(found[1], 16)
                    at = found.end()
                    if self._left:
                        continue
                    self._trailers = 0
                end = buffer.find(b"\r\n", at, at + _LONGEST_LINE)
                if end < 0:
                    if size - at > _LONGEST_LINE:
                        raise BadHead("a line is too long")
                    break
                if end > at:
                    if self._trailers == _MOST_TRAILERS:
                        raise BadHead(f"more than {_MOST_TRAILERS} trailers")
                    self._trailers += 1
                    parse_trailer(bytes(buffer[at:end]))
                self.is_whole = end == at
                at = end + 2
        except BadHead:
            if not content:
                raise  # otherwise the next call comes to the same place
        del buffer[:at]
        return bytes(content)


async def _relay_chunks(source: Source[SinkT], to: SinkT, allow: Callable[[int], None]) -> None:
    out = bytearray()
    """Small chunks are sent together, but never wait for further ones."""
    while True:
        if out and (len(out) >= _GATHER or not source.line_ready()):
            await to.write(out)
            out = bytearray()
        found = _SIZE.fullmatch(await source.line(_LONGEST_LINE))
        if found is None:
            raise BadHead("a chunk has no size")
        size = int(found[1], 16)
        allow(size)
        out += b"%x\r\n" % size
        if size == 0:
            break
        data = source.take(size)
        out += data
        if len(data) < size:
            await to.write(out)
            out = bytearray()
            if await source.pump(to, size - len(data)) < size - len(data):
                raise Ended("the connection closed within a chunk")
        if await source.line(0):
            raise BadHead("a chunk is longer than its size")
        out += b"\r\n"
    for _ in range(_MOST_TRAILERS):
        line = await source.line(_LONGEST_LINE)
        if not line:
            out += b"\r\n"
            await to.write(out)
            return
        out += parse_trailer(line)
    raise BadHead(f"more than {_MOST_TRAILERS} trailers")
