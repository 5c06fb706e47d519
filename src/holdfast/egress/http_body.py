"""Relays the body of an HTTP message from one connection to another. Chunks are parsed strictly and written anew."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol, TypeVar

from holdfast.egress.http_head import BadHead, Body, parse_trailer
from holdfast.egress.sockets import Ended, ReadAhead

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e]*)?")
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

    Raises `BadHead` and `Ended`.
    """
    if not body.chunked:
        left = body.length
        while left is None or left > 0:
            if not source.ahead and not await source.more():
                if left is None:
                    return
                raise Ended("the connection closed within a body")
            piece = source.take(_GATHER if left is None else min(left, _GATHER))
            left = None if left is None else left - len(piece)
            yield piece
        return
    while True:
        found = _SIZE.fullmatch(await source.line(_LONGEST_LINE))
        if found is None:
            raise BadHead("a chunk has no size")
        left = int(found[1], 16)
        if left == 0:
            break
        while left > 0:
            if not source.ahead and not await source.more():
                raise Ended("the connection closed within a chunk")
            piece = source.take(min(left, _GATHER))
            left -= len(piece)
            yield piece
        if await source.line(0):
            raise BadHead("a chunk is longer than its size")
    for _ in range(_MOST_TRAILERS):
        if not (line := await source.line(_LONGEST_LINE)):
            return
        parse_trailer(line)
    raise BadHead(f"more than {_MOST_TRAILERS} trailers")


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
