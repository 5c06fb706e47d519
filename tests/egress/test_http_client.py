"""The HTTP client against servers that close, lie, stall and send too much: an answer is its request's own, or none."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.egress.bound_world import OUTSIDE, trusting

from holdfast.egress.bound.certificates import BoxAuthority
from holdfast.egress.http_body import Chunks
from holdfast.egress.http_client import HttpClient, _open_first
from holdfast.egress.http_head import BadHead
from holdfast.egress.models.upstream import NetworkUpstream

pytestmark = pytest.mark.anyio

WAIT = 20.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
TIMES = dict.fromkeys(("connect", "read", "write", "pool"), WAIT)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Servers run on uvloop, and programs that use the client on either."""
    return "asyncio", {"use_uvloop": request.param}


class Visit:
    """One connection at the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number

    async def request(self) -> bytes:
        """The next request, with its body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int((head.lower().partition(b"content-length: ")[2] or b"0").partition(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise ConnectionError("the client has left")
        self.writer.write(data)
        await self.writer.drain()

    async def until_closed(self) -> None:
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass


class Server:
    def __init__(self, port: int) -> None:
        self.port = port
        self.visits = 0
        self.reached = asyncio.Event()
        self.requests: list[bytes] = []
        self.ended: asyncio.Queue[int] = asyncio.Queue()
        """Numbers of connections that the server has left."""

    async def left(self) -> int:
        async with asyncio.timeout(WAIT):
            return await self.ended.get()


Serve = Callable[[Server, Visit], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.visits += 1
        server.reached.set()
        number = server.visits
        try:
            await serve(server, Visit(reader, writer, number))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            server.ended.put_nowait(number)

    listening = await asyncio.start_server(visit, "127.0.0.1", 0, ssl=tls)
    server = Server(int(listening.sockets[0].getsockname()[1]))
    async with listening:
        yield server


async def answer_all(server: Server, visit: Visit) -> None:
    while True:
        server.requests.append(await visit.request())
        await visit.send(OK)


async def no_tls() -> ssl.SSLContext:
    raise AssertionError("nothing here uses TLS")


@asynccontextmanager
async def client_of(make_tls: Any = no_tls, **options: Any) -> AsyncIterator[HttpClient]:
    client = HttpClient(make_tls, **options)
    try:
        yield client
    finally:
        await client.close()


async def ask(client: HttpClient, server: Server, method: str = "POST", **more: Any) -> bytes:
    url = more.pop("url", f"http://127.0.0.1:{server.port}/v1?a=b")
    times = {**TIMES, **more.pop("times", {})}
    if method == "POST":
        more.setdefault("content", b"question")
    async with asyncio.timeout(WAIT):
        response = await client.send(httpx.Request(method, url, extensions={"timeout": times}, **more))
        try:
            return b"".join([piece async for piece in response.aiter_raw()])
        finally:
            await response.aclose()


# --- connections that stay open ---


async def test_a_connection_is_used_again_for_the_next_request() -> None:
    async with serving(answer_all) as server, client_of() as client:
        for _ in range(3):
            assert await ask(client, server) == b"ok"
        assert (server.visits, len(server.requests)) == (1, 3)
        assert server.requests[0].startswith(b"POST /v1?a=b HTTP/1.1\r\nHost: 127.0.0.1:")
        assert server.requests[0].endswith(b"\r\n\r\nquestion")


async def test_a_body_without_a_length_goes_out_in_chunks() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        server.requests.append(await visit.reader.readuntil(b"0\r\n\r\n"))
        await visit.send(OK)

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one", b"", b"three"):
            yield piece

    async with serving(serve) as server, client_of() as client:
        assert await ask(client, server, content=pieces()) == b"ok"
        assert server.requests[0].endswith(b"\r\n\r\n3\r\none\r\n5\r\nthree\r\n0\r\n\r\n")


async def test_a_connection_that_the_server_closed_is_not_used() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        server.requests.append(await visit.request())
        await visit.send(OK)

    async with serving(serve) as server, client_of() as client:
        for number in (1, 2, 3):
            assert await ask(client, server) == b"ok"
            assert await server.left() == number
        assert (server.visits, len(server.requests)) == (3, 3)


async def _close_at_the_second(server: Server, visit: Visit) -> None:
    server.requests.append(await visit.request())
    await visit.send(OK)
    if visit.number == 1:
        server.requests.append(await visit.request())  # and closes without an answer


async def test_a_request_that_may_have_been_received_is_not_sent_twice() -> None:
    async with serving(_close_at_the_second) as server, client_of() as client:
        assert await ask(client, server) == b"ok"
        with pytest.raises(httpx.RemoteProtocolError, match="without an answer"):
            await ask(client, server)
        assert (server.visits, len(server.requests)) == (1, 2)


async def test_a_safe_request_is_sent_once_more_if_no_byte_came_on_an_old_connection() -> None:
    async with serving(_close_at_the_second) as server, client_of() as client:
        assert await ask(client, server, "GET") == b"ok"
        assert await ask(client, server, "GET") == b"ok"
        assert (server.visits, len(server.requests)) == (2, 3)


async def test_a_safe_request_is_not_sent_a_third_time() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        server.requests.append(await visit.request())
        if visit.number == 1:
            await visit.send(OK)
            server.requests.append(await visit.request())

    async with serving(serve) as server, client_of() as client:
        assert await ask(client, server, "GET") == b"ok"
        with pytest.raises(httpx.RemoteProtocolError, match="without an answer"):
            await ask(client, server, "GET")
        assert (server.visits, len(server.requests)) == (2, 3)


async def test_a_safe_request_is_not_sent_again_after_the_first_byte() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        server.requests.append(await visit.request())
        await visit.send(OK)
        server.requests.append(await visit.request())
        await visit.send(b"H")

    async with serving(serve) as server, client_of() as client:
        assert await ask(client, server, "GET") == b"ok"
        with pytest.raises(httpx.RemoteProtocolError, match="within a head"):
            await ask(client, server, "GET")
        assert len(server.requests) == 2


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with serving(answer_all) as server, client_of(idle_seconds=0.05) as client:
        assert await ask(client, server) == b"ok"
        assert await server.left() == 1
        assert await ask(client, server) == b"ok"


async def test_a_server_that_says_close_is_left() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        await visit.send(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await visit.until_closed()

    async with serving(serve) as server, client_of() as client:
        assert await ask(client, server) == b"ok"
        assert await server.left() == 1


async def test_requests_at_once_have_a_bound() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.until_closed()

    async with serving(serve) as server, client_of(most=1) as client:
        first = asyncio.create_task(ask(client, server))
        await server.reached.wait()
        with pytest.raises(httpx.PoolTimeout):
            await ask(client, server, times={"pool": 0.05})
        first.cancel()
        await asyncio.wait([first])
        with pytest.raises(httpx.ReadTimeout):  # its place is free again
            await ask(client, server, times={"read": 0.05})


# --- answers that are not what they seem ---


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 40\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/2 200\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 60 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nno trailer\r\n\r\n",
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 200,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    ],
)
async def test_what_two_parsers_could_read_differently_is_refused_and_its_connection_closed(answer: bytes) -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        await visit.send(answer if visit.number == 1 else OK)
        await visit.until_closed()

    async with serving(serve) as server, client_of() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(client, server)
        assert await server.left() == 1
        assert await ask(client, server) == b"ok"


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_answer_that_nobody_asked_for_is_given_to_nobody(is_late: bool) -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        hidden = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
        if visit.number > 1:
            await visit.send(OK)
        elif is_late:
            await visit.send(OK)
            await asked.wait()
            await visit.send(hidden)
        else:
            await visit.send(OK + hidden)
        await visit.until_closed()

    asked = asyncio.Event()
    async with serving(serve) as server, client_of() as client:
        assert await ask(client, server) == b"ok"
        asked.set()
        assert await server.left() == 1
        assert await ask(client, server) == b"ok"


@pytest.mark.parametrize("line", [b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
async def test_a_head_without_end_is_not_read_to_its_end(line: bytes) -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        await visit.send(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            await visit.send(line)

    async with serving(serve) as server, client_of() as client:
        with pytest.raises(httpx.RemoteProtocolError, match=r"longer than 65536|invalid"):
            await ask(client, server)
        assert await server.left() == 1


async def test_a_head_that_drips_is_not_waited_for() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        await visit.send(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            await visit.send(b"y")
            await asyncio.sleep(0.01)

    async with serving(serve) as server, client_of(head_seconds=0.1) as client:
        with pytest.raises(httpx.RemoteProtocolError, match=r"takes longer than 0\.1 s"):
            await ask(client, server)
        assert await server.left() == 1


async def test_a_server_that_says_nothing_is_left() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.until_closed()

    async with serving(serve) as server, client_of() as client:
        with pytest.raises(httpx.ReadTimeout):
            await ask(client, server, times={"read": 0.05})
        assert await server.left() == 1


async def test_interim_answers_are_ignored() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        while True:
            await visit.request()
            await visit.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK)

    async with serving(serve) as server, client_of() as client:
        assert [await ask(client, server), await ask(client, server)] == [b"ok", b"ok"]
        assert server.visits == 1


# --- bodies ---


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\npart",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n0\r\n",
    ],
)
async def test_a_body_that_is_cut_off_is_an_error_after_what_came(answer: bytes) -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        await visit.send(answer)

    async with serving(serve) as server, client_of() as client:
        url = f"http://127.0.0.1:{server.port}/"
        response = await client.send(httpx.Request("GET", url, extensions={"timeout": TIMES}))
        pieces = aiter(response.aiter_raw())
        assert await anext(pieces) == b"part"
        with pytest.raises(httpx.RemoteProtocolError, match="closed within"):
            await anext(pieces)
        await response.aclose()


async def test_a_body_may_end_with_its_connection_but_not_with_a_reset() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        await visit.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        if visit.number == 2:
            await has_read.wait()
            linger = struct.pack("ii", 1, 0)
            visit.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    has_read = asyncio.Event()
    async with serving(serve) as server, client_of() as client:
        assert await ask(client, server) == b"all of it"
        url = f"http://127.0.0.1:{server.port}/"
        response = await client.send(httpx.Request("GET", url, extensions={"timeout": TIMES}))
        pieces = aiter(response.aiter_raw())
        assert await anext(pieces) == b"all of it"
        has_read.set()
        with pytest.raises(httpx.ReadError):
            await anext(pieces)
        await response.aclose()


async def test_large_bodies_arrive_whole_and_little_of_them_is_held() -> None:
    size = 8 << 20

    async def serve(server: Server, visit: Visit) -> None:
        while True:
            await visit.request()
            await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)

    async with serving(serve) as server, client_of() as client:
        for _ in range(2):
            url = f"http://127.0.0.1:{server.port}/"
            response = await client.send(httpx.Request("GET", url, extensions={"timeout": TIMES}))
            (connection,) = client._busy
            total = 0
            async for piece in response.aiter_raw():
                total += len(piece)
                assert len(connection.buffer) < 1 << 20
                await asyncio.sleep(0)
            assert total == size
        assert server.visits == 1


async def test_who_leaves_closes_the_connection() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
        begun.set()
        await visit.until_closed()

    begun = asyncio.Event()
    async with serving(serve) as server, client_of() as client:
        asking = asyncio.create_task(ask(client, server))
        await begun.wait()
        asking.cancel()
        assert await server.left() == 1
        assert not client._busy
        assert not client._idle


async def test_an_answer_that_is_not_read_to_its_end_closes_the_connection() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.request()
        await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
        await visit.until_closed()

    async with serving(serve) as server, client_of() as client:
        url = f"http://127.0.0.1:{server.port}/"
        response = await client.send(httpx.Request("GET", url, extensions={"timeout": TIMES}))
        assert await anext(aiter(response.aiter_raw())) == b"part"
        await response.aclose()
        assert not client._idle
        assert await server.left() == 1


async def test_an_answer_before_the_end_of_the_request_stops_the_request() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.reader.readuntil(b"\r\n\r\n")
        await visit.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await visit.until_closed()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    async with serving(serve) as server, client_of() as client:
        assert await ask(client, server, content=endless()) == b"no"
        assert await server.left() == 1


@pytest.mark.parametrize("length", ["3", "300"])
async def test_a_body_of_another_length_than_announced_does_not_arrive_as_a_request(length: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"four"

    async with serving(answer_all) as server, client_of() as client:
        with pytest.raises(httpx.LocalProtocolError, match="than its Content-Length"):
            await ask(client, server, content=pieces(), headers={"content-length": length})
        assert await server.left() == 1
        assert not server.requests


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x", b"a\r\nInjected: b")],
        [(b"x\r\ny", b"a")],
        [(b"x", b"\0")],
        [(b"content-length", b"1"), (b"content-length", b"8")],
    ],
)
async def test_headers_that_could_end_a_line_are_not_sent(headers: list[tuple[bytes, bytes]]) -> None:
    async with serving(answer_all) as server, client_of() as client:
        with pytest.raises(httpx.LocalProtocolError):
            await ask(client, server, headers=headers)
        assert await server.left() == 1
        assert not server.requests


_CHUNKED = b"4\r\none \r\nA ; x=y\r\ntwo three \r\n1\r\n4\r\n0\r\nX: trailer\r\n\r\n"


def test_chunks_are_the_same_wherever_they_are_cut() -> None:
    for cut in range(len(_CHUNKED)):
        chunks, buffer = Chunks(), bytearray(_CHUNKED[:cut])
        content = chunks.take(buffer)
        assert not chunks.is_whole
        buffer += _CHUNKED[cut:] + b"HTTP/1.1"
        content += chunks.take(buffer)
        assert (content, bytes(buffer), chunks.is_whole) == (b"one two three 4", b"HTTP/1.1", True)


def test_what_came_before_a_bad_chunk_is_still_taken() -> None:
    chunks, buffer = Chunks(), bytearray(b"2\r\nok\r\nzz\r\n")
    assert chunks.take(buffer) == b"ok"
    with pytest.raises(BadHead):
        chunks.take(buffer)


# --- TLS, and addresses ---


def _trusts(*authorities: BoxAuthority) -> Callable[[], Awaitable[ssl.SSLContext]]:
    async def make() -> ssl.SSLContext:
        return trusting(*authorities)

    return make


async def test_tls_is_spoken_with_a_server_whose_certificate_is_trusted() -> None:
    async with serving(answer_all, OUTSIDE.context("localhost")) as server, client_of(_trusts(OUTSIDE)) as client:
        for _ in range(2):
            assert await ask(client, server, url=f"https://localhost:{server.port}/") == b"ok"
        assert server.visits == 1


@pytest.mark.parametrize(
    ("authority", "name"),
    [(OUTSIDE, "other.example.com"), (BoxAuthority(b"x", "nobody's"), "localhost")],
    ids=["another host", "an unknown authority"],
)
async def test_a_certificate_that_is_not_the_hosts_gets_nothing(authority: BoxAuthority, name: str) -> None:
    async with serving(answer_all, authority.context(name)) as server, client_of(_trusts(OUTSIDE)) as client:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(client, server, url=f"https://localhost:{server.port}/")
        assert not server.requests


async def test_a_server_that_does_not_finish_tls_is_not_waited_for() -> None:
    async def serve(server: Server, visit: Visit) -> None:
        await visit.until_closed()

    async with serving(serve) as server, client_of(_trusts(OUTSIDE)) as client:
        with pytest.raises(httpx.ConnectTimeout):
            await ask(client, server, url=f"https://localhost:{server.port}/", times={"connect": 0.1})
        assert await server.left() == 1


async def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    family = socket.AF_INET
    async with serving(answer_all) as server:
        sock = await _open_first([(family, ("127.0.0.1", 1)), (family, ("127.0.0.1", server.port))])
        assert sock.getpeername()[1] == server.port
        sock.close()
    with pytest.raises(OSError, match=r"refused|failed"):
        await _open_first([(family, ("127.0.0.1", 1)), (family, ("127.0.0.2", 1))])
    with pytest.raises(OSError, match="no address"):
        await _open_first([])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "0.0.0.0"])
async def test_for_a_tenant_only_public_addresses_are_reached(host: str) -> None:
    """Whatever name a private address has: a tenant chooses the base URL of its models."""
    upstream = NetworkUpstream({}, public_only=True)
    behind_proxy = NetworkUpstream({"all_proxy": "http://127.0.0.1:9"}, public_only=True)
    try:
        for each in (upstream, behind_proxy):
            with pytest.raises(httpx.ConnectError, match="is not reached from here"):
                await each.send(httpx.Request("GET", f"http://{host}:9/", extensions={"timeout": TIMES}))
    finally:
        await upstream.close()
        await behind_proxy.close()
