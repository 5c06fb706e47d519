"""A relay under attack, and with servers that are slow, broken or gone. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from holdfast.api.guest_url import GuestUrl
from holdfast.relay import Relay, RelayLimits, Upstream
from holdfast.relay.rules import is_for_guests

pytestmark = pytest.mark.anyio

WAIT = 20.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SHORT = RelayLimits(head=0.3, between=0.3, connect=0.3, body=1000, body_seconds=0.3, idle=0.3, stall=0.3)


class Server:
    """What a relay forwards to. Remembers every head and body that arrives."""

    def __init__(self, answer: bytes = OK) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.answer = answer
        self.connections = 0
        self._arrival = asyncio.Condition()

    async def arrived(self, many: int) -> None:
        """Wait for so many heads."""
        async with asyncio.timeout(WAIT), self._arrival:
            await self._arrival.wait_for(lambda: len(self.heads) >= many)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                async with self._arrival:
                    self.heads.append(head)
                    self._arrival.notify_all()
                length = next((int(each.split(b":")[1]) for each in head.split(b"\r\n")
                               if each.lower().startswith(b"content-length")), 0)  # fmt: skip
                if b"chunked" in head.lower():
                    self.bodies.append(await reader.readuntil(b"0\r\n\r\n"))
                else:
                    self.bodies.append(await reader.readexactly(length))
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        async with asyncio.timeout(WAIT):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of an answer with a length."""
        head = await self.head()
        length = next(int(each.split(b":")[1]) for each in head.split(b"\r\n")
                      if each.lower().startswith(b"content-length"))  # fmt: skip
        async with asyncio.timeout(WAIT):
            return int(head.split(b" ")[1]), await self.reader.readexactly(length)

    async def refusal(self) -> tuple[int, str]:
        """Status and message of an answer of the relay itself."""
        status, body = await self.answer()
        return status, json.loads(body)["error"]["message"]

    async def rest(self) -> bytes:
        async with asyncio.timeout(WAIT):
            return await self.reader.read()


class World:
    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []
        self.relays: list[Relay] = []
        self.clients: list[Client] = []
        self.serving: set[asyncio.Task[None]] = set()

    async def serve(self, answer: Serve) -> int:
        async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self.serving.add(task)
            try:
                await answer(reader, writer)
            finally:
                self.serving.discard(task)
                writer.close()

        server = await asyncio.start_server(closing, "127.0.0.1", 0)
        self.servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def relay(self, port: int, limits: RelayLimits | None = None) -> int:
        relay = Relay(Upstream(GuestUrl("http", "127.0.0.1", port)), limits)
        self.relays.append(relay)
        return await relay.start("127.0.0.1", 0)

    async def client(self, port: int) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        self.clients.append(client)
        return client


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    for client in world.clients:
        client.writer.close()
    for relay in world.relays:
        await relay.close()
    for server in world.servers:
        server.close()
    if world.serving:
        await asyncio.wait(world.serving, timeout=WAIT)


@asynccontextmanager
async def relayed(world: World, serve: Serve, limits: RelayLimits | None = None) -> AsyncIterator[Client]:
    yield await world.client(await world.relay(await world.serve(serve), limits))


# --- what is forwarded ---


async def test_method_path_query_body_and_bearer_arrive_as_they_were_sent(world: World) -> None:
    server = Server()
    async with relayed(world, server) as client:
        await client.send(
            b"POST /guest/v1/stream/threads/t-1?a=%2F&b HTTP/1.1\r\nHost: relay.example.com\r\n"
            b"Authorization: Bearer abc.def\r\nProducer-Seq: 7\r\nContent-Length: 5\r\n\r\nhe\0lo"
        )
        assert await client.answer() == (200, b"ok")
        lines = server.heads[0].split(b"\r\n")
        assert lines[0] == b"POST /guest/v1/stream/threads/t-1?a=%2F&b HTTP/1.1"
        assert {b"Authorization: Bearer abc.def", b"Producer-Seq: 7"} <= set(lines)
        assert server.bodies == [b"he\0lo"]
        # The connection to the server is used again.
        await client.send(b"GET /guest/model HTTP/1.1\r\nHost: r\r\n\r\n")
        assert await client.answer() == (200, b"ok")
        assert (len(server.heads), server.connections) == (2, 1)


async def test_headers_for_one_hop_and_claims_about_the_client_are_dropped(world: World) -> None:
    server = Server()
    async with relayed(world, server) as client:
        await client.send(
            b"GET /guest/model/x HTTP/1.1\r\nHost: evil.example.com\r\nConnection: keep-alive, X-Secret\r\n"
            b"X-Secret: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nUpgrade: websocket\r\nProxy-Authorization: Basic x\r\n"
            b"X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\nX-Kept: 2\r\n\r\n"
        )
        assert (await client.answer())[0] == 200
    head = server.heads[0].lower()
    port = world.servers[0].sockets[0].getsockname()[1]
    assert {f"host: 127.0.0.1:{port}".encode(), b"x-kept: 2"} <= set(head.split(b"\r\n"))
    for name in (b"evil", b"connection", b"keep-alive", b"te:", b"upgrade", b"proxy-", b"forwarded", b"real-ip",
                 b"secret"):  # fmt: skip
        assert name not in head


async def test_an_answer_is_streamed_as_it_comes_and_so_is_a_request(world: World) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    read: list[bytes] = []

    async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        read.append(await reader.readuntil(b"one\r\n"))
        begun.set()
        read.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"7\r\ndata: 1\r\n")
        await go.wait()
        writer.write(b"7\r\ndata: 2\r\n0\r\n\r\n")

    async with relayed(world, events) as client:
        head = b"POST /guest/model/v1/messages HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head + b"3\r\none\r\n")
        async with asyncio.timeout(WAIT):
            await begun.wait()  # before the request is complete
        await client.send(b"3\r\ntwo\r\n0\r\n\r\n")
        assert b"text/event-stream" in await client.head()
        async with asyncio.timeout(WAIT):
            assert await client.reader.readuntil(b"data: 1\r\n") == b"7\r\ndata: 1\r\n"
            go.set()
            assert await client.reader.readuntil(b"0\r\n\r\n") == b"7\r\ndata: 2\r\n0\r\n\r\n"


async def test_an_early_answer_reaches_a_client_that_still_sends(world: World) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
        await reader.read()

    async with relayed(world, refuse) as client:
        await client.send(b"POST /guest/v1/tokens/renew HTTP/1.1\r\nHost: r\r\nContent-Length: 100\r\n\r\nhalf")
        assert await client.answer() == (403, b"no")
        assert await client.rest() == b""  # the rest of the body is never taken for a request


async def test_a_client_that_leaves_ends_its_request_at_the_server(world: World) -> None:
    left = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        with suppress(ConnectionError):
            await reader.read()
        left.set()

    async with relayed(world, wait) as client:
        await client.send(b"GET /guest/model/x HTTP/1.1\r\nHost: r\r\n\r\n")
        await client.head()
        client.writer.close()
        async with asyncio.timeout(WAIT):
            await left.wait()


# --- what is refused ---


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET http://evil.example.com/guest/model HTTP/1.1", 400),
        ("GET https://evil.example.com/guest/model HTTP/1.1", 400),
        ("CONNECT evil.example.com:443 HTTP/1.1", 400),
        ("OPTIONS * HTTP/1.1", 400),
        ("GET //evil.example.com/guest/ HTTP/1.1", 404),
        ("GET /v1/boxes HTTP/1.1", 404),
        ("GET / HTTP/1.1", 404),
        ("GET /guest HTTP/1.1", 404),
        ("GET /guests/model HTTP/1.1", 404),
        ("GET /guest/../v1/boxes HTTP/1.1", 404),
        ("GET /guest/%2e%2e/v1/boxes HTTP/1.1", 404),
        ("GET /guest/%252e%252e/v1/boxes HTTP/1.1", 404),
        ("GET /guest/..%2fv1%2fboxes HTTP/1.1", 404),
        ("GET /guest/..\\v1\\boxes HTTP/1.1", 404),
        ("GET /guest//v1/boxes HTTP/1.1", 404),
        ("DELETE /guest/v1/stream/threads/t-1 HTTP/1.1", 405),
        ("TRACE /guest/model HTTP/1.1", 405),
        ("GET /guest/model HTTP/2.0", 400),
        ("GET  /guest/model HTTP/1.1", 400),
        ("GET /guest/mo del HTTP/1.1", 400),
        ("GET /guest/m\u00f6del HTTP/1.1", 400),
        ("get /guest/model HTTP/1.1", 400),
    ],
)
async def test_other_hosts_paths_and_methods_are_refused_and_the_server_sees_nothing(
    world: World, head: str, status: int
) -> None:
    server = Server()
    async with relayed(world, server) as client:
        await client.send(head.encode() + b"\r\nHost: r\r\n\r\n")
        assert (await client.refusal())[0] == status
    assert server.connections == 0


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: +3",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        "X: 1\r\n Transfer-Encoding: chunked",
        "X: 1\nTransfer-Encoding: chunked",
        "X: 1\r\rY: 2",
        "X: \0",
        "Host: other.example.com",
        "no colon",
    ],
)
async def test_what_two_parsers_could_read_differently_is_refused(world: World, headers: str) -> None:
    server = Server()
    async with relayed(world, server) as client:
        await client.send(
            f"POST /guest/model/x HTTP/1.1\r\nHost: r\r\n{headers}\r\n\r\n0\r\n\r\nGET ".encode("latin-1")
        )
        assert (await client.refusal())[0] == 400
        assert await client.rest() == b""
    assert server.connections == 0


async def test_a_huge_head_is_refused(world: World) -> None:
    server = Server()
    async with relayed(world, server) as client:
        await client.send(b"GET /guest/model HTTP/1.1\r\nHost: r\r\nX: " + b"x" * 70_000)
        status, why = await client.refusal()
        assert (status, "longer than 65536 bytes" in why) == (400, True)
    async with relayed(world, server) as client:
        await client.send(b"GET /guest/model HTTP/1.1\r\nHost: r\r\n" + b"X: 1\r\n" * 300 + b"\r\n")
        assert "more than 200 headers" in (await client.refusal())[1]
    assert server.connections == 0


@pytest.mark.parametrize("framing", ["Content-Length: 1001", "Transfer-Encoding: chunked"])
async def test_a_body_that_is_too_long_is_refused(world: World, framing: str) -> None:
    limits = replace(SHORT, body_seconds=WAIT, idle=WAIT)
    async with relayed(world, Server(), limits) as client:
        head = f"POST /guest/model/x HTTP/1.1\r\nHost: r\r\n{framing}\r\n\r\n".encode()
        await client.send(head + (b"3e9\r\n" + b"x" * 1001 if "chunked" in framing else b""))
        status, why = await client.refusal()
        assert (status, why) == (413, "a request's body has at most 1000 bytes")


async def test_a_bad_chunk_is_refused_and_never_completed_at_the_server(world: World) -> None:
    server = Server()
    async with relayed(world, server) as client:
        head = b"POST /guest/model/x HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head + b"1\r\nxGET /v1/boxes HTTP/1.1\r\n\r\n")
        assert (await client.refusal())[0] == 400
        assert await client.rest() == b""
    assert server.bodies == []


# --- clients that take their time ---


async def test_a_slow_head_and_a_slow_body_are_given_up(world: World) -> None:
    async with relayed(world, Server(), SHORT) as client:
        await client.send(b"GET /guest/mod")
        assert (await client.refusal())[0] == 408
    async with relayed(world, Server(), replace(SHORT, idle=WAIT)) as client:
        await client.send(b"POST /guest/model/x HTTP/1.1\r\nHost: r\r\nContent-Length: 10\r\n\r\nx")
        assert (await client.refusal())[0] == 408
    async with relayed(world, Server(), SHORT) as client:
        assert await client.rest() == b""  # it never asked for anything


async def test_a_client_that_reads_nothing_is_given_up(world: World) -> None:
    gone = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            gone.set()

    async with relayed(world, flood, replace(SHORT, idle=WAIT)) as client:
        await client.send(b"GET /guest/model/x HTTP/1.1\r\nHost: r\r\n\r\n")
        async with asyncio.timeout(WAIT):
            await gone.wait()


async def test_idle_connections_make_room_and_busy_ones_do_not(world: World) -> None:
    server = Server()
    port = await world.relay(await world.serve(server), RelayLimits(connections=2))
    idle, busy = await world.client(port), await world.client(port)
    for client in (idle, busy):
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: r\r\n\r\n")
        assert (await client.answer())[0] == 200
    await busy.send(b"POST /guest/model/x HTTP/1.1\r\nHost: r\r\nContent-Length: 4\r\n\r\nhalf"[:-2])
    await server.arrived(1)
    third = await world.client(port)
    await third.send(b"POST /guest/model/x HTTP/1.1\r\nHost: r\r\nContent-Length: 4\r\n\r\nha")
    assert await idle.rest() == b""
    await server.arrived(2)
    fourth = await world.client(port)  # both others are busy
    with suppress(ConnectionError):
        assert await fourth.rest() == b""
    for client in (busy, third):
        await client.send(b"lf")
        assert await client.answer() == (200, b"ok")


# --- servers that are down, slow or broken ---


async def test_a_server_that_is_down_is_a_502_that_says_so(world: World) -> None:
    port = await world.serve(Server())
    world.servers.pop().close()
    client = await world.client(await world.relay(port))
    for _ in range(2):  # the connection is kept
        await client.send(b"GET /guest/model/x HTTP/1.1\r\nHost: r\r\n\r\n")
        status, why = await client.refusal()
        assert status == 502
        assert f"the relay cannot reach the Holdfast server at http://127.0.0.1:{port}" in why


async def test_a_silent_server_is_a_504_and_a_broken_one_a_502(world: World) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    def saying(data: bytes) -> Serve:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await reader.read()

        return say

    broken = [
        (silent, 504, "is too slow"),
        (closing, 502, "without an answer"),
        (saying(b"SSH-2.0-x\r\n\r\n"), 502, "answer is invalid"),
        (saying(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), 502, "changed the protocol"),
        (saying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000), 502, "answer is invalid"),
    ]
    for serve, status, why in broken:
        async with relayed(world, serve, SHORT) as client:
            await client.send(b"GET /guest/model/x HTTP/1.1\r\nHost: r\r\n\r\n")
            found = await client.refusal()
            assert (found[0], why in found[1]) == (status, True), found


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_an_answer_that_is_cut_never_looks_complete(world: World, framing: bytes) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        writer.close()

    async with relayed(world, cut) as client:
        await client.send(b"GET /guest/model/x HTTP/1.1\r\nHost: r\r\n\r\n")
        await client.head()
        received = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(WAIT):
                while data := await client.reader.read(100):
                    received += data
        assert received in (b"", b"5\r\nhello\r\n")


# --- decisions ---


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("https://relay.example.com", True),
        ("https://relay.example.com:8443/", True),
        ("http://127.0.0.1:8485", True),
        ("http://holdfast:8484", True),
        ("http://relay.example.com", False),
        ("https://user:pass@relay.example.com", False),
        ("https://relay.example.com/path", False),
        ("https://relay.example.com?x=1", False),
        ("https://relay.example.com:port", False),
        ("relay.example.com", False),
        ("ftp://relay.example.com", False),
    ],
)
def test_a_relay_has_a_plain_https_url_outside_of_private_networks(url: str, right: bool) -> None:
    if right:
        assert GuestUrl.parse(url).base == url.rstrip("/") + "/guest"
    else:
        with pytest.raises(ValueError, match=r"URL|https|port"):
            GuestUrl.parse(url)


def test_paths_of_guests() -> None:
    paths: dict[bytes, Any] = {
        b"/guest/v1/runs/r-1/beat": True, b"/guest/model/v1/models/a:b": True, b"/guest/": False, b"/guest/.": False,
        b"/guest/a/%2e": False, b"/guest/a%00b": False,
    }  # fmt: skip
    assert {path: is_for_guests(path) for path in paths} == paths
