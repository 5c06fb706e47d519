"""The Durable Streams protocol over a store: requests in, responses out. Knows HTTP semantics, but no server.

Live SSE reads are in `tails`. The server authenticates the caller through `access` first. `authority` checks here what
the author may write on a thread.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote
from weakref import WeakValueDictionary

from holdfast.api.errors import Gone, InvalidRequest
from holdfast.api.ids import now_ms
from holdfast.threads.access.authority import Author, Authority, check_producer
from holdfast.threads.errors import method_not_allowed
from holdfast.threads.protocol.framing import WHOLE_BYTES, as_array, frame_json, frame_slices
from holdfast.threads.protocol.messages import Headers, Request, Response, Rest
from holdfast.threads.protocol.offsets import BEGINNING, NOW, format_offset, next_cursor, parse_offset
from holdfast.threads.store import (
    MAX_SAFE_INTEGER,
    Acknowledgement,
    Appended,
    AppendRequest,
    Change,
    ForkPoint,
    Keyed,
    Producer,
    Slice,
    StreamConfig,
    StreamInfo,
    StreamStore,
    is_json,
)
from holdfast.time_limit import time_limit

PREFIX: Final = "/v1/stream/"
THREADS: Final = "threads/"
_POLL_LIMIT: Final = 2 * 1024 * 1024
"""Approximate size of a long-poll response in bytes."""
_PIECE: Final = 512 * 1024
"""Approximate size of the part of a catch-up read that is in memory, for each reader."""

_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9_.~-]*(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)*")
_THREAD_PATH: Final = re.compile(r"threads/[A-Za-z0-9_-]{1,128}")
_CONTENT_TYPE: Final = re.compile(r"[\w.+-]+/[\w.+*-]+")
_NATURAL: Final = re.compile(r"0|[1-9][0-9]*")
_MAX_PATH: Final = 1024
_END_OF_TIME: Final = 253_402_300_800
"""The year 10000 in seconds. No RFC 3339 time can name it."""

_UP_TO_DATE: Final = (b"stream-up-to-date", b"true")
_CLOSED: Final = (b"stream-closed", b"true")
_NO_STORE: Final = (b"cache-control", b"no-store")
_CACHEABLE: Final = (b"cache-control", b"private, max-age=60, stale-while-revalidate=300")
Part = TypeVar("Part")


@functools.lru_cache(maxsize=4096)
def stream_path(raw: str) -> str:
    """Validate the path of a stream from a URL (after the prefix, still quoted). Returns it decoded."""
    path = raw if "%" not in raw else unquote(raw, errors="strict")
    if not _PLAIN_PATH.fullmatch(path):
        segments = path.split("/")
        if "" in segments or "." in segments or ".." in segments or not path.isprintable():
            raise InvalidRequest(f"{path[:200]!r} is not a valid stream path: empty, . and .. segments are not allowed")
    if len(path) > _MAX_PATH:
        raise InvalidRequest(f"the path of a stream must have at most {_MAX_PATH} characters")
    if path.startswith(THREADS) and not _THREAD_PATH.fullmatch(path):
        raise InvalidRequest(f"{path[:200]!r} is not a valid thread: ids are 1 to 128 letters, digits, - or _")
    return path


class StreamSurface:
    """The operations of the protocol: create, append, read, head and delete."""

    def __init__(
        self,
        store: StreamStore,
        authority: Authority,
        *,
        long_poll_timeout: float = 30.0,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._store = store
        self._authority = authority
        self._long_poll_timeout = long_poll_timeout
        self._clock = clock
        self._slices = Slices()
        self._producers: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By path and producer. A lock exists only while a task holds it or waits for it."""
        self._waiting: set[asyncio.Future[Change | None]] = set()

    def append(self, request: Request, author: Author) -> Acknowledgement:
        """Begin an append. Raises immediate errors here; later ones come with the acknowledgement.

        For bodies up to `WHOLE_BYTES`. Larger ones would block the event loop for too long: use `respond`.
        """
        append = _append_request(request, author)
        body, path = request.body, request.path
        if body:
            if path.startswith(THREADS):
                append.keyed = self._authority.entries(body, self._clock(), path[len(THREADS) :], author)
            else:
                append.data = frame_json(body) if is_json(append.content_type or "") else body
            _check_contents(append)
        return self._store.append(path, append)

    @property
    def takes_at_once(self) -> bool:
        """Whether small appends may use `append`. Not while a producer's large one is in progress, which they could
        overtake.
        """
        return not self._producers

    async def _post(self, request: Request, author: Author) -> Response:
        """An append of any size. Appends of one producer keep their order."""
        append = _append_request(request, author)
        if append.producer is None:
            acknowledgement = await self._begin(request, author, append)
        else:
            async with self._producers.setdefault((request.path, append.producer.id), asyncio.Lock()):
                acknowledgement = await self._begin(request, author, append)
        return self.appended(request, await acknowledgement)

    async def _begin(self, request: Request, author: Author, append: AppendRequest) -> Acknowledgement:
        if len(request.body) <= WHOLE_BYTES:
            return self.append(request, author)
        append.data, append.keyed = await self._contents(request, author, append.content_type or "")
        _check_contents(append)
        return await self._store.append_many(request.path, append)

    async def _contents(self, request: Request, author: Author, content_type: str) -> tuple[bytes, tuple[Keyed, ...]]:
        """Returns what a body appends: bytes, or entries on a thread. A large body does not block other tasks."""
        body, path = request.body, request.path
        if path.startswith(THREADS):
            now, thread = self._clock(), path[len(THREADS) :]
            slices = await self._slices.gather(self._authority.slices(body, now, thread, author))
            return b"", tuple(itertools.chain.from_iterable(slices))
        if is_json(content_type):
            return b"".join(await self._slices.gather(frame_slices(body))), ()
        return body, ()

    @staticmethod
    def appended(request: Request, appended: Appended) -> Response:
        headers: Headers = [(b"stream-next-offset", format_offset(appended.tail))]
        if appended.closed:
            headers.append(_CLOSED)
        producer = appended.producer
        if producer is None:
            return Response(204, headers)
        headers.append((b"producer-epoch", b"%d" % producer.epoch))
        headers.append((b"producer-seq", b"%d" % producer.seq))
        return Response(200 if request.body and not appended.duplicate else 204, headers)

    async def respond(self, request: Request, author: Author) -> Response:
        """Handle all requests except SSE."""
        match request.method:
            case "POST":
                return await self._post(request, author)
            case "GET":
                return await self._get(request)
            case "HEAD":
                return await self._head(request)
            case "PUT":
                return await self._put(request, author)
            case "DELETE":
                await self._store.delete(request.path)
                return Response(204, [])
        raise method_not_allowed(request.method, "GET, HEAD, PUT, POST, DELETE, OPTIONS")

    async def _put(self, request: Request, author: Author) -> Response:
        config = _config(request)
        path = request.path
        data = b""
        keyed: tuple[Keyed, ...] = ()
        holds_json = is_json(config.content_type or ("application/json" if config.fork else ""))
        if path.startswith(THREADS) and not holds_json:
            raise InvalidRequest("a thread holds application/json: create it with that Content-Type")
        if request.body:
            data, keyed = await self._contents(request, author, await self._content_type(config))
        created = await self._store.create(path, config, data, keyed)
        info = created.info
        headers: Headers = [
            (b"content-type", info.content_type.encode("latin-1")),
            (b"stream-next-offset", format_offset(info.tail)),
        ]
        if info.closed:
            headers.append(_CLOSED)
        if created.new:
            host = request.headers.get(b"host", b"localhost")
            headers.append((b"location", b"http://%s%s%s" % (host, PREFIX.encode(), quote(path).encode())))
        return Response(201 if created.new else 200, headers)

    async def _content_type(self, config: StreamConfig) -> str:
        if config.content_type is None and config.fork is not None:
            return (await self._store.head(config.fork.source)).content_type
        return config.content_type or ""

    async def _head(self, request: Request) -> Response:
        info = await self._store.head(request.path)
        headers: Headers = [
            (b"content-type", info.content_type.encode("latin-1")),
            (b"stream-next-offset", format_offset(info.tail)),
            _NO_STORE,
        ]
        if info.ttl_seconds is not None:
            headers.append((b"stream-ttl", b"%d" % info.ttl_seconds))
        if info.expires_at is not None:
            headers.append((b"stream-expires-at", _rfc3339(info.expires_at)))
        if info.closed:
            headers.append(_CLOSED)
        return Response(200, headers)

    async def _get(self, request: Request) -> Response:
        query = parse_query(request.query)
        live = query.get("live")
        if live not in (None, "long-poll"):
            raise InvalidRequest(f"live={live[:32]!r} is not supported: use long-poll or sse")
        offset = query.get("offset")
        if live is not None and offset is None:
            raise InvalidRequest("a long-poll needs an offset to start from")
        info = await self._store.touch(request.path)
        if offset == NOW and live is None:
            return _at_tail(info)
        start = info.tail if offset == NOW else start_of(offset)
        if live is None:
            piece = await self._store.read(request.path, start, _PIECE)
            headers = _headers_of(info, offset or BEGINNING, piece.tail, closed=piece.closed, up_to_date=True)
            return self._unless_known(request, headers) or _catch_up(self._store, info, piece, headers)
        cursor = query.get("cursor")
        piece = await self._store.read(request.path, start, _POLL_LIMIT)
        if not piece.data and piece.up_to_date:
            arrived = await self._wait(piece, request.path)
            if arrived is None:
                return self._nothing_new(cursor, await self._store.touch(request.path))
            piece = arrived
        final = piece.closed and piece.up_to_date
        headers = _headers_of(info, offset or BEGINNING, piece.end, closed=final, up_to_date=piece.up_to_date)
        headers.append((b"stream-cursor", b"%d" % next_cursor(cursor, self._clock())))
        body = as_array(piece.data) if is_json(info.content_type) else piece.data
        return self._unless_known(request, headers) or Response(200, headers, body)

    async def _wait(self, at: Slice, path: str) -> Slice | None:
        """Returns what arrives after the tail before the long-poll times out, or None."""
        if at.closed:
            return None
        change: asyncio.Future[Change | None] = asyncio.get_running_loop().create_future()

        def on_change(each: Change) -> None:
            if not change.done():
                change.set_result(each)

        unwatch = self._store.watch(path, on_change)
        self._waiting.add(change)
        try:
            # Read again, because a commit between the read and the watch is not announced.
            missed = await self._store.read(path, at.end, _POLL_LIMIT)
            if missed.data or missed.closed:
                return missed if missed.data else None
            async with time_limit(self._long_poll_timeout):
                arrived = await change
        except TimeoutError:
            return None
        finally:
            self._waiting.discard(change)
            unwatch()
        if arrived is None or arrived.deleted or arrived.data == b"":
            return None
        if arrived.data is not None and arrived.start == at.end:
            return Slice(arrived.data, arrived.start, arrived.end, arrived.end, arrived.closed)
        return await self._store.read(path, at.end, _POLL_LIMIT)

    def close(self) -> None:
        """Answer all waiting long-polls, so that the server can stop."""
        for change in self._waiting:
            if not change.done():
                change.set_result(None)

    def _nothing_new(self, cursor: str | None, info: StreamInfo) -> Response:
        headers: Headers = [
            (b"stream-next-offset", format_offset(info.tail)),
            _UP_TO_DATE,
            (b"stream-cursor", b"%d" % next_cursor(cursor, self._clock())),
            _NO_STORE,
        ]
        if info.closed:
            headers.append(_CLOSED)
        return Response(204, headers)

    @staticmethod
    def _unless_known(request: Request, headers: Headers) -> Response | None:
        """Returns the response for a client that already has these bytes, or None."""
        etag = dict(headers)[b"etag"]
        return Response(304, [(b"etag", etag)]) if _matches(request.headers.get(b"if-none-match"), etag) else None


def _append_request(request: Request, author: Author) -> AppendRequest:
    """Parse the headers of an append. Its contents are added later."""
    headers = request.headers
    close = _is_true(headers.get(b"stream-closed"))
    producer = _producer(headers) if not headers.keys().isdisjoint(_PRODUCER_HEADERS) else None
    if producer is not None and request.path.startswith(THREADS):
        check_producer(author, producer.id)
    content_type = None
    if request.body:
        content_type = request.header(b"content-type")
        if not content_type:
            raise InvalidRequest("an append needs a Content-Type header that matches the stream")
    elif not close:
        raise InvalidRequest("an empty body appends nothing")
    return AppendRequest(b"", content_type, producer, request.header(b"stream-seq"), close)


def _check_contents(append: AppendRequest) -> None:
    if not append.data and not append.keyed:
        raise InvalidRequest("an empty array appends nothing")


def _headers_of(info: StreamInfo, offset: str, end: int, *, closed: bool, up_to_date: bool) -> Headers:
    """Returns the headers of a read from `offset` to `end`."""
    headers: Headers = [
        (b"content-type", info.content_type.encode("latin-1")),
        (b"stream-next-offset", format_offset(end)),
        (b"etag", b'"%x:%s:%d%s"' % (info.id, offset.encode(), end, b":c" if closed else b"")),
        _CACHEABLE,
    ]
    if up_to_date:
        headers.append(_UP_TO_DATE)
    if closed:
        headers.append(_CLOSED)
    return headers


def _catch_up(store: StreamStore, info: StreamInfo, first: Slice, headers: Headers) -> Response:
    """Read up to the tail as it was at the start: as a whole, or as the first piece and an iterator of the others.

    The end is known in advance, and with it the headers and the length. Later appends are left to the next read.
    """
    json = is_json(info.content_type)
    if first.up_to_date:
        return Response(200, headers, as_array(first.data) if json else first.data)
    pieces = _pieces(store, info, first.end, first.tail, json=json)
    remaining = first.tail - first.end
    if not json:
        return Response(200, headers, first.data, Rest(remaining, pieces))
    return Response(200, headers, b"[" + first.data, Rest(remaining - 1, pieces))  # a bracket replaces a separator


async def _pieces(
    store: StreamStore, info: StreamInfo, position: int, tail: int, *, json: bool
) -> AsyncIterator[bytes]:
    while position < tail:
        piece = await store.read(info.path, position, _PIECE)
        if (await store.head(info.path)).id != info.id:
            raise Gone(f"stream {info.path} was replaced by another one during the read")
        data = piece.data[: tail - position]
        if not data:
            raise Gone(f"stream {info.path} was truncated from {tail} to {position} during the read")
        position += len(data)
        yield data[:-2] + b"]" if json and position == tail else data


def parse_query(query: bytes) -> dict[str, str]:
    """Returns query parameters by name. Raises if one of the protocol's own parameters is repeated."""
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=64)
    except (UnicodeDecodeError, ValueError):
        raise InvalidRequest("the query string of this URL cannot be parsed") from None
    for name, value in pairs:
        if name in found and name in ("offset", "live", "cursor"):
            raise InvalidRequest(f"{name} appears more than once in the query string")
        found[name] = value
    return found


def start_of(offset: str | None) -> int:
    return 0 if offset is None or offset == BEGINNING else parse_offset(offset)


def _at_tail(info: StreamInfo) -> Response:
    headers: Headers = [
        (b"content-type", info.content_type.encode("latin-1")),
        (b"stream-next-offset", format_offset(info.tail)),
        _UP_TO_DATE,
        _NO_STORE,
    ]
    if info.closed:
        headers.append(_CLOSED)
    return Response(200, headers, b"[]" if is_json(info.content_type) else b"")


def _is_true(value: bytes | None) -> bool:
    return value is not None and value.lower() == b"true"


_PRODUCER_HEADERS: Final = frozenset((b"producer-id", b"producer-epoch", b"producer-seq"))
_MAX_PRODUCER_ID: Final = 256


def _producer(headers: dict[bytes, bytes]) -> Producer:
    id, epoch, seq = (headers.get(name) for name in (b"producer-id", b"producer-epoch", b"producer-seq"))
    if id is None or epoch is None or seq is None:
        raise InvalidRequest("Producer-Id, Producer-Epoch and Producer-Seq must be sent together")
    if not 0 < len(id) <= _MAX_PRODUCER_ID:
        raise InvalidRequest(f"Producer-Id must have 1 to {_MAX_PRODUCER_ID} characters")
    return Producer(id.decode("latin-1"), _whole(b"Producer-Epoch", epoch), _whole(b"Producer-Seq", seq))


def _whole(name: bytes, value: bytes) -> int:
    if value.isdigit() and len(value) <= 16 and (number := int(value)) <= MAX_SAFE_INTEGER:
        return number
    raise InvalidRequest(f"{name.decode()} must be an integer from 0 to 2^53-1, not {value[:32]!r}")


def _config(request: Request) -> StreamConfig:
    ttl, expires = request.header(b"stream-ttl"), request.header(b"stream-expires-at")
    if ttl is not None and expires is not None:
        raise InvalidRequest("Stream-TTL and Stream-Expires-At exclude each other: send only one")
    if ttl is not None and (not _NATURAL.fullmatch(ttl) or len(ttl) > 12):
        raise InvalidRequest(f"Stream-TTL must be a whole number of seconds, not {ttl[:32]!r}")
    fork = _fork(request)
    content_type: str | None = (request.header(b"content-type") or "").strip()
    if not content_type or not _CONTENT_TYPE.match(content_type):
        content_type = None if fork else "application/octet-stream"
    return StreamConfig(
        content_type=content_type,
        ttl_seconds=int(ttl) if ttl is not None else None,
        expires_at=_milliseconds(expires) if expires is not None else None,
        closed=_is_true(request.headers.get(b"stream-closed")),
        fork=fork,
    )


def fork_source(request: Request) -> str | None:
    """The path of the stream that a request forks, which its caller must be allowed to read."""
    source = request.header(b"stream-forked-from")
    return None if source is None else _source_path(source)


def _source_path(source: str) -> str:
    return stream_path(source.removeprefix(PREFIX).removeprefix("/"))


def _fork(request: Request) -> ForkPoint | None:
    source = request.header(b"stream-forked-from")
    offset, sub_offset = request.header(b"stream-fork-offset"), request.header(b"stream-fork-sub-offset")
    if source is None:
        if sub_offset is not None or offset is not None:
            raise InvalidRequest("a fork offset needs Stream-Forked-From, the stream to fork")
        return None
    if sub_offset is not None and (not _NATURAL.fullmatch(sub_offset) or len(sub_offset) > 15):
        raise InvalidRequest(f"Stream-Fork-Sub-Offset must be a whole number, not {sub_offset[:32]!r}")
    return ForkPoint(
        source=_source_path(source),
        offset=start_of(offset) if offset else None,
        sub_offset=int(sub_offset or 0),
    )


def _milliseconds(timestamp: str) -> int:
    try:
        when = datetime.fromisoformat(timestamp)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None or "T" not in timestamp.upper() or when.timestamp() >= _END_OF_TIME:
        raise InvalidRequest(f"Stream-Expires-At must be a time like 2030-01-31T12:00:00Z, not {timestamp[:40]!r}")
    return int(when.timestamp() * 1000)


def _rfc3339(milliseconds: int) -> bytes:
    when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


def _matches(wanted: bytes | None, etag: bytes) -> bool:
    if wanted is None:
        return False
    return wanted.strip() == b"*" or etag in [each.strip().removeprefix(b"W/") for each in wanted.split(b",")]


class Slices:
    """Runs the parts of long work on the event loop: at most one per turn of the loop, however many tasks have work.

    A thread would not help: Python code in it would hold the interpreter lock for several milliseconds at a time.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        """Fair, so that tasks take turns."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Do one slice of work in this block, without awaiting anything."""
        async with self._turn:
            yield
            await asyncio.sleep(0)

    async def gather(self, parts: Iterable[Part]) -> list[Part]:
        """Collect all parts. Each step of the iterator is one slice of work."""
        gathered: list[Part] = []
        steps = iter(parts)
        while True:
            async with self.turn():
                try:
                    gathered.append(next(steps))
                except StopIteration:
                    return gathered
