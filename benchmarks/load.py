"""The load generator: raw connections on uvloop that send bytes made beforehand and read as little as they can.

It must not be what is measured. So it runs in a process apart from the server, the same code drives both servers, and
the report says how much of a processor each of the two used.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

MESSAGE_BYTES: Final = 200
_PATIENCE_SECONDS: Final = 120.0
"""After this long without an answer the measurement has failed."""
_CONNECTING: Final = 64


class LoadFailed(Exception):
    """A server answered what it should not have, hung up, or did not answer."""


# Messages


def message(series: int, number: int) -> bytes:
    """A JSON object of 200 bytes that is also an entry of a thread. Its id is unique to the series and number."""
    return b"".join((_BEFORE_ID, b"%06d-%010d" % (series, number), _AFTER_ID))


_BEFORE_ID: Final = b'{"id":"e-'
_FIELDS: Final = b'","ts":1767225600000,"payload":{"type":"chat","role":"user","text":"'
_AFTER_ID: Final = _FIELDS + b"m" * (MESSAGE_BYTES - len(_BEFORE_ID) - 17 - len(_FIELDS) - 3) + b'"}}'


def batch(series: int, count: int) -> bytes:
    return b"[" + b",".join([message(series, number) for number in range(count)]) + b"]"


def request(method: str, target: str, body: bytes = b"") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if body or method in ("PUT", "POST"):
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


# Connections


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[bytes, bytes]
    """Names in lower case."""
    pieces: list[bytes]
    """The body as it came in; with chunk sizes in between where it was chunked."""

    def body(self) -> bytes:
        raw = b"".join(self.pieces)
        if self.headers.get(b"transfer-encoding") != b"chunked":
            return raw
        position = 0
        parts: list[bytes] = []
        while True:
            line_end = raw.index(b"\r\n", position)
            size = int(raw[position:line_end], 16)
            if size == 0:
                return b"".join(parts)
            parts.append(raw[line_end + 2 : line_end + 2 + size])
            position = line_end + 2 + size + 2


class Connection(asyncio.Protocol):
    """A keep-alive connection for any request, one at a time. Bodies are kept as they come and put together later."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._begin()

    def _begin(self) -> None:
        self._head = b""
        self._answer: Answer | None = None
        self._missing: int | None = 0
        """Bytes of the body that are still to come; None: it is chunked, and ends with an empty chunk."""
        self._end = b""

    async def ask(self, asked: bytes) -> Answer:
        assert self._transport is not None
        self._begin()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(asked)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await self._answered

    async def expect(self, asked: bytes, *statuses: int) -> Answer:
        answer = await self.ask(asked)
        if answer.status not in statuses:
            raise LoadFailed(f"{asked[:120]!r} was answered {answer.status}: {answer.body()[:500]!r}")
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(LoadFailed(f"the server hung up: {error}"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._read_head(head)
        answer = self._answer
        assert answer is not None
        if data:
            answer.pieces.append(data)
        if self._missing is None:
            self._end = (self._end + data)[-5:] if len(data) < 5 else data[-5:]
            finished = self._end == b"0\r\n\r\n"
        else:
            self._missing -= len(data)
            finished = self._missing <= 0
        if finished and self._answered is not None and not self._answered.done():
            self._answered.set_result(answer)

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        status = int(first.split()[1])
        self._answer = Answer(status, headers, [])
        if status in (204, 304):
            self._missing = 0
        elif headers.get(b"transfer-encoding") == b"chunked":
            self._missing = None
        else:
            self._missing = int(headers.get(b"content-length", b"0"))


class Writer(asyncio.Protocol):
    """Appends messages of 200 bytes to one stream, one per request. `on_acknowledged` decides what comes next."""

    def __init__(self, target: str, series: int, on_failed: Callable[[str], None]) -> None:
        whole = request("POST", target, message(series, 0))
        before, self._after = whole.split(b"-%010d" % 0)
        self._before = before + b"-"
        self._on_failed = on_failed
        self._rest = b""
        self._closing = False
        self.acknowledged = 0
        self.on_acknowledged: Callable[[], object] = self.send

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._write = transport.write

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closing:
            self._on_failed(f"the server hung up on a writer: {error}")

    def send(self) -> None:
        self._write(b"%b%010d%b" % (self._before, self.acknowledged, self._after))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not data.endswith(b"\r\n\r\n"):
            self._rest = data
            return
        self._rest = b""
        if data.startswith(b"HTTP/1.1 204"):
            self.acknowledged += 1
            self.on_acknowledged()
        else:
            self._on_failed(f"an append was answered {data[:500]!r}")

    def stop(self) -> asyncio.Future[None]:
        """Send nothing after the answer that is still to come; the future is done when that is here."""
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_acknowledged = lambda: stopped.set_result(None)
        return stopped

    def close(self) -> None:
        self._closing = True
        self._transport.close()


class Subscriber(asyncio.Protocol):
    """Tails one stream by SSE and calls `on_receipt` when the text it looks for has arrived."""

    def __init__(self, target: str, on_receipt: Callable[[], None], on_failed: Callable[[str], None]) -> None:
        self._request = request("GET", target)
        self._on_receipt = on_receipt
        self._on_failed = on_failed
        self._buffer = b""
        self._wanted: bytes | None = b"upToDate"
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closing:
            self._on_failed(f"the server hung up on a subscriber: {error}")

    def look_for(self, wanted: bytes) -> None:
        self._buffer = b""
        self._wanted = wanted

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        wanted = self._wanted
        if wanted is None:
            return
        if self._buffer:
            data = self._buffer + data
        if wanted not in data:
            self._buffer = data
            return
        self._wanted = None
        self._buffer = b""
        if self.ready.done():
            self._on_receipt()
        else:
            self.ready.set_result(None)


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Connection]:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection of ours while we measure."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Failures:
    """Ends a measurement when any of its connections fails."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_exception(LoadFailed(reason))

    async def unless(self, wanted: asyncio.Future[None] | asyncio.Task[None]) -> None:
        """Wait for something, or raise at the first failure."""
        done, _ = await asyncio.wait(
            (wanted, self.failed), timeout=_PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise LoadFailed(f"nothing happened for {_PATIENCE_SECONDS:.0f} s")
        if self.failed.done():
            self.failed.result()
        wanted.result()


# Measurements


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    acknowledged: int
    """All appends that were acknowledged, the warm-up's included."""


async def create_streams(port: int, targets: list[str]) -> None:
    async with connect(port) as connection:
        for target in targets:
            await connection.expect(request("PUT", target), 201)


async def measure_latency(port: int, target: str, count: int, warm_up: int, at_edge: Callable[[], None]) -> list[float]:
    """Seconds from sending an append to its acknowledgement; one connection, one append after the other."""
    clock = time.perf_counter
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failures = _Failures()
    writer = await _open_writer(port, target, 0, failures)
    latencies: list[float] = []
    began = 0.0

    def on_acknowledged() -> None:
        nonlocal began
        latencies.append(clock() - began)
        if len(latencies) == warm_up:
            at_edge()
        if len(latencies) == warm_up + count:
            at_edge()
            finished.set_result(None)
            return
        began = clock()
        writer.send()

    writer.on_acknowledged = on_acknowledged
    with undisturbed():
        began = clock()
        writer.send()
        await failures.unless(finished)
    writer.close()
    return latencies[warm_up:]


async def _open_writer(port: int, target: str, series: int, failures: _Failures) -> Writer:
    loop = asyncio.get_running_loop()
    _, writer = await loop.create_connection(lambda: Writer(target, series, failures), "127.0.0.1", port)
    return writer


async def measure_rate(
    port: int, targets: list[str], seconds: float, warm_up: float, at_edge: Callable[[], None]
) -> Rate:
    """Appends per second of one connection per target. `at_edge` is called as the measured time begins and ends."""
    failures = _Failures()
    writers = [await _open_writer(port, target, series, failures) for series, target in enumerate(targets)]
    with undisturbed():
        for writer in writers:
            writer.send()
        await _sleep(failures, warm_up)
        at_edge()
        before, began = sum(writer.acknowledged for writer in writers), time.perf_counter()
        await _sleep(failures, seconds)
        after, ended = sum(writer.acknowledged for writer in writers), time.perf_counter()
        at_edge()
    for stopped in [writer.stop() for writer in writers]:
        await failures.unless(stopped)
    for writer in writers:
        writer.close()
    return Rate((after - before) / (ended - began), sum(writer.acknowledged for writer in writers))


async def _sleep(failures: _Failures, seconds: float) -> None:
    await failures.unless(asyncio.ensure_future(asyncio.sleep(seconds)))


async def append_one_by_one(port: int, target: str, count: int, connections: int) -> None:
    """Append this many messages, each in a request of its own, over several connections."""
    remaining = count

    async def write(series: int) -> None:
        nonlocal remaining
        async with connect(port) as connection:
            number = 0
            while remaining > 0:
                remaining -= 1
                await connection.expect(request("POST", target, message(series, number)), 204)
                number += 1

    async with asyncio.TaskGroup() as group:
        for series in range(connections):
            group.create_task(write(series))


async def append_batches(port: int, target: str, count: int, size: int) -> None:
    async with connect(port) as connection:
        for series in range(count // size):
            await connection.expect(request("POST", target, batch(series, size)), 204)


async def measure_fan_out(
    port: int, target: str, subscribers: int, appends: int, warm_up: int, at_edge: Callable[[], None]
) -> list[float]:
    """Seconds from sending an append to its receipt, for every subscriber and append; the next after all have it."""
    loop = asyncio.get_running_loop()
    failures = _Failures()
    clock = time.perf_counter
    latencies: list[float] = []
    began = 0.0
    missing = 0
    complete: asyncio.Future[None] = loop.create_future()

    def on_receipt() -> None:
        nonlocal missing
        latencies.append(clock() - began)
        missing -= 1
        if not missing:
            complete.set_result(None)

    tail = f"{target}?offset=now&live=sse"
    tails = await _open_tails(port, [tail] * subscribers, on_receipt, failures)
    writer = await _open_writer(port, target, 0, failures)
    with undisturbed():
        for number in range(warm_up + appends):
            if number == warm_up:
                latencies.clear()
                at_edge()
            wanted = b"e-%06d-%010d" % (0, number)
            for each in tails:
                each.look_for(wanted)
            missing = subscribers
            complete, acknowledged = loop.create_future(), writer.stop()
            began = clock()
            writer.send()
            await failures.unless(complete)
            await failures.unless(acknowledged)
        at_edge()
    for each in tails:
        each.close()
    writer.close()
    return latencies


async def _open_tails(
    port: int, targets: list[str], on_receipt: Callable[[], None], failures: _Failures
) -> list[Subscriber]:
    loop = asyncio.get_running_loop()
    tails: list[Subscriber] = []
    for start in range(0, len(targets), _CONNECTING):
        opened = await asyncio.gather(
            *(
                loop.create_connection(lambda t=target: Subscriber(t, on_receipt, failures), "127.0.0.1", port)  # type: ignore[misc]
                for target in targets[start : start + _CONNECTING]
            )
        )
        tails += [subscriber for _, subscriber in opened]
        for _, subscriber in opened:
            await failures.unless(subscriber.ready)
    return tails


@dataclass(frozen=True, slots=True)
class CatchUp:
    messages: int
    seconds: float
    requests: int
    size: int


async def measure_catch_up(port: int, target: str) -> CatchUp:
    """Read a stream from its start until the server says that we are up to date, over one connection."""
    async with connect(port) as connection:
        answers = []
        offset = b"-1"
        with undisturbed():
            began = time.perf_counter()
            while True:
                answer = await connection.expect(request("GET", f"{target}?offset={offset.decode()}"), 200)
                answers.append(answer)
                offset = answer.headers[b"stream-next-offset"]
                if answer.headers.get(b"stream-up-to-date") == b"true":
                    break
            seconds = time.perf_counter() - began
    # Counted afterwards: we measure the server.
    bodies = [answer.body() for answer in answers]
    messages = sum(body.count(_BEFORE_ID) for body in bodies)
    return CatchUp(messages, seconds, len(answers), sum(map(len, bodies)))


@asynccontextmanager
async def idle_tails(port: int, sse: list[str], long_polls: list[str]) -> AsyncIterator[None]:
    """Tails at the end of these streams, on which nothing happens; all are still open when the block ends."""
    failures = _Failures()
    tails = await _open_tails(port, [f"{target}?offset=now&live=sse" for target in sse], _unexpected, failures)
    loop = asyncio.get_running_loop()
    waiting = []
    for target in long_polls:
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        asked = request("GET", f"{target}?offset=now&live=long-poll")
        waiting.append((connection, asyncio.ensure_future(connection.ask(asked))))
    yield
    if failures.failed.done():
        failures.failed.result()
    ended = [poll.result().status for _, poll in waiting if poll.done()]
    if ended:
        raise LoadFailed(f"{len(ended)} long-polls ended early, with {set(ended)}")
    for tail in tails:
        tail.close()
    for connection, poll in waiting:
        poll.cancel()
        connection.close()


def _unexpected() -> None:
    raise LoadFailed("an idle tail received something")


async def put_bodies(port: int, bodies: Iterator[tuple[str, bytes]], connections: int) -> None:
    """Create streams with their first messages, over several connections."""

    async def put() -> None:
        async with connect(port) as connection:
            for target, body in bodies:
                await connection.expect(request("PUT", target, body), 201)

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(put())
