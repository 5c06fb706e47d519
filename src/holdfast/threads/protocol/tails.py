"""Live reads by server-sent events: every commit is encoded once and written to all live readers.

A reader that cannot keep up leaves the live set, catches up from the store at its own pace, and joins again. Memory use
is limited to the socket buffers, however slow a reader is.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Final

from holdfast.api.errors import InvalidRequest
from holdfast.api.ids import now_ms
from holdfast.threads.protocol.framing import as_array
from holdfast.threads.protocol.messages import Channel, Headers, Request, Response
from holdfast.threads.protocol.offsets import NOW, format_offset, next_cursor
from holdfast.threads.protocol.surface import parse_query, start_of
from holdfast.threads.store import Change, Slice, StreamStore, is_json, normalize_content_type
from holdfast.time_limit import time_limit

_READ_LIMIT: Final = 256 * 1024
CYCLE_SECONDS: Final = 60.0


class Encoding:
    """How the bytes of one stream are encoded as events."""

    def __init__(self, content_type: str) -> None:
        media_type = normalize_content_type(content_type)
        self._json = is_json(media_type)
        self.base64 = not self._json and not media_type.startswith("text/")

    def data_event(self, data: bytes) -> bytes:
        if self._json:
            payload = as_array(data)
        elif self.base64:
            payload = base64.b64encode(data)
        else:
            # Normalise line ends: anything else that ends a line in an event stream would break the payload.
            payload = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return b"event: data\ndata:" + payload.replace(b"\n", b"\ndata:") + b"\n\n"


def control_event(position: int, cursor: int, *, up_to_date: bool, closed: bool) -> bytes:
    if closed:
        return b'event: control\ndata:{"streamNextOffset":"%s","streamClosed":true}\n\n' % format_offset(position)
    return b'event: control\ndata:{"streamNextOffset":"%s","streamCursor":"%d"%s}\n\n' % (
        format_offset(position),
        cursor,
        b',"upToDate":true' if up_to_date else b"",
    )


class Tail:
    """One reader at `position`. It is live while its broadcast writes to it directly."""

    __slots__ = ("channel", "echoed", "live", "position", "wake")

    def __init__(self, channel: Channel, position: int, echoed: str | None) -> None:
        self.channel = channel
        self.position = position
        self.echoed = echoed
        """The cursor that the client sent."""
        self.live = False
        self.wake: asyncio.Future[None] | None = None
        """Set while live. Done when the reader must read from the store, or when nothing more will come."""

    def stop_being_live(self) -> None:
        self.live = False
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class Broadcast:
    """All live readers of one stream, with one watch on the store."""

    def __init__(self, encoding: Encoding, clock: Callable[[], int]) -> None:
        self._encoding = encoding
        self._clock = clock
        self.tail = -1
        """The end of the stream, as far as the watch and the readers know."""
        self.closed = False
        self.deleted = False
        self.members = 0
        self.unwatch: Callable[[], None] = _nothing
        self._live: dict[Tail, None] = {}

    def join(self, tail: Tail) -> bool:
        """Make a reader live. Returns False if it is not at the end of the stream."""
        if tail.position != self.tail or self.closed or self.deleted:
            return False
        tail.live = True
        self._live[tail] = None
        return True

    def leave(self, tail: Tail) -> None:
        self._live.pop(tail, None)
        tail.stop_being_live()

    def on_change(self, change: Change) -> None:
        start, self.tail = self.tail, change.end
        self.closed |= change.closed
        self.deleted |= change.deleted
        is_carried = start == change.start and change.data is not None
        if self.deleted or not (is_carried or start == change.end):  # then readers read from the store
            for tail in list(self._live):
                self.leave(tail)
            return
        cursor = next_cursor(None, self._clock())
        event = self._encoding.data_event(change.data) if change.data else b""
        shared = event + control_event(change.end, cursor, up_to_date=True, closed=change.closed)
        for tail in list(self._live):
            if tail.echoed is None:
                tail.channel.write(shared)
            else:
                theirs = next_cursor(tail.echoed, self._clock())
                tail.channel.write(event + control_event(change.end, theirs, up_to_date=True, closed=change.closed))
            tail.position = change.end
            if change.closed or tail.channel.congested:
                self.leave(tail)


class Tails:
    """Serves SSE reads. Owns the broadcasts; a connection owns the task that runs `serve`."""

    def __init__(
        self, store: StreamStore, *, cycle_seconds: float = CYCLE_SECONDS, clock: Callable[[], int] = now_ms
    ) -> None:
        self._store = store
        self._cycle_seconds = cycle_seconds
        self._clock = clock
        self._broadcasts: dict[str, Broadcast] = {}
        self._closing = False
        self._open: set[Tail] = set()

    @property
    def open_count(self) -> int:
        return len(self._open)

    async def serve(self, request: Request, channel: Channel) -> None:
        """Send events until the stream is closed or deleted, or the cycle is over. Then the client reconnects."""
        query = parse_query(request.query)
        offset = query.get("offset")
        if offset is None:
            raise InvalidRequest("an SSE read needs an offset to start from")
        encoding = Encoding((await self._store.touch(request.path)).content_type)
        broadcast = self._enter(request.path, encoding)
        tail = Tail(channel, 0, query.get("cursor"))
        self._open.add(tail)
        try:
            # Read after the watch began, so that no commit falls in between.
            info = await self._store.head(request.path)
            broadcast.tail = max(broadcast.tail, info.tail)
            tail.position = info.tail if offset == NOW else start_of(offset)
            first = await self._store.read(request.path, tail.position, _READ_LIMIT)
            headers: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
            if encoding.base64:
                headers.append((b"stream-sse-data-encoding", b"base64"))
            channel.start(Response(200, headers))
            async with time_limit(self._cycle_seconds):
                await self._feed(request.path, tail, broadcast, encoding, first)
        except TimeoutError:
            pass  # the cycle is over; the client reconnects with its offset
        finally:
            self._open.discard(tail)
            self._exit(request.path, broadcast, tail)
        channel.finish()

    async def _feed(self, path: str, tail: Tail, broadcast: Broadcast, encoding: Encoding, first: Slice) -> None:
        piece: Slice | None = first
        told = False
        while not self._closing:
            if piece is None:
                piece = await self._store.read(path, tail.position, _READ_LIMIT)
            if piece.data or not told or piece.closed:
                self._write(tail, encoding, piece)
                told = True
            at_end = piece.up_to_date
            if piece.closed and at_end:
                return
            piece = None
            while tail.channel.congested:
                await tail.channel.drain()
            if at_end and broadcast.join(tail):
                tail.wake = asyncio.get_running_loop().create_future()
                try:
                    await tail.wake
                finally:
                    broadcast.leave(tail)
                if broadcast.deleted or (broadcast.closed and tail.position == broadcast.tail):
                    return
            elif broadcast.deleted:
                return

    def _write(self, tail: Tail, encoding: Encoding, piece: Slice) -> None:
        event = encoding.data_event(piece.data) if piece.data else b""
        cursor = next_cursor(tail.echoed, self._clock())
        closed = piece.closed and piece.up_to_date
        tail.channel.write(event + control_event(piece.end, cursor, up_to_date=piece.up_to_date, closed=closed))
        tail.position = piece.end

    def _enter(self, path: str, encoding: Encoding) -> Broadcast:
        broadcast = self._broadcasts.get(path)
        if broadcast is None or broadcast.deleted:
            broadcast = self._broadcasts[path] = Broadcast(encoding, self._clock)
            broadcast.unwatch = self._store.watch(path, broadcast.on_change)
        broadcast.members += 1
        return broadcast

    def _exit(self, path: str, broadcast: Broadcast, tail: Tail) -> None:
        broadcast.leave(tail)
        broadcast.members -= 1
        if not broadcast.members:
            broadcast.unwatch()
            if self._broadcasts.get(path) is broadcast:
                del self._broadcasts[path]

    def close(self) -> None:
        """End all event streams, so that the server can stop."""
        self._closing = True
        for tail in list(self._open):
            if tail.wake is not None and not tail.wake.done():
                tail.wake.set_result(None)


def _nothing() -> None:
    """The initial `unwatch` of a broadcast."""
