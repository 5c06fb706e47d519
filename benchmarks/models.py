"""Measures the model gateway against a direct connection to the same provider, on loopback, in one run.

    .holdfast/dev-*/bin/python benchmarks/models.py [--quick] [--only ROW] [--json | --markdown]

Provider, gateway and client are processes of their own. The gateway counts every call and writes it to a thread on
disk, as a server does. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from measuring import Samples, chosen, in_rounds
from report import Goal, Result, Row, percentile
from roles import Roles, started

from holdfast.api.ids import now_ms
from holdfast.api.model.models import Api, Price
from holdfast.egress.models import (
    Budgets,
    LoopbackUpstream,
    Meter,
    ModelGateway,
    Models,
    Prices,
    Terms,
    ThreadJournal,
    load_from,
)
from holdfast.server.wire.uvicorn_adapter import HttpToolsProtocol, ServerState, make_config
from holdfast.storage.sqlite.storage import SqliteStorage
from holdfast.threads.access.credentials import RunGrant, RunScope
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.service import Threads

_STREAMS: Final = 32
_EVENTS_PER_SECOND: Final = 200
"""Of one stream. Fast models send about half of that."""
_GRANT: Final = RunGrant("default", "t-1", "r-1", 1, "b-1", RunScope.MODEL, "mine/scripted")

ROWS: Final = (
    Row(
        "streams",
        f"{_STREAMS} streams at once, {_EVENTS_PER_SECOND} events/s each, together",
        "events/s",
        Goal("at least", 0.9, "at least 0.9 times"),
    ),
    Row("bulk", f"{_STREAMS} streams at once, as fast as they go, together", "MB/s", None),
    Row("first", "request → first byte, p50", "ms", None),
    Row("first-later", "how much later the first byte comes, p50", "ms", Goal("under", 2.0, "at most 2 ms later")),
)


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    events: int
    """Of each paced stream."""
    bulk: int
    """Events of each unpaced stream."""
    firsts: int


FULL: Final = Size(rounds=5, events=1000, bulk=4000, firsts=300)
QUICK: Final = Size(rounds=1, events=100, bulk=400, firsts=30)


# --- the provider and the gateway, as processes of their own ---


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


_BEGIN: Final = _event(
    "message_start", message={"model": "scripted", "usage": {"input_tokens": 1000, "output_tokens": 1}}
)
_DELTA: Final = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a word or two "})
_END: Final = _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2000}) + _event(
    "message_stop"
)


def serve() -> None:
    """Streams as many events as a request asks for (`events`), in a second as many as it says (`pace`, 0: all)."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                asked = json.loads(await reader.readexactly(length))
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                _chunk(writer, _BEGIN)
                begin = time.perf_counter()
                for number in range(asked["events"]):
                    if asked["pace"]:
                        due = begin + number / asked["pace"]
                        await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    _chunk(writer, _DELTA)
                    await writer.drain()
                _chunk(writer, _END)
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until whoever started us is gone

    uvloop.run(main())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def run_gateway(provider: int) -> None:
    async def main() -> None:
        seals = Seals(b"k" * 32)
        with tempfile.TemporaryDirectory(prefix="holdfast-models-") as folder:
            async with await SqliteStorage.open(Path(folder)) as storage:
                projection = Projection(storage.streams, storage.thread_rows, seals)
                await projection.start()
                await Threads(storage.streams, projection).create(id="t-1")
                async with (
                    Models(storage.models, b"s" * 32) as models,
                    Prices(storage.model_prices) as prices,
                    Budgets(storage.budgets) as budgets,
                ):
                    url = f"http://127.0.0.1:{provider}"
                    key = "sk-real-0123456789abcdefghij"
                    await models.put("mine", apis=[Api.ANTHROPIC], base_url=url, key=key, model="scripted")
                    await prices.put("mine/scripted", Price(input=2, output=10))
                    journal = ThreadJournal(storage.streams, seals, now_ms)
                    meter = Meter(
                        prices,
                        budgets,
                        load_from(projection),
                        journal,
                        clock=now_ms,
                        ticks=lambda: time.monotonic_ns() // 10**6,
                    )
                    gateway = ModelGateway(models, LoopbackUpstream, meter=meter)
                    terms = Terms("t-1", "r-1", ("t-1",))

                    async def app(scope: Any, receive: Any, send: Any) -> None:
                        await gateway.handle(scope, receive, send, _GRANT, terms=terms)

                    config = make_config(app, HttpToolsProtocol)
                    config.load()
                    state = ServerState()
                    loop = asyncio.get_running_loop()
                    server = await loop.create_server(
                        lambda: HttpToolsProtocol(config, state, {}, _loop=loop), "127.0.0.1", 0, backlog=1024
                    )
                    print(server.sockets[0].getsockname()[1], flush=True)
                    await asyncio.to_thread(sys.stdin.read)

    uvloop.run(main())


# --- the client ---


@dataclass(frozen=True, slots=True)
class Route:
    port: int
    path: str

    async def ask(self, events: int, pace: int) -> tuple[float, int]:
        """Milliseconds to the first byte of the answer's body, and how many bytes came."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        body = json.dumps({"model": "scripted", "stream": True, "events": events, "pace": pace}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
        begin = time.perf_counter()
        writer.write(head.encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        count, first, tail = 0, 0.0, b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await reader.read(1 << 16)
            if not data:
                raise RuntimeError(f"the answer ended after {count} bytes")
            first = first or (time.perf_counter() - begin) * 1000
            count += len(data)
            tail = (tail + data)[-16:]
        writer.close()
        return first, count


async def crowd(route: Route, events: int, pace: int) -> tuple[float, float]:
    """Seconds, and bytes of all together."""
    begin = time.perf_counter()
    done = await asyncio.gather(*(route.ask(events, pace) for _ in range(_STREAMS)))
    return time.perf_counter() - begin, sum(count for _, count in done)


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, provider: int, gateway: int, pid: int, size: Size) -> None:
        self.pid = pid
        self.sides = (
            ("reference", Route(provider, "/v1/messages")),
            ("holdfast", Route(gateway, "/model/v1/messages")),
        )
        self.size = size
        self.samples = Samples()

    def streams(self) -> None:
        for side, route in self.sides:
            before, events = cpu_seconds(self.pid), _STREAMS * self.size.events
            seconds, _ = uvloop.run(crowd(route, self.size.events, _EVENTS_PER_SECOND))
            cpu = (cpu_seconds(self.pid) - before) * 1e6 / events
            details = {"gateway's CPU for an event, µs": cpu} if side == "holdfast" else {}
            self.samples.add("streams", side, events / seconds, **details)

    def bulk(self) -> None:
        size = self.size.bulk * len(_DELTA) * _STREAMS
        for side, route in self.sides:
            seconds, _ = uvloop.run(crowd(route, self.size.bulk, 0))
            self.samples.add("bulk", side, size / seconds / 1e6)

    def first(self) -> None:
        times: dict[str, list[float]] = {"reference": [], "holdfast": []}

        async def ask() -> None:
            for _ in range(self.size.firsts):
                for side, route in self.sides:
                    times[side].append((await route.ask(1, 0))[0])

        before = cpu_seconds(self.pid)
        uvloop.run(ask())
        cpu = (cpu_seconds(self.pid) - before) * 1000 / self.size.firsts
        for side, values in times.items():
            self.samples.add_median("first", side, values)
        direct, ours = times["reference"], times["holdfast"]
        later = statistics.median(ours) - statistics.median(direct)
        details = {"p99": percentile(ours, 0.99) - percentile(direct, 0.99), "gateway's CPU for a call, ms": cpu}
        self.samples.add("first-later", "holdfast", later, **details)


_WORK: Final[dict[str, Callable[[Bench], None]]] = {
    "streams": Bench.streams,
    "bulk": Bench.bulk,
    "first": Bench.first,
}
_ALSO: Final = {"first-later": "first"}


def measure(size: Size, only: Sequence[str]) -> list[Result]:
    names = chosen(only, list(_WORK), _ALSO)
    with (
        started(__file__, "provider") as (provider, _),
        started(__file__, "gateway", "--provider", str(provider)) as (gateway, pid),
    ):
        bench = Bench(provider, gateway, pid, size)
        for _, route in bench.sides:
            uvloop.run(crowd(route, 1, 0))
        for name in in_rounds(names, size.rounds):
            _WORK[name](bench)
    return bench.samples.results(ROWS)


def main() -> None:
    by_name = {"provider": lambda _: serve(), "gateway": lambda given: run_gateway(given.provider)}
    Roles(__doc__, ROWS, by_name, ports=("provider",)).run(QUICK, FULL, measure, "direct")


if __name__ == "__main__":
    main()
