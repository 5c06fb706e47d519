"""Plain HTTP through the proxy: what is allowed arrives whole, what is not gets a 403 that says why."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from tests.egress.conftest import OTHER, WAIT, World, answering, echoing, make_world

from holdfast.api.box.network import Network

pytestmark = pytest.mark.anyio


async def test_an_allowed_host_answers_and_is_recorded(world: World) -> None:
    await world.serve(answering(b"hello"), "a.example.com")
    world.box("a.example.com")
    assert await world.get("http://a.example.com/x") == (200, b"hello")
    found = await world.decision()
    assert (found.host, found.port, found.method, found.allowed, found.why) == (
        "a.example.com", 80, "GET", True, "a.example.com",
    )  # fmt: skip


async def test_a_blocked_host_gets_a_403_that_names_what_is_missing(world: World) -> None:
    world.box("a.example.com")
    status, body = await world.get("http://evil.example.org/x")
    assert status == 403
    assert b"no rule covers evil.example.org" in body
    assert b"holdfast box network b-1 --allow" in body
    found = await world.decision()
    assert (found.host, found.allowed, found.why) == ("evil.example.org", False, "no rule covers evil.example.org")
    assert world.names.asked == []
    assert world.connector.connected == []


async def test_the_server_gets_an_origin_form_request_without_what_is_meant_for_the_proxy(world: World) -> None:
    seen = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    await world.serve(serve, "a.example.com", 8080)
    world.box("a.example.com:8080")
    status, _ = await world.ask(
        b"GET http://A.Example.com:8080/p?q=1 HTTP/1.1\r\nHost: a.example.com:8080\r\nProxy-Authorization: Basic x\r\n"
        b"Proxy-Connection: keep-alive\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\nX-Yours: 2\r\n\r\n"
    )
    assert status == 204
    assert await seen == b"GET /p?q=1 HTTP/1.1\r\nHost: a.example.com:8080\r\nX-Yours: 2\r\n\r\n"


async def test_one_connection_carries_requests_to_several_hosts_each_judged_by_itself(world: World) -> None:
    await world.serve(answering(b"one"), "one.example.com")
    await world.serve(answering(b"two"), "two.example.com", address=OTHER)
    world.box("one.example.com", "two.example.com")
    client = await world.client()
    for host, body in (("one", b"one"), ("one", b"one"), ("two", b"two"), ("one", b"one")):
        await client.send(f"GET http://{host}.example.com/ HTTP/1.1\r\nHost: {host}.example.com\r\n\r\n".encode())
        assert await client.response() == (200, body)
    await client.send(b"GET http://three.example.com/ HTTP/1.1\r\nHost: three.example.com\r\n\r\n")
    assert (await client.response())[0] == 403
    await client.send(b"GET http://one.example.com/ HTTP/1.1\r\nHost: one.example.com\r\n\r\n")
    assert await client.response() == (200, b"one")
    assert [each.allowed for each in await world.decisions()] == [True, False, True, True, True, True]


async def test_a_head_that_comes_byte_by_byte_is_read(world: World) -> None:
    await world.serve(answering(b"one"), "one.example.com")
    world.box("one.example.com")
    client = await world.client()
    for byte in b"GET http://one.example.com/ HTTP/1.1\r\nHost: one.example.com\r\nX: y\r\n\r\n":
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await client.response() == (200, b"one")


async def test_pipelined_requests_are_answered_in_order(world: World) -> None:
    await world.serve(answering(b"one"), "one.example.com")
    await world.serve(answering(b"two"), "two.example.com", address=OTHER)
    world.box("*.example.com")
    client = await world.client()
    await client.send(
        b"".join(
            b"GET http://%s.example.com/ HTTP/1.1\r\nHost: %s.example.com\r\n\r\n" % (host, host)
            for host in (b"one", b"two", b"one")
        )
    )
    assert [(await client.response())[1] for _ in range(3)] == [b"one", b"two", b"one"]


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
async def test_a_body_arrives_whole_both_ways(world: World, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        data = await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (length, data))
        await writer.drain()

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    sending = asyncio.create_task(
        client.send(
            b"PUT http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: %d\r\n\r\n%s" % (size, body)
        )
    )
    assert await client.response() == (200, body)
    await sending
    traffic = world.proxy.traffic("b-1")
    assert traffic.sent > size
    assert traffic.received > size


async def test_chunks_and_trailers_go_through_both_ways(world: World) -> None:
    seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.set_result(await reader.readuntil(b"0\r\nX-Sum: 1\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await writer.drain()
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (1_000_000, b"z" * 1_000_000))
        await writer.drain()

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    await client.send(
        b"POST http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;ext=1\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\nContent-Length: 3\r\n\r\n"
    )
    assert await seen == b"5\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\n\r\n"
    assert b"chunked" in await client.head()
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(8) == b"3\r\nabc\r\n"
        rest = b"f4240\r\n" + b"z" * 1_000_000 + b"\r\n0\r\n\r\n"
        assert await client.reader.readexactly(len(rest)) == rest
    # The connection goes on.
    await client.send(b"GET http://blocked.example.com/ HTTP/1.1\r\nHost: blocked.example.com\r\n\r\n")
    assert (await client.response())[0] == 403


async def test_a_client_that_expects_100_gets_it_before_it_sends(world: World) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        data = await reader.readexactly(4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + data)

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    await client.send(
        b"PUT http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 4\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert (await client.head()).startswith(b"HTTP/1.1 100 ")
    await client.send(b"body")
    assert await client.response() == (200, b"body")


async def test_a_body_until_the_end_arrives_whole(world: World) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * 3_000_000)
        await writer.drain()

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    await client.send(b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
    assert b"Connection: close" in await client.head()
    assert hashlib.sha256(await client.rest()).digest() == hashlib.sha256(b"y" * 3_000_000).digest()


async def test_an_answer_cut_short_is_not_taken_for_a_whole_one(world: World) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
        await writer.drain()

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    await client.send(b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
    await client.head()
    with pytest.raises(ConnectionResetError):
        await client.rest()


async def test_a_websocket_is_carried(world: World) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Upgrade: websocket" in head
        assert b"Connection: Upgrade" in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        await echoing(reader, writer)

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    await client.send(
        b"GET http://a.example.com/ws HTTP/1.1\r\nHost: a.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: x\r\n\r\n"
    )
    head = await client.head()
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"Upgrade: websocket" in head
    await client.send(b"\x81\x02hi")
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(4) == b"\x81\x02hi"


async def test_a_server_that_closed_a_connection_at_rest_is_asked_again(world: World) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    for _ in range(5):
        await client.send(b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
        assert await client.response() == (200, b"ok")


async def test_a_server_that_closes_after_each_answer_does_not_end_the_boxs_connection(world: World) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    for _ in range(3):
        await client.send(b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
        head = await client.head()
        assert b"Connection" not in head
        assert await client.reader.readexactly(2) == b"ok"


async def test_a_host_that_nobody_serves_is_a_502(world: World) -> None:
    world.names.names["a.example.com"] = [OTHER]
    world.box("*.example.com")
    assert (await world.get("http://a.example.com/"))[0] == 502
    assert (await world.get("http://nowhere.example.com/"))[0] == 502


async def test_the_next_address_is_tried_where_the_first_does_not_answer(world: World) -> None:
    await world.serve(answering(b"ok"), "a.example.com")
    world.names.names["a.example.com"] = [OTHER, *world.names.names["a.example.com"]]
    world.box("a.example.com")
    assert await world.get("http://a.example.com/") == (200, b"ok")
    assert world.connector.connected[0] == (OTHER, 80)


async def test_methods_of_a_rule_are_kept(world: World) -> None:
    await world.serve(answering(b"ok"), "a.example.com")
    world.box("GET,HEAD a.example.com")
    assert (await world.get("http://a.example.com/"))[0] == 200
    status, body = await world.ask(
        b"POST http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 3\r\n\r\nabc"
    )
    assert status == 403
    assert b"rule GET,HEAD a.example.com does not cover POST" in body


async def test_every_public_host_is_open_to_a_box_that_is_open(world: World) -> None:
    await world.serve(answering(b"ok"), "any.example.net", 8123)
    world.box(mode=Network.OPEN)
    assert await world.get("http://any.example.net:8123/") == (200, b"ok")


async def test_a_http_1_0_client_is_served_and_closed(world: World) -> None:
    seen = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nold")

    await world.serve(serve, "a.example.com")
    world.box("a.example.com")
    client = await world.client()
    await client.send(b"GET http://a.example.com/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (await client.rest()).endswith(b"\r\n\r\nold")
    assert (await seen).startswith(b"GET / HTTP/1.0\r\nHost: a.example.com\r\n")


async def test_two_hundred_at_once(tmp_path: Path) -> None:
    async with make_world(tmp_path) as world:
        await world.serve(answering(b"x" * 10_000), "a.example.com")
        world.box("a.example.com")
        answers = await asyncio.gather(*(world.get("http://a.example.com/") for _ in range(200)))
        assert all(answer == (200, b"x" * 10_000) for answer in answers)
