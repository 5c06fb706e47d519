"""What a hostile box tries, at the proxy: each is refused, recorded, and harmless to its neighbours.

The connector connects to nothing and remembers what it was asked for, so nothing leaves the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.egress.adversaries import NeverConnector, RefusingConnector, ShiftingName
from tests.egress.conftest import PUBLIC, WAIT, World, answering, echoing, make_world
from tests.egress.test_connect import client_hello

from holdfast.api.box.network import Network
from holdfast.egress import proxy
from holdfast.testing.outside import StaticNames

pytestmark = pytest.mark.anyio

NAMES = {"a.example.com": [PUBLIC], "b.example.org": ["151.101.1.69"]}


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[World]:
    """Nothing is ever connected to."""
    async with make_world(tmp_path, names=StaticNames(NAMES), connector=RefusingConnector()) as world:
        yield world


PRIVATE = (
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "203.0.113.9", "192.88.99.1",
    "224.0.0.1", "239.255.255.250", "255.255.255.255", "240.0.0.1",
)  # fmt: skip
PRIVATE_6 = (
    "::1", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "fe80::1", "fc00::1",
    "fd00:ec2::254", "fec0::1", "ff02::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::",
    "2002:0a00:0001::1", "2001:0:7f00:1::1", "2001:db8::1", "100::1", "2606:4700::5efe:10.0.0.1", "5f00::1",
)  # fmt: skip


@pytest.mark.parametrize("address", [*PRIVATE, *PRIVATE_6])
@pytest.mark.parametrize("mode", [Network.OPEN, Network.ALLOW])
async def test_a_private_address_is_never_reached_whatever_the_policy(
    closed: World, address: str, mode: Network
) -> None:
    host = f"[{address}]" if ":" in address else address
    closed.box(*([host] if mode is Network.ALLOW else []), mode=mode)
    assert (await closed.get(f"http://{host}/"))[0] == 403
    client = await closed.client()
    await client.send(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
    assert await client.is_refused()
    assert closed.connector.connected == []
    decisions = await closed.decisions()
    assert len(decisions) == 2
    assert all(not each.allowed and "which no box reaches" in each.why for each in decisions)


@pytest.mark.parametrize("address", [*PRIVATE, *PRIVATE_6])
async def test_a_range_that_holds_a_private_address_does_not_open_it(closed: World, address: str) -> None:
    closed.box("0.0.0.0/0", "::/0")
    assert (await closed.get(f"http://[{address}]/" if ":" in address else f"http://{address}/"))[0] == 403
    assert closed.connector.connected == []
    (decision,) = await closed.decisions()
    assert not decision.allowed
    assert "which no box reaches" in decision.why


@pytest.mark.parametrize("address", [*PRIVATE, *PRIVATE_6])
async def test_a_name_that_leads_to_a_private_address_is_refused(closed: World, address: str) -> None:
    closed.names.names["a.example.com"] = [address]
    closed.box("a.example.com")
    status, body = await closed.get("http://a.example.com/")
    assert status == 403
    assert b"which no box reaches" in body
    client = await closed.client()
    await client.send(b"CONNECT a.example.com:443 HTTP/1.1\r\nHost: a.example.com:443\r\n\r\n")
    assert await client.is_refused()
    assert closed.connector.connected == []
    assert [each.allowed for each in await closed.decisions()] == [False, False]


async def test_of_a_name_with_private_and_public_addresses_only_the_public_are_tried(closed: World) -> None:
    closed.names.names["a.example.com"] = ["127.0.0.1", PUBLIC, "10.0.0.1", "::1"]
    closed.box("a.example.com")
    assert (await closed.get("http://a.example.com/"))[0] == 502
    assert closed.connector.connected == [(PUBLIC, 80)]


async def test_an_answer_that_changes_between_check_and_connect_changes_nothing(tmp_path: Path) -> None:
    names = ShiftingName([PUBLIC], ["127.0.0.1"])
    connector = RefusingConnector()
    async with make_world(tmp_path, names=names, connector=connector) as world:
        world.box("a.example.com")
        assert (await world.get("http://a.example.com/"))[0] == 502
        assert names.asked == ["a.example.com"]
        assert connector.connected == [(PUBLIC, 80)]
        assert (await world.get("http://a.example.com/"))[0] == 403
        assert connector.connected == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    "host",
    [
        "151.101.1.69", "[2a04:4e42::645]", "b.example.org", "a.example.com.evil.org", "xa.example.com", "example.com",
        "a.example.com:8080", "a.example.com:22", "a_b.example.com", "localhost", "metadata.google.internal",
        "b.a.example.com",
    ],
)  # fmt: skip
async def test_what_no_rule_covers_is_not_even_resolved(closed: World, host: str) -> None:
    closed.box("a.example.com")
    assert (await closed.get(f"http://{host}/"))[0] == 403
    client = await closed.client()
    target = host if host.rsplit(":", 1)[-1].isdigit() and "[" not in host else f"{host}:443"
    await client.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    assert await client.is_refused()
    assert closed.names.asked == []
    assert closed.connector.connected == []
    assert [each.allowed for each in await closed.decisions()] == [False, False]


@pytest.mark.parametrize("bits", [32, 16])
async def test_a_public_address_that_is_listed_is_reached_by_address_alone(world: World, bits: int) -> None:
    await world.serve(echoing, "unused.example.com", 443)
    world.box(str(ipaddress.ip_network(f"{PUBLIC}/{bits}", strict=False)))
    client = await world.client()
    await client.send(f"CONNECT {PUBLIC}:443 HTTP/1.1\r\nHost: {PUBLIC}:443\r\n\r\n".encode())
    await client.head()
    await client.send(hello := client_hello(None))
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(len(hello)) == hello


async def test_data_in_a_blocked_name_never_reaches_a_name_server(closed: World) -> None:
    closed.box("a.example.com", "*.example.com:443")
    for number in range(20):
        assert (await closed.get(f"http://{'ab' * 30}.{number}.tunnel.evil.org/"))[0] == 403
    assert closed.names.asked == []


GOOD = b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n"
SMUGGLED = b"GET http://b.example.org/secret HTTP/1.1\r\nHost: b.example.org\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="origin form"),
        pytest.param(b"GET https://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="absolute https"),
        pytest.param(b"GET ftp://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="absolute ftp"),
        pytest.param(b"GET file:///etc/passwd HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="file"),
        pytest.param(b"GET http://a.example.com/ HTTP/1.1\r\nHost: b.example.org\r\n\r\n", id="Host disagrees"),
        pytest.param(b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com:81\r\n\r\n", id="port disagrees"),
        pytest.param(b"GET http://a.example.com/ HTTP/1.1\r\n\r\n", id="no Host"),
        pytest.param(GOOD + b"Host: b.example.org\r\n\r\n", id="two Hosts"),
        pytest.param(GOOD + b"host: a.example.com\r\n\r\n", id="the same Host twice"),
        pytest.param(b"GET http://a.example.com@b.example.org/ HTTP/1.1\r\nHost: b.example.org\r\n\r\n", id="user"),
        pytest.param(b"GET http://a.example.com:80@b/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="user with port"),
        pytest.param(b"GET http://a.example.com\\@b.example.org/ HTTP/1.1\r\nHost: b.example.org\r\n\r\n", id="slash"),
        pytest.param(b"GET http://a.example.com#@b/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="fragment"),
        pytest.param(b"GET http://a%2eexample.com/ HTTP/1.1\r\nHost: a%2eexample.com\r\n\r\n", id="percent"),
        pytest.param("GET http://a。example.com/ HTTP/1.1\r\nHost: a\r\n\r\n".encode(), id="wide dot"),
        pytest.param(b"GET http:///x HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="no host"),
        pytest.param(b"GET http://a.example.com:/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="empty port"),
        pytest.param(b"GET http://a.example.com:99999/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="no such port"),
        pytest.param(b"GET http://a.example.com:0x50/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="hex port"),
        pytest.param(b"GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n\r\n", id="address as a number"),
        pytest.param(b"GET http://0x7f000001/ HTTP/1.1\r\nHost: 0x7f000001\r\n\r\n", id="address in hex"),
        pytest.param(b"GET http://127.1/ HTTP/1.1\r\nHost: 127.1\r\n\r\n", id="short address"),
        pytest.param(b"GET http://0177.0.0.1/ HTTP/1.1\r\nHost: 0177.0.0.1\r\n\r\n", id="octal address"),
        pytest.param(b"GET http://[::1%25lo]/ HTTP/1.1\r\nHost: [::1%25lo]\r\n\r\n", id="address of a link"),
        pytest.param(b"GET http://[fe80::1%lo]/ HTTP/1.1\r\nHost: [fe80::1%lo]\r\n\r\n", id="scoped address"),
        pytest.param(GOOD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="CL and TE"),
        pytest.param(GOOD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", id="two lengths"),
        pytest.param(GOOD + b"Content-Length: 5, 5\r\n\r\nhello", id="list of lengths"),
        pytest.param(GOOD + b"Content-Length: +5\r\n\r\nhello", id="signed length"),
        pytest.param(GOOD + b"Content-Length: 0x5\r\n\r\nhello", id="hex length"),
        pytest.param(GOOD + b"Content-Length: 5 5\r\n\r\nhello", id="length with a space"),
        pytest.param(GOOD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="TE unknown"),
        pytest.param(GOOD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", id="TE list"),
        pytest.param(GOOD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", id="TE twice"),
        pytest.param(GOOD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", id="space before colon"),
        pytest.param(GOOD + b" Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="space before name"),
        pytest.param(GOOD + b"X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="folded line"),
        pytest.param(GOOD + b"X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="bare LF"),
        pytest.param(GOOD + b"X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="bare CR"),
        pytest.param(GOOD.replace(b"\r\n", b"\n") + b"\n", id="LF only"),
        pytest.param(GOOD + b"X: a\0b\r\n\r\n", id="NUL"),
        pytest.param(GOOD + b"X\x7f: a\r\n\r\n", id="DEL in a name"),
        pytest.param(GOOD + b"no colon\r\n\r\n", id="no colon"),
        pytest.param(GOOD + b": empty\r\n\r\n", id="empty name"),
        pytest.param(GOOD + b"X: y\r\n" * 300 + b"\r\n", id="too many headers"),
        pytest.param(GOOD + b"X: " + b"y" * 70_000 + b"\r\n\r\n", id="long head"),
        pytest.param(b"GET  http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="two spaces"),
        pytest.param(b"GET http://a.example.com/ x HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="space in the URL"),
        pytest.param(b"GET http://a.example.com/\tx HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="tab in the URL"),
        pytest.param(b"GET http://a.example.com/ HTTP/2.0\r\nHost: a.example.com\r\n\r\n", id="HTTP/2"),
        pytest.param(b"GET http://a.example.com/ HTTP/1.1x\r\nHost: a.example.com\r\n\r\n", id="odd version"),
        pytest.param(b"G\x00T http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="odd method"),
        pytest.param(b"get http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="small method"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2 preface"),
        pytest.param(b"CONNECT a.example.com HTTP/1.1\r\nHost: a.example.com\r\n\r\n", id="CONNECT without port"),
        pytest.param(b"CONNECT a.example.com:443 HTTP/1.1\r\nHost: b.example.org:443\r\n\r\n", id="CONNECT Host"),
        pytest.param(
            b"CONNECT a.example.com:443 HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 3\r\n\r\nabc",
            id="CONNECT with a body",
        ),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="TLS to the proxy"),
        pytest.param(b"\x05\x01\x00\r\n\r\n", id="SOCKS"),
    ],
)
async def test_what_can_be_read_in_two_ways_is_a_400_and_goes_nowhere(closed: World, request_bytes: bytes) -> None:
    closed.box("a.example.com")
    client = await closed.client()
    await client.send(request_bytes)
    status, body = await client.response()
    assert status == 400, body
    assert await client.rest() == b""  # and closed: nothing behind it is taken for a request
    assert closed.names.asked == []
    assert closed.connector.connected == []
    found = await closed.decisions()
    assert [(each.allowed, each.why.startswith("bad request: ")) for each in found] == [(False, True)]


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhelloXX\r\n0\r\n\r\n", b"zz\r\nhello\r\n", b"-1\r\n", b"0x5\r\nhello\r\n", b"5\nhello\n0\n\n",
        b"ffffffffffffffffffff\r\n", b"\r\n\r\n", b"5" + b" " * 5000, b"0\r\nbad trailer\r\n\r\n",
        b"0\r\n" + b"X: y\r\n" * 60 + b"\r\n", b"5 \r\nhello\r\n0\r\n\r\n",
    ],
)  # fmt: skip
async def test_chunks_that_make_no_sense_end_the_request(world: World, body: bytes) -> None:
    ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            ended.set_result(await reader.read(-1))

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    head = b"POST http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"
    await client.send(head + body + SMUGGLED)
    status, _ = await client.response()
    assert status == 400
    async with asyncio.timeout(WAIT):
        got = await ended
    assert b"secret" not in got
    assert not got.endswith(b"0\r\n\r\n")
    assert not (await world.decision()).allowed


async def test_what_follows_a_body_is_judged_as_a_request_of_its_own(world: World) -> None:
    await world.serve(answering(b"ok"), "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    await client.send(GOOD + b"Content-Length: 0\r\n\r\n" + SMUGGLED)
    assert await client.response() == (200, b"ok")
    assert (await client.response())[0] == 403
    assert world.names.asked == ["a.example.com"]


async def test_a_header_named_in_connection_cannot_take_away_what_frames_the_message(world: World) -> None:
    seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    await world.ask(GOOD + b"Connection: content-length, host, x\r\nX: 1\r\nContent-Length: 2\r\n\r\nab")
    head = await seen
    assert b"Content-Length: 2\r\n" in head
    assert b"Host: a.example.com\r\n" in head
    assert b"X: 1" not in head


async def test_a_redirect_to_a_private_address_is_refused_where_it_leads(world: World) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")

    await world.serve(serve, "a.example.com")
    world.box(mode=Network.OPEN)
    assert (await world.get("http://a.example.com/"))[0] == 302
    attempts = len(world.connector.connected)
    assert (await world.get("http://169.254.169.254/"))[0] == 403
    assert len(world.connector.connected) == attempts
    assert not (await world.decision()).allowed


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, b"",
        b"HTTP/1.1 200",
    ],
)  # fmt: skip
async def test_an_answer_that_makes_no_sense_is_a_502(world: World, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    assert (await world.get("http://a.example.com/"))[0] == 502


# --- slow and endless ---


async def test_a_head_that_drips_is_ended(tmp_path: Path) -> None:
    async with make_world(tmp_path, head=0.2, between=5.0) as world:
        world.box("a.example.com")
        client = await world.client()
        for byte in GOOD:
            with contextlib.suppress(ConnectionError):
                await client.send(bytes([byte]))
            if client.reader.exception() or client.reader.at_eof():
                break
            await asyncio.sleep(0.01)
        with pytest.raises(ConnectionResetError):
            await client.rest()
        await world.until_ended()
        assert "it took too long" in (await world.decision()).why


async def test_a_connection_that_says_nothing_is_ended(tmp_path: Path) -> None:
    async with make_world(tmp_path, between=0.1) as world:
        world.box("a.example.com")
        client = await world.client()
        assert await client.rest() == b""
        await world.until_ended()
        assert await world.decisions() == []


async def test_a_tunnel_without_a_hello_is_ended(tmp_path: Path) -> None:
    async with make_world(tmp_path, head=0.1) as world:
        await world.serve(echoing, "a.example.com", 443)
        world.box("a.example.com")
        client = await world.client()
        await client.send(b"CONNECT a.example.com:443 HTTP/1.1\r\nHost: a.example.com:443\r\n\r\n")
        await client.head()
        assert await client.is_reset()
        assert not (await world.decision()).allowed


async def test_a_body_that_drips_is_ended(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with make_world(tmp_path, slow_window=0.1, slowest=10_000.0) as world:
        await world.serve(serve, "a.example.com")
        world.box("a.example.com")
        client = await world.client()
        await client.send(GOOD.replace(b"GET", b"PUT") + b"Content-Length: 1000000\r\n\r\n")

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await client.send(b"x")
                    await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        with pytest.raises(ConnectionResetError):
            await client.rest()
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        await world.until_ended()
        assert (await world.decision()).why == "the request's body arrives too slowly"


async def test_an_endless_body_is_ended(tmp_path: Path) -> None:
    received = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        while data := await reader.read(65536):
            received += len(data)

    async with make_world(tmp_path, request_body=1 << 20) as world:
        await world.serve(serve, "a.example.com")
        world.box("a.example.com")
        client = await world.client()
        await client.send(GOOD.replace(b"GET", b"PUT") + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"

        async def pour() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await client.send(chunk)

        pouring = asyncio.create_task(pour())
        status, _ = await client.response()
        assert status == 413
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
        await world.until_ended()
        assert received <= (1 << 20) + 65536
        assert "longer than" in (await world.decision()).why


async def test_an_endless_answer_is_ended_by_its_lifetime(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with make_world(tmp_path, lifetime=0.3) as world:
        await world.serve(serve, "a.example.com")
        world.box("a.example.com")
        client = await world.client()
        await client.send(GOOD + b"\r\n")
        await client.head()
        with pytest.raises(ConnectionResetError):
            await client.rest()
        await world.until_ended()
        assert (await world.decision()).why == "it took too long"


async def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async with make_world(tmp_path, names=StaticNames(NAMES), connector=NeverConnector(), connect=0.1) as world:
        world.box("a.example.com")
        status, body = await world.get("http://a.example.com/")
        assert status == 502
        assert b"no answer within 0.1 s" in body


async def test_a_box_that_reads_nothing_holds_no_more_than_the_buffers_of_its_sockets(tmp_path: Path) -> None:
    poured = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal poured
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            poured += 65536

    async with make_world(tmp_path, idle=0.5) as world:
        await world.serve(serve, "a.example.com")
        world.box("a.example.com")
        with socket.create_connection(("127.0.0.1", world.port())) as client:
            client.sendall(GOOD + b"\r\n")
            await asyncio.sleep(0)
            async with asyncio.timeout(WAIT):
                while not world.proxy.traffic("b-1").open:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await world.until_ended()
        assert poured < 64 << 20
        assert "nothing moved for 0.5 s" in (await world.decision()).why


# --- crowds ---


async def test_connections_beyond_the_limit_are_reset_and_counted(tmp_path: Path) -> None:
    async with make_world(tmp_path, names=StaticNames(NAMES)) as world:
        world.box("a.example.com", connections=3)
        kept = [await world.client() for _ in range(3)]
        for client in kept:
            await client.send(b"GET http://x.example.org/ HTTP/1.1\r\nHost: x.example.org\r\n\r\n")
            assert (await client.response())[0] == 403
        extra = await world.client()
        assert await extra.is_reset()
        found = await world.decision()
        assert (found.allowed, found.why) == (False, "this box has more than 3 connections at once")
        kept[0].writer.close()
        async with asyncio.timeout(WAIT):
            while world.proxy.traffic("b-1").open == 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (await world.get("http://x.example.org/"))[0] == 403


async def test_boxes_that_take_all_there_is_leave_some_to_others(tmp_path: Path) -> None:
    async with make_world(tmp_path, all_connections=10, spared=2) as world:
        world.box("a.example.com", id="b-greedy")
        world.box("a.example.com", id="b-modest")
        greedy = [await world.client("b-greedy") for _ in range(10)]
        for client in greedy:
            await client.send(b"GET http://x.example.org/ HTTP/1.1\r\nHost: x.example.org\r\n\r\n")
            await client.response()
        assert await (await world.client("b-greedy")).is_reset()
        assert (await world.get("http://x.example.org/", "b-modest"))[0] == 403


_STORM = """
import socket, sys
sockets = []
for _ in range(3000):
    sock = socket.socket()
    sock.setblocking(False)
    try:
        sock.connect(("127.0.0.1", int(sys.argv[1])))
    except BlockingIOError:
        pass
    sockets.append(sock)
    if len(sockets) > 900:
        sockets.pop(0).close()
"""


async def test_thousands_of_connections_are_harmless_to_a_neighbour(tmp_path: Path) -> None:
    async with make_world(tmp_path) as world:
        await world.serve(answering(b"fine"), "a.example.com")
        world.box("a.example.com", id="b-hostile", connections=64)
        world.box("a.example.com", id="b-neighbour")
        port = world.port("b-hostile")
        # In a process of its own: the descriptors that it uses up are not those of the proxy.
        storm = await asyncio.create_subprocess_exec(sys.executable, "-c", _STORM, str(port))
        storming = asyncio.create_task(storm.wait())
        rounds = 0
        while not storming.done() or rounds < 20:
            async with asyncio.timeout(WAIT):
                assert await world.get("http://a.example.com/", "b-neighbour") == (200, b"fine")
            rounds += 1
        assert await storming == 0
        await world.until_ended("b-hostile")
        assert world.proxy.traffic("b-neighbour").open <= rounds
        denied = await world.decisions("b-hostile", denied_only=True)
        assert all("connections at once" in each.why for each in denied)


async def test_connections_beyond_a_box_s_limit_are_reset_and_counted_one_by_one(tmp_path: Path) -> None:
    async with make_world(tmp_path) as world:
        world.box("a.example.com", id="b-hostile", connections=64)
        port = world.port("b-hostile")

        def meet_a_reset() -> None:
            with contextlib.suppress(ConnectionResetError), socket.create_connection(("127.0.0.1", port), WAIT) as sock:
                assert sock.recv(1) == b""

        async with asyncio.timeout(2 * WAIT):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
            while world.proxy.traffic("b-hostile").open < 64:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            for _ in range(64):
                await asyncio.to_thread(meet_a_reset)
            assert world.proxy.traffic("b-hostile").open == 64
            for _, writer in held:
                writer.close()
        await world.until_ended("b-hostile")
        denied = await world.decisions("b-hostile", denied_only=True)
        assert sum(each.count for each in denied) == 64
        assert all("connections at once" in each.why for each in denied)


async def test_a_flood_of_refused_requests_is_counted_whole_in_few_records(tmp_path: Path) -> None:
    async with make_world(tmp_path) as world:
        world.box("a.example.com")
        client = await world.client()
        many = 2000
        one = b"GET http://x%d.example.org/ HTTP/1.1\r\nHost: x%d.example.org\r\n\r\n"
        sending = asyncio.create_task(client.send(b"".join(one % (number, number) for number in range(many))))
        for _ in range(many):
            assert (await client.response())[0] == 403
        await sending
        found = (await world.records.page("b-1", limit=1000)).decisions
        more = await world.records.page("b-1", limit=1000, after=found[-1].id) if len(found) == 1000 else None
        assert sum(each.count for each in (*found, *(more.decisions if more else ()))) == many


async def test_a_box_that_asks_too_often_is_made_to_wait(tmp_path: Path) -> None:
    async with make_world(tmp_path, requests=50.0) as world:
        world.box("a.example.com")
        client = await world.client()
        begin = time.monotonic()
        for _ in range(70):
            await client.send(b"GET http://x.example.org/ HTTP/1.1\r\nHost: x.example.org\r\n\r\n")
            await client.response()
        assert time.monotonic() - begin > 0.3


async def test_a_box_without_a_network_is_closed_at_once(world: World) -> None:
    world.box(mode=Network.NONE)
    client = await world.client()
    assert await client.is_reset()
    found = await world.decision()
    assert (found.allowed, found.why) == (False, "this box has no network")


# --- a listener that a box has, too ---


@contextlib.contextmanager
def let_block(listener: socket.socket) -> Iterator[None]:
    """Somebody who has the listener too lets it block, again and again."""
    over = threading.Event()

    def block() -> None:
        while not over.is_set():
            os.set_blocking(copy.fileno(), True)

    with listener.dup() as copy:
        thread = threading.Thread(target=block)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


async def test_a_listener_that_is_made_to_block_makes_nobody_wait(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worst case: whatever is done about it is undone in time."""
    monkeypatch.setattr(proxy, "os", SimpleNamespace(set_blocking=lambda descriptor, blocking: None))
    world.box("a.example.com", id="b-2")
    world.box("a.example.com")
    listener = socket.create_server(("127.0.0.1", 0))
    world.proxy.listen("b-1", listener)
    with listener.dup() as copy, socket.create_connection(listener.getsockname()):
        copy.setblocking(True)
        async with asyncio.timeout(WAIT):
            assert (await world.get("http://other.example.org/", box="b-2"))[0] == 403
            while listener.fileno() >= 0:  # noqa: ASYNC110 - the proxy tells nobody
                await asyncio.sleep(0.01)
    assert "box b-1: cannot accept" in caplog.text


async def test_a_listener_that_is_let_block_all_the_time_is_served(world: World) -> None:
    world.box("a.example.com")
    listener = socket.create_server(("127.0.0.1", 0))
    world.proxy.listen("b-1", listener)
    with let_block(listener):
        for _ in range(5):
            with socket.create_connection(listener.getsockname(), timeout=WAIT) as client:
                client.sendall(b"GET http://other.example.org/ HTTP/1.1\r\nHost: other.example.org\r\n\r\n")
                async with asyncio.timeout(WAIT):
                    assert (await asyncio.to_thread(client.recv, 12)) == b"HTTP/1.1 403"
            if listener.fileno() < 0:
                return  # it was made to wait once, and that was the end of it
