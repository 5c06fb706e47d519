"""Follows a thread live: an iterator of entries that survives lost connections and server restarts.

Entries are returned only when the server has sent the offset after them. A broken connection resumes at that offset, so
no entry is repeated or skipped.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import httpx

from holdfast.api.errors import HoldfastError, Unauthorized, Unreachable, error_of
from holdfast.api.thread.entries import Entry
from holdfast.client.connection import ServerConnection, is_temporary, not_understood, retry_after
from holdfast.client.thread.thread import NOW, Position, parse_position
from holdfast.client.transport.asynchronous import LOST, reason_of

T = TypeVar("T")

_STEADY_SECONDS: Final = 1.0
"""A connection that lasted this long was good, so its end is not a failure."""
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class Progress:
    """The progress of a reader. Batches go in, single entries come out, and the position is always correct."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._batch: deque[Entry] = deque()
        self._end = position.offset

    def receive(self, entries: list[Entry], end: str) -> None:
        """Add a batch that begins at the position's offset. Must be called only when the previous batch is used up."""
        fresh = entries[self.position.past :]
        if fresh:
            self._batch.extend(fresh)
            self._end = end
        else:
            self.position = Position(end, self.position.past - len(entries))

    def hand_out(self) -> Entry | None:
        """Returns the next entry and moves the position past it, or None if there is none."""
        if not self._batch:
            return None
        entry = self._batch.popleft()
        past = self.position.past + 1
        self.position = Position(self.position.offset, past) if self._batch else Position(self._end)
        return entry


class Tail:
    """The entries of one thread, including future ones. Use it with `async for`; `async with` makes sure it is closed.

    It ends when the thread's stream is closed. It raises when the thread is gone or the credential is refused. After an
    error, a timeout or a cancellation, iteration can continue where it stopped.
    """

    def __init__(
        self, connection: ServerConnection, stream: str, *, since: str | None = None, patience: float | None = None
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._progress = Progress(parse_position(since))
        self._patience = patience
        self._finished = False
        self._one_reader = anyio.ResourceGuard("following")
        self._response: httpx.Response | None = None
        self._events: AsyncIterator[Event] | None = None
        self._cursor: str | None = None
        self._used = connection.address
        """The address used by the current or last connection."""
        self._connected_at = 0.0
        self._brought_entries = False
        """Whether the current or last connection delivered entries."""
        self._ever_connected = False
        self._failures = 0
        self._down_since: float | None = None

    @property
    def offset(self) -> str:
        """The position after the last entry returned: `thread.tail(since=tail.offset)`."""
        return str(self._progress.position)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        with self._one_reader:
            while (entry := self._progress.hand_out()) is None:
                if self._finished:
                    raise StopAsyncIteration
                await self._receive()
            return entry

    async def __aenter__(self) -> Self:
        """Resolve `now` on entry, so that nothing written afterwards is missed."""
        await self._fix_now()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following. The offset stays known. Closing twice does nothing."""
        self._finished = True
        await self._disconnect()

    async def _receive(self) -> None:
        """Receive the next batch. If the connection is lost, wait until the next attempt is due."""
        try:
            if self._events is None:
                self._used = self._connection.address
                await self._connect()
            await self._take_batch()
        except LOST as lost:
            await self._recover(self._connection.lost(f"GET {self._stream}", reason_of(lost), lost))
        except _NotNow as answer:
            await self._recover(answer.error, answer.delay)
        except Unauthorized as refused:
            await self._disconnect()
            if not await self._connection.found_elsewhere(refused, self._used):
                raise
        except BaseException:
            await self._disconnect()
            raise

    async def _connect(self) -> None:
        await self._fix_now()
        self._connected_at, self._brought_entries = time.monotonic(), False
        parameters = [("live", "sse"), ("offset", self._progress.position.offset)]
        if self._cursor is not None:
            parameters.append(("cursor", self._cursor))
        response = self._response = await self._connection.open_events(self._stream, parameters)
        if response.status_code != 200:
            status, headers = response.status_code, response.headers
            error = error_of(status, headers, await response.aread(), f"GET {self._stream}")
            raise _NotNow(error, retry_after(headers)) if is_temporary(status) else error
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise not_understood(f"{self._connection.url}{self._stream} did not return events")
        self._events = decode_events(response.aiter_bytes())
        self._ever_connected = True

    async def _fix_now(self) -> None:
        # Only once: if every connection began at `now`, entries written between two connections would be missed.
        if self._progress.position.offset == NOW:
            self._progress = Progress(Position(await end_of(self._connection, self._stream)))

    async def _take_batch(self) -> None:
        assert self._events is not None
        entries: list[Entry] = []
        async for event in self._events:
            if event.type == "data":
                entries += _read(event, lambda values: [Entry.from_json(each) for each in values])
            elif event.type == "control":
                self._cursor, end, closed = _read(event, _control)
                self._progress.receive(entries, end)
                self._brought_entries = self._brought_entries or bool(entries)
                self._down_since = None
                if closed:
                    await self.aclose()
                return
        await self._recover(Unreachable(f"{self._connection.url} closed the connection (GET {self._stream})"))

    async def _recover(self, error: HoldfastError, asked_delay: float = 0.0) -> None:
        """Handle a lost connection: retry at once after a good one, otherwise wait, longer each time."""
        now = time.monotonic()
        was_good = self._events is not None and (self._brought_entries or now - self._connected_at >= _STEADY_SECONDS)
        await self._disconnect()
        if self._finished:
            return
        if was_good:
            self._failures = 0
            return
        if await self._connection.found_elsewhere(error, self._used):
            return
        if self._down_since is None:
            self._down_since = now
        delay = self._connection.backoff.delay(self._failures, asked_delay)
        limit = self._patience if self._ever_connected else self._connection.retry_seconds
        if limit is not None and now + delay >= self._down_since + limit:
            self._down_since = None
            raise error
        self._failures += 1
        await self._connection.wait(error, delay, self._failures)

    async def _disconnect(self) -> None:
        response, self._response, self._events = self._response, None, None
        if response is not None:
            with anyio.CancelScope(shield=True):
                await response.aclose()


async def end_of(connection: ServerConnection, stream: str) -> str:
    """Returns the offset of the next entry to be written."""
    answer = await connection.ask("HEAD", stream)
    if (end := answer.headers.get("stream-next-offset")) is None:
        raise not_understood(f"{connection.url}{stream} did not return a stream-next-offset header")
    return end


class _NotNow(Exception):
    """A response that asks to try again later."""

    def __init__(self, error: HoldfastError, delay: float) -> None:
        super().__init__(error.message)
        self.error = error
        self.delay = delay


def _read(event: Event, from_json: Callable[[Any], T]) -> T:
    try:
        return from_json(json.loads(event.data))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise not_understood(f"an event cannot be read: {event.data[:80]!r}") from error


def _control(value: dict[str, Any]) -> tuple[str | None, str, bool]:
    return value.get("streamCursor"), str(value["streamNextOffset"]), value.get("streamClosed") is True


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event."""

    type: str
    data: str


class LineDecoder:
    """Splits bytes into lines. A line may arrive in any number of pieces, and a CRLF may be split in two."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that this chunk completes."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = _LINE_END.split(chunk)
        if len(lines) == 1:
            self._pieces.append(chunk)
            return []
        lines[0] = b"".join([*self._pieces, lines[0]])
        self._pieces = [lines.pop()]
        return lines


async def decode_events(chunks: AsyncIterable[bytes]) -> AsyncIterator[Event]:
    """Yields complete events. Drops an event that the end of the connection cuts off, as the standard requires."""
    decoder = LineDecoder()
    event_type, data = "message", list[str]()
    async for chunk in chunks:
        for line in decoder.feed(chunk):
            if not line:
                if data:
                    yield Event(event_type, "\n".join(data))
                event_type, data = "message", []
                continue
            name, _, value = line.partition(b":")
            text = value.removeprefix(b" ").decode()
            if name == b"data":
                data.append(text)
            elif name == b"event":
                event_type = text
