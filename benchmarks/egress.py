"""Measures the way out of boxes against a direct connection on loopback, in one run.

    .holdfast/dev-*/bin/python benchmarks/egress.py [--quick] [--only ROW] [--json | --markdown]

Server, proxy and client are processes of their own, as they are in life. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from measuring import Samples, chosen, in_rounds
from report import Goal, Result, Row, percentile
from roles import Roles, connected, started

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.egress import DecisionLog, EgressProxy, Limits
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.egress_decisions import SqliteDecisions
from holdfast.testing.outside import LoopbackConnector, StaticNames

_HOST: Final = "a.example.com"
_ADDRESS: Final = "93.184.215.14"
_PIECE: Final = 1 << 20

ROWS: Final = (
    Row("tunnel", "download through a CONNECT tunnel", "MB/s", Goal("at least", 0.5, "at least 0.5 times")),
    Row("upload", "upload through a CONNECT tunnel", "MB/s", Goal("at least", 0.5, "at least 0.5 times")),
    Row("http", "download by plain HTTP", "MB/s", Goal("at least", 0.5, "at least 0.5 times")),
    Row("first", "connect → first byte by plain HTTP, p50", "ms", None),
    Row("first-later", "how much later the first byte comes, p50", "ms", Goal("under", 2.0, "at most 2 ms later")),
    Row("crowd", "200 downloads at once by plain HTTP, together", "MB/s", Goal("at least", 0.5, "at least 0.5 times")),
)


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    bulk: int
    firsts: int
    crowd: int
    crowd_bulk: int
    """Bytes of each."""


FULL: Final = Size(rounds=5, bulk=2 << 30, firsts=500, crowd=200, crowd_bulk=5 << 20)
QUICK: Final = Size(rounds=1, bulk=1 << 28, firsts=50, crowd=200, crowd_bulk=1 << 20)


# --- the server and the proxy, as processes of their own ---


def serve() -> None:
    """`GET /N` gives N bytes, `PUT` takes what comes and then says how much that was."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    zeros = bytes(_PIECE)

    def answer(client: socket.socket) -> None:
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := client.recv(65536)):
                    return
                head += data
            head, _, rest = head.partition(b"\r\n\r\n")
            method, path = head.split(b" ")[:2]
            if method == b"PUT":
                left = int(path[1:]) - len(rest)
                buffer = bytearray(_PIECE)
                while left > 0 and (many := client.recv_into(buffer)):
                    left -= many
                client.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                return
            left = int(path[1:])
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % left)
            while left > 0:
                left -= client.send(zeros if left >= _PIECE else zeros[:left])

    while True:
        client, _ = listener.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


def run_proxy(server: int) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="holdfast-egress-") as folder:
            names = StaticNames({_HOST: [_ADDRESS]})
            connector = LoopbackConnector({(_ADDRESS, 80): server})
            async with (
                Database(Path(folder) / "data.db") as database,
                DecisionLog(SqliteDecisions(database)) as records,
                EgressProxy(names, connector, records, limits=Limits(requests=1e9)) as proxy,
            ):
                listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
                proxy.admit("b-1", NetworkPolicy(Network.OPEN), {})
                print(listener.getsockname()[1], flush=True)
                proxy.listen("b-1", listener)
                await asyncio.to_thread(sys.stdin.read)  # until whoever started us is gone

    uvloop.run(main())


# --- the client ---


@dataclass(frozen=True, slots=True)
class Route:
    """How a client gets to the server."""

    port: int
    absolute: bool = False
    tunnel: bool = False

    def open(self) -> socket.socket:
        sock = connected(self.port)
        if self.tunnel:
            sock.sendall(f"CONNECT {_HOST}:80 HTTP/1.1\r\nHost: {_HOST}:80\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += sock.recv(1)
        return sock

    def head(self, method: str, size: int) -> bytes:
        target = f"http://{_HOST}/{size}" if self.absolute else f"/{size}"
        length = f"Content-Length: {size}\r\n" if method == "PUT" else ""
        return f"{method} {target} HTTP/1.1\r\nHost: {_HOST}\r\nConnection: close\r\n{length}\r\n".encode()


def download(path: Route, size: int) -> float:
    """MB/s."""
    buffer = bytearray(_PIECE)
    with path.open() as sock:
        begin = time.perf_counter()
        sock.sendall(path.head("GET", size))
        count = 0
        while many := sock.recv_into(buffer):
            count += many
        taken = time.perf_counter() - begin
    if count < size:
        raise RuntimeError(f"{count} of {size} bytes arrived")
    return count / taken / 1e6


def upload(path: Route, size: int) -> float:
    zeros = bytes(_PIECE)
    with path.open() as sock:
        begin = time.perf_counter()
        sock.sendall(path.head("PUT", size))
        left = size
        while left:
            left -= sock.send(zeros if left >= _PIECE else zeros[:left])
        if not sock.recv(1024).startswith(b"HTTP/1.1 204"):
            raise RuntimeError("the server did not get it all")
        return size / (time.perf_counter() - begin) / 1e6


def first_byte(path: Route) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    with path.open() as sock:
        sock.sendall(path.head("GET", 1))
        sock.recv(1)
        taken = (time.perf_counter() - begin) * 1000
        while sock.recv(4096):
            pass  # to the end, so that nobody sees a reset
        return taken


async def crowd(path: Route, many: int, size: int) -> tuple[float, list[float]]:
    """MB/s of all together, and when each had its first byte."""
    loop = asyncio.get_running_loop()
    buffers = [bytearray(1 << 18)] * many  # nobody looks at what is in them

    async def one(buffer: bytearray) -> float:
        with socket.socket() as sock:
            sock.setblocking(False)
            begin = time.perf_counter()
            await loop.sock_connect(sock, ("127.0.0.1", path.port))
            await loop.sock_sendall(sock, path.head("GET", size))
            count, first = 0, 0.0
            while got := await loop.sock_recv_into(sock, buffer):
                first = first or (time.perf_counter() - begin) * 1000
                count += got
        if count < size:
            raise RuntimeError(f"{count} of {size} bytes arrived")
        return first

    begin = time.perf_counter()
    firsts = await asyncio.gather(*(one(buffer) for buffer in buffers))
    return many * size / (time.perf_counter() - begin) / 1e6, firsts


# --- rows ---


class Bench:
    def __init__(self, server: int, proxy: int, size: Size) -> None:
        self.direct = Route(server)
        self.http = Route(proxy, absolute=True)
        self.through = Route(proxy, tunnel=True)
        self.size = size
        self.samples = Samples()

    def tunnel(self) -> None:
        self.samples.add("tunnel", "reference", download(self.direct, self.size.bulk))
        self.samples.add("tunnel", "holdfast", download(self.through, self.size.bulk))

    def upload(self) -> None:
        self.samples.add("upload", "reference", upload(self.direct, self.size.bulk))
        self.samples.add("upload", "holdfast", upload(self.through, self.size.bulk))

    def plain(self) -> None:
        self.samples.add("http", "reference", download(self.direct, self.size.bulk))
        self.samples.add("http", "holdfast", download(self.http, self.size.bulk))

    def first(self) -> None:
        direct, ours = [], []
        for _ in range(self.size.firsts):
            direct.append(first_byte(self.direct))
            ours.append(first_byte(self.http))
        self.samples.add_median("first", "reference", direct)
        self.samples.add_median("first", "holdfast", ours)
        later = statistics.median(ours) - statistics.median(direct)
        self.samples.add("first-later", "holdfast", later, p99=percentile(ours, 0.99) - percentile(direct, 0.99))

    def crowd(self) -> None:
        for side, path in (("reference", self.direct), ("holdfast", self.http)):
            speed, firsts = uvloop.run(crowd(path, self.size.crowd, self.size.crowd_bulk))
            self.samples.add(
                "crowd", side, speed, **{"first byte p50 ms": statistics.median(firsts), "slowest ms": max(firsts)}
            )


_WORK: Final[dict[str, Callable[[Bench], None]]] = {
    "tunnel": Bench.tunnel,
    "upload": Bench.upload,
    "http": Bench.plain,
    "first": Bench.first,
    "crowd": Bench.crowd,
}
_ALSO: Final = {"first-later": "first"}


def measure(size: Size, only: Sequence[str]) -> list[Result]:
    names = chosen(only, list(_WORK), _ALSO)
    with (
        started(__file__, "server") as (server, _),
        started(__file__, "proxy", "--server", str(server)) as (proxy, _),
    ):
        bench = Bench(server, proxy, size)
        first_byte(bench.http)
        for name in in_rounds(names, size.rounds):
            _WORK[name](bench)
    return bench.samples.results(ROWS)


def main() -> None:
    by_name = {"server": lambda _: serve(), "proxy": lambda given: run_proxy(given.server)}
    Roles(__doc__, ROWS, by_name, ports=("server",)).run(QUICK, FULL, measure, "direct")


if __name__ == "__main__":
    main()
