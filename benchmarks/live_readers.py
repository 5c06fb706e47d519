"""Many live readers of many threads: how long each entry takes from the one that sends it to each of its readers.

Readers and writers are processes apart from the server, and parse as little as they can: what is measured is the
server. Their clocks agree, because the monotonic clock is that of the machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Final

import uvloop
from load import Connection, connect, undisturbed

_SENT: Final = b'"sent":"'
_DIGITS: Final = 19
"""Of the clock in ns, so that it is found without parsing the entry."""
_PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Work:
    """What readers and writers do. Thread `n` is `t-<n>` with five digits."""

    port: int
    authorization: str
    threads: int
    readers: int
    entries_per_second: float
    seconds: float

    def head(self, method: str, thread: int, rest: str = "") -> str:
        path = f"/v1/stream/threads/t-{thread:05}{rest}"
        return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {self.authorization}\r\n"


def measure(work: Work) -> tuple[list[float], int]:
    """Returns how long each entry took to each of its readers in ms, and how many did not arrive."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reading = context.Process(target=_run_readers, args=(work, theirs))
    reading.start()
    theirs.close()  # so that the end of the readers is noticed
    try:
        assert ours.recv() == "ready"
        with context.Pool(1) as pool:
            expected = pool.apply(_run_writers, (work,)) * work.readers // work.threads
        ours.send(expected)
        delays: list[float] = ours.recv()
    finally:
        reading.join(_PATIENCE_SECONDS)
        reading.terminate()
    return delays, expected - len(delays)


class _Reader(asyncio.Protocol):
    """Reads events, and notes the delay of each entry in them."""

    def __init__(self, request: bytes, delays: list[float], ready: asyncio.Semaphore) -> None:
        self._request = request
        self._delays = delays
        self._ready: asyncio.Semaphore | None = ready
        self._rest = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        if self._ready is not None and b"upToDate" in data:
            self._ready.release()
            self._ready = None
        data = self._rest + data
        position = data.find(_SENT)
        end = 0
        while position >= 0 and len(data) >= position + len(_SENT) + _DIGITS:
            end = position + len(_SENT) + _DIGITS
            self._delays.append((now - int(data[position + len(_SENT) : end])) / 1e6)
            position = data.find(_SENT, end)
        self._rest = data[max(end, len(data) - _DIGITS - len(_SENT)) :]


def _run_readers(work: Work, pipe: Pipe) -> None:
    with undisturbed():
        uvloop.run(_read(work, pipe))


async def _read(work: Work, pipe: Pipe) -> None:
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    ready = asyncio.Semaphore(0)
    transports = []
    for number in range(work.readers):
        request = work.head("GET", number % work.threads, "?offset=now&live=sse") + "\r\n"
        transport, _ = await loop.create_connection(
            lambda request=request: _Reader(request.encode(), delays, ready), "127.0.0.1", work.port
        )
        transports.append(transport)
    for _ in transports:
        await ready.acquire()
    pipe.send("ready")
    expected = await asyncio.to_thread(pipe.recv)
    end = time.monotonic() + _PATIENCE_SECONDS
    while len(delays) < expected and time.monotonic() < end:  # noqa: ASYNC110 - an event for each entry would cost time
        await asyncio.sleep(0.05)
    pipe.send(delays)
    for transport in transports:
        transport.close()


def _run_writers(work: Work) -> int:
    with undisturbed():
        return uvloop.run(_write(work))


async def _write(work: Work) -> int:
    """One connection for each thread, each with its own place in the period. Returns how many entries were sent."""
    period = 1 / work.entries_per_second
    sent = 0

    async def write(number: int, connection: Connection, began: float) -> None:
        nonlocal sent
        due = began + period * number / work.threads
        while due < began + work.seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            entry = f'[{{"payload":{{"type":"bench","text":"{"x" * 200}","sent":"{time.perf_counter_ns():019}"}}}}]'
            head = work.head("POST", number) + f"Content-Type: application/json\r\nContent-Length: {len(entry)}\r\n\r\n"
            await connection.expect((head + entry).encode(), 200, 204)
            sent += 1
            due += period

    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect(work.port)) for _ in range(work.threads)]
        began = time.perf_counter()
        await asyncio.gather(*(write(number, each, began) for number, each in enumerate(connections)))
    return sent
