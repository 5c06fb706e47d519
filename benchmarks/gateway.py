"""Measures the gateway of sessions against nginx as the same proxy, in one run.

    .holdfast/dev-*/bin/python benchmarks/gateway.py [--quick] [--only ROW] [--json | --markdown]

Program, proxies and client are processes of their own. nginx is the one of this machine, or, with apt, is unpacked from
Debian's package. Without it only our own figures are printed. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import uvloop
from gateway_boxes import open_boxes
from measuring import Samples, chosen, in_rounds
from report import Goal, Result, Row, percentile
from roles import Roles, connected, started

from holdfast.testing.server import ServerProcess

_PIECE: Final = 1 << 20
_HALF: Final = Goal("at least", 0.5, "at least 0.5 times")

ROWS: Final = (
    Row("requests", "small requests, 16 clients", "1/s", _HALF),
    Row("download", "download of a large file", "MB/s", _HALF),
    Row("upload", "upload of a large file", "MB/s", _HALF),
    Row("echo", "WebSocket echo of 64 bytes, p50", "ms", None),
    Row("echo-later", "how much later the echo comes, p50", "ms", Goal("under", 1.0, "at most 1 ms later")),
)


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    seconds: float
    """Of requests, in each round."""
    bulk: int
    echoes: int


FULL: Final = Size(rounds=5, seconds=5.0, bulk=1 << 29, echoes=3000)
QUICK: Final = Size(rounds=1, seconds=1.0, bulk=1 << 26, echoes=300)


# --- the program behind the proxies ---


class Program(asyncio.Protocol):
    """`GET /N` gives N bytes, `PUT` takes its body, and the frames of a WebSocket are echoed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.head = b""
        self.left: int | None = None
        self.echo = False
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self.echo:
            self.transport.write(_unmasked(data))
            return
        if self.left is None:
            self.head += data
            if b"\r\n\r\n" not in self.head:
                return
            head, _, data = self.head.partition(b"\r\n\r\n")
            self.head = b""
            if b"\r\nupgrade: websocket" in head.lower():
                self.echo = True
                self.transport.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
                )
                return
            if head.startswith(b"GET"):
                size = int(head.split(b" ")[1].rpartition(b"/")[2])
                self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
                self.task = asyncio.create_task(self.send(size))
                return
            fields = (line.partition(b":") for line in head.split(b"\r\n")[1:])
            self.left = next(int(value) for name, _, value in fields if name.strip().lower() == b"content-length")
        self.left -= len(data)
        if self.left <= 0:
            self.left = None
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async def send(self, size: int) -> None:
        zeros = bytes(_PIECE)
        while size > 0 and not self.transport.is_closing():
            await self.writable.wait()
            self.transport.write(zeros if size >= _PIECE else zeros[:size])
            size -= _PIECE


def _unmasked(frame: bytes) -> bytes:
    """The answer to a frame of a client with less than 126 bytes."""
    mask, data = frame[2:6], frame[6:]
    return bytes((0x82, len(data))) + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


def serve() -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Program, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until whoever started us is gone

    uvloop.run(main())


# --- the proxies ---


@dataclass(frozen=True, slots=True)
class Route:
    """How a client gets to the program."""

    port: int
    headers: str

    def open(self) -> socket.socket:
        return connected(self.port)

    def head(self, method: str, path: str, more: str = "") -> bytes:
        return f"{method} {path} HTTP/1.1\r\n{self.headers}{more}\r\n".encode()


@contextlib.contextmanager
def gateway(port: int, folder: Path) -> Iterator[Route]:
    """A session whose tunnel leads to the program, and the cookie of a browser at its origin."""
    with (
        ServerProcess(folder / "home", providers=open_boxes, log_level="warning") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client,
    ):
        key = {"authorization": f"Bearer {server.api_key}"}
        session = client.post("/v1/threads", json={}, headers=key).json()["id"]
        client.post("/v1/boxes", json={"key": f"thread/{session}"}, headers=key).raise_for_status()
        client.post(f"/v1/sessions/{session}/tunnels", json={"name": "app", "port": port}, headers=key)
        token = client.post(f"/v1/sessions/{session}/links", json={}, headers=key).json()["token"]
        host = f"{session}.localhost:{server.address[1]}"
        cookie = client.get(f"/?token={token}", headers={"host": host}).headers["set-cookie"].partition(";")[0]
        client.cookies.clear()
        led = client.get("/t/app/", headers={"host": host, "cookie": cookie}).headers["location"]
        query = led.partition("?")[2]
        entered = client.get(f"/?{query}", headers={"host": f"app--{host}"})
        own = entered.headers["set-cookie"].partition(";")[0]
        yield Route(server.address[1], f"host: app--{host}\r\ncookie: {own}\r\n")


def find_nginx(folder: Path) -> Path | None:
    """nginx of this machine, or Debian's, unpacked into a folder and not installed."""
    if (found := shutil.which("nginx")) is not None:
        return Path(found)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    folder.mkdir()
    fetched = subprocess.run(["apt-get", "download", "nginx"], cwd=folder, capture_output=True, check=False)
    for package in folder.glob("nginx_*.deb"):
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=folder, check=True)
        if (folder / "usr/sbin/nginx").exists():
            return folder / "usr/sbin/nginx"
    print(f"nginx is not here: {fetched.stderr.decode()[-300:]}", file=sys.stderr)
    return None


_CONFIGURATION: Final = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 0; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{program};
      proxy_http_version 1.1;
      proxy_set_header Host $host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_request_buffering off;
      proxy_buffering on;
      proxy_max_temp_file_size 0;
    }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(binary: Path, program: int, folder: Path) -> Iterator[Route]:
    """One process, as our server is one."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    folder.mkdir()
    settings = folder / "nginx.conf"
    settings.write_text(_CONFIGURATION.format(folder=folder, port=port, program=program))
    with subprocess.Popen(
        [str(binary), "-c", str(settings), "-e", str(folder / "error.log"), "-p", str(folder)]
    ) as process:
        try:
            _wait_for(port)
            yield Route(port, "host: localhost\r\n")
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    ends = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


# --- the client ---


class Asking(asyncio.Protocol):
    """Sends the same request again as soon as its answer is there."""

    def __init__(self, request: bytes, answer: int) -> None:
        self.request = request
        self.answer = answer
        self.done = 0
        self.got = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.got += data
        end = self.got.find(b"\r\n\r\n")
        if end < 0 or len(self.got) < end + 4 + self.answer:
            return
        if not self.got.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(self.got[:200])
        self.got = b""
        self.done += 1
        self.transport.write(self.request)


async def ask(route: Route, clients: int, seconds: float) -> float:
    """Requests per second of all together."""
    request = route.head("GET", "/100")
    loop = asyncio.get_running_loop()
    asking = [
        (await loop.create_connection(lambda: Asking(request, 100), "127.0.0.1", route.port))[1] for _ in range(clients)
    ]
    before = sum(each.done for each in asking)
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (sum(each.done for each in asking) - before) / (time.perf_counter() - began)
    for each in asking:
        each.transport.abort()
    if not rate:
        raise RuntimeError("no request was answered")
    return rate


def download(route: Route, size: int) -> float:
    """MB/s."""
    buffer = bytearray(_PIECE)
    with route.open() as sock:
        begin = time.perf_counter()
        sock.sendall(route.head("GET", f"/{size}", "connection: close\r\n"))
        count = 0
        while many := sock.recv_into(buffer):
            count += many
        taken = time.perf_counter() - begin
    if count < size:
        raise RuntimeError(f"{count} of {size} bytes arrived")
    return count / taken / 1e6


def upload(route: Route, size: int) -> float:
    zeros = bytes(_PIECE)
    with route.open() as sock:
        begin = time.perf_counter()
        sock.sendall(route.head("PUT", "/", f"content-length: {size}\r\n"))
        left = size
        while left:
            left -= sock.send(zeros if left >= _PIECE else zeros[:left])
        if not sock.recv(1024).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("the program did not get it all")
        return size / (time.perf_counter() - begin) / 1e6


class Socket:
    """A WebSocket by hand."""

    def __init__(self, route: Route) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        fields = (
            f"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n"
        )
        self.socket = route.open()
        self.socket.sendall(route.head("GET", "/", fields))
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := self.socket.recv(4096)):
                raise RuntimeError(f"no upgrade: {head[:200]!r}")
            head += data
        if not head.startswith(b"HTTP/1.1 101"):
            raise RuntimeError(f"no upgrade: {head[:200]!r}")
        data = os.urandom(64)
        mask = struct.pack(">I", 0x01020304)
        self._frame = bytes((0x82, 0x80 | 64)) + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))

    def echo(self) -> float:
        """Milliseconds."""
        begin = time.perf_counter()
        self.socket.sendall(self._frame)
        left = 66
        while left:
            left -= len(self.socket.recv(left))
        return (time.perf_counter() - begin) * 1000


# --- rows ---


class Bench:
    def __init__(self, routes: dict[str, Route], size: Size) -> None:
        self.routes = routes
        self.size = size
        self.samples = Samples()

    def requests(self) -> None:
        for side, route in self.routes.items():
            self.samples.add("requests", side, uvloop.run(ask(route, 16, self.size.seconds)))

    def download(self) -> None:
        for side, route in self.routes.items():
            self.samples.add("download", side, download(route, self.size.bulk))

    def upload(self) -> None:
        for side, route in self.routes.items():
            self.samples.add("upload", side, upload(route, self.size.bulk))

    def echo(self) -> None:
        sockets = {side: Socket(route) for side, route in self.routes.items()}
        taken: dict[str, list[float]] = {side: [] for side in sockets}
        for _ in range(self.size.echoes):
            for side, each in sockets.items():
                taken[side].append(each.echo())
        for side, each in sockets.items():
            each.socket.close()
            self.samples.add_median("echo", side, taken[side])
        if "reference" in taken:
            later = statistics.median(taken["holdfast"]) - statistics.median(taken["reference"])
            self.samples.add(
                "echo-later",
                "holdfast",
                later,
                p99=percentile(taken["holdfast"], 0.99) - percentile(taken["reference"], 0.99),
            )


_WORK: Final[dict[str, Callable[[Bench], None]]] = {
    "requests": Bench.requests,
    "download": Bench.download,
    "upload": Bench.upload,
    "echo": Bench.echo,
}
_ALSO: Final = {"echo-later": "echo"}


def measure(size: Size, only: Sequence[str]) -> list[Result]:
    names = chosen(only, list(_WORK), _ALSO)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-gateway-")))
        port, _ = stack.enter_context(started(__file__, "program"))
        routes = {}
        if (binary := find_nginx(folder / "debian")) is not None:
            routes["reference"] = stack.enter_context(nginx(binary, port, folder / "nginx"))
        else:
            print("nginx is missing (apt install nginx): nothing to compare with", file=sys.stderr)
        routes["holdfast"] = stack.enter_context(gateway(port, folder))
        bench = Bench(routes, size)
        for name in in_rounds(names, size.rounds):
            _WORK[name](bench)
        return bench.samples.results(ROWS)


def main() -> None:
    Roles(__doc__, ROWS, {"program": lambda _: serve()}).run(QUICK, FULL, measure, "nginx")


if __name__ == "__main__":
    main()
