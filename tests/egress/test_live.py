"""A policy that changes while a box runs, its shares of everything, and how a box comes and goes."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest
import uvloop
from tests.egress.conftest import WAIT, Client, World, answering, echoing, make_world
from tests.egress.test_connect import client_hello, tunnel

from holdfast.api.box.network import Network, NetworkPolicy, Rule
from holdfast.api.box.records import Owner
from holdfast.boxes.labels import owner_labels
from holdfast.egress import DefaultList, Source

pytestmark = pytest.mark.anyio


async def open_tunnel(world: World) -> Client:
    """With bytes gone both ways."""
    client = await tunnel(world, "a.example.com:443")
    await client.send(hello := client_hello("a.example.com"))
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(len(hello)) == hello
    return client


async def test_a_tunnel_that_is_allowed_no_more_is_reset_and_others_go_on(world: World) -> None:
    await world.serve(echoing, "a.example.com", 443)
    world.box("a.example.com")
    client = await open_tunnel(world)
    world.box("a.example.com", "b.example.com")
    await client.send(b"still")
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(5) == b"still"
    world.box("b.example.com")
    with pytest.raises(ConnectionResetError):
        await client.rest()
    await world.until_ended()
    denied, allowed = await world.decisions()
    assert (denied.allowed, denied.why) == (False, "the policy has changed: no rule covers a.example.com")
    assert allowed.allowed
    assert allowed.sent > 5
    assert (await world.get("http://a.example.com/"))[0] == 403


async def test_a_box_that_loses_its_network_loses_connections_at_rest_too(world: World) -> None:
    world.box("a.example.com")
    client = await world.client()
    await client.send(b"GET http://x.example.org/ HTTP/1.1\r\nHost: x.example.org\r\n\r\n")
    await client.response()
    world.box(mode=Network.NONE)
    assert await client.is_reset()


@pytest.mark.parametrize("before", [Network.NONE, Network.ALLOW])
async def test_who_has_not_spoken_yet_may_still_ask_at_the_door_when_a_box_is_told_to_have_no_network(
    tmp_path: Path, before: Network
) -> None:
    async def guest_api(box: str, connection: socket.socket, ahead: bytes) -> None:
        with connection:
            await asyncio.get_running_loop().sock_sendall(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with make_world(tmp_path, guest_api=guest_api) as world:
        world.box(mode=before)
        asks_us, asks_others = await world.client(), await world.client()
        await asks_us.send(b"POST ")
        async with asyncio.timeout(WAIT):
            while world.proxy.traffic("b-1").open < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        world.box(mode=Network.NONE)
        await asks_us.send(b"/v1/runs HTTP/1.1\r\nHost: us\r\n\r\n")
        assert await asks_us.response() == (200, b"")
        await asks_others.send(b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
        assert await asks_others.is_reset()
        assert (await world.decision()).why == "this box has no network"


async def test_a_policy_that_changes_while_a_name_is_looked_up_counts(tmp_path: Path) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow:
        async def resolve(self, host: str, port: int) -> list[str]:
            asked.set()
            await answer.wait()
            return ["93.184.215.14"]

    async with make_world(tmp_path, names=Slow()) as world:
        world.box("a.example.com")
        client = await world.client()
        await client.send(b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
        await asked.wait()
        world.box("b.example.com")
        answer.set()
        assert await client.is_reset()
        assert world.connector.connected == []


async def test_an_environments_policy_counts_for_boxes_that_list_nothing_and_changes_at_once(tmp_path: Path) -> None:
    policies = {"web": NetworkPolicy(Network.ALLOW, ("a.example.com",))}
    async with make_world(tmp_path, policies=policies.get) as world:
        await world.serve(echoing, "a.example.com", 443)
        world.box()
        world.proxy.admit("b-1", NetworkPolicy(Network.ALLOW), owner_labels(Owner(environment="web")))
        client = await open_tunnel(world)
        policies["web"] = NetworkPolicy(Network.ALLOW, ("b.example.com",))
        world.proxy.refresh("other")
        await client.send(b"still")
        async with asyncio.timeout(WAIT):
            await client.reader.readexactly(5)
        world.proxy.refresh("web")
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_the_default_list_can_come_later(world: World) -> None:
    await world.serve(answering(b"ok"), "a.example.com")
    world.box()
    assert (await world.get("http://a.example.com/"))[0] == 403
    world.proxy.use(DefaultList((Source(Rule.parse("a.example.com"), "pip"),), {"PIP_INDEX_URL": "http://x/"}))
    assert (await world.get("http://a.example.com/"))[0] == 200
    environment = world.proxy.environment(NetworkPolicy(Network.ALLOW))
    assert environment["PIP_INDEX_URL"] == "http://x/"
    assert environment["https_proxy"] == environment["HTTP_PROXY"] == "http://127.0.0.1:3128"
    assert world.proxy.environment(NetworkPolicy()) == {}


async def test_bandwidth_is_held_to_what_the_policy_says_and_neighbours_do_not_notice(tmp_path: Path) -> None:
    async with make_world(tmp_path) as world:
        await world.serve(answering(b"x" * 400_000), "a.example.com")
        world.box("a.example.com", bandwidth=400_000)
        begin = time.monotonic()
        assert (await world.get("http://a.example.com/"))[0] == 200
        assert time.monotonic() - begin > 0.5
        world.box("a.example.com", id="b-2", bandwidth=4_000)
        world.box("a.example.com", id="b-3")
        slow = asyncio.create_task(world.get("http://a.example.com/", "b-2"))
        for _ in range(5):
            assert (await world.get("http://a.example.com/", "b-3"))[0] == 200
        assert not slow.done()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


async def test_a_box_that_is_dismissed_is_closed_and_can_come_back(world: World) -> None:
    await world.serve(echoing, "a.example.com", 443)
    world.box("a.example.com")
    client = await open_tunnel(world)
    port = world.port()
    world.proxy.dismiss("b-1")
    world.proxy.dismiss("b-1")
    with pytest.raises(ConnectionResetError):
        await client.rest()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WAIT)
    assert world.proxy.traffic("b-1").open == 0
    world.proxy.admit("b-1", NetworkPolicy(Network.ALLOW, ("a.example.com",)), {})
    listener = socket.create_server(("127.0.0.1", port))
    world.proxy.listen("b-1", listener)
    await open_tunnel(world)


async def test_a_connection_that_is_ended_before_it_began_is_closed(world: World) -> None:
    world.proxy.admit("b-1", NetworkPolicy(Network.ALLOW, ("a.example.com",)), {})
    ours, theirs = socket.socketpair()
    world.proxy.take("b-1", theirs)
    world.proxy.dismiss("b-1")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert theirs.fileno() == -1
    with ours:
        assert ours.recv(1) == b""


async def test_connections_can_be_handed_over_one_by_one(world: World) -> None:
    await world.serve(answering(b"ok"), "a.example.com")
    world.proxy.admit("b-1", NetworkPolicy(Network.ALLOW, ("a.example.com",)), {})
    ours, theirs = socket.socketpair()
    world.proxy.take("b-1", theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    client = Client(reader, writer)
    await client.send(b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
    assert await client.response() == (200, b"ok")
    writer.close()
    unknown, given = socket.socketpair()
    world.proxy.take("b-unknown", given)
    with unknown:
        assert unknown.recv(1) == b""
    assert (await world.decision("b-unknown")).why == "this box has no network"


async def test_much_goes_through_a_connection_that_was_handed_over(world: World) -> None:
    await world.serve(echoing, "a.example.com", 443)
    world.proxy.admit("b-1", NetworkPolicy(Network.OPEN), {})
    ours, theirs = socket.socketpair()
    world.proxy.take("b-1", theirs)
    client = Client(*await asyncio.open_connection(sock=ours))
    await client.send(b"CONNECT a.example.com:443 HTTP/1.1\r\nHost: a.example.com:443\r\n\r\n")
    await client.head()
    data = os.urandom(1 << 20) * 5

    async def send() -> None:
        await client.send(data)
        client.writer.write_eof()

    sending = asyncio.create_task(send())
    assert await client.rest() == data
    await sending
    client.writer.close()


async def test_no_descriptor_is_left_behind(world: World) -> None:
    await world.serve(echoing, "a.example.com", 443)
    await world.serve(answering(b"ok"), "b.example.com")
    world.box("*.example.com")

    async def some() -> None:
        for _ in range(5):
            client = await open_tunnel(world)
            await client.send(b"x" * 3_000_000)
            client.writer.transport.abort()
            other = await world.client()
            await other.send(b"GET http://b.example.com/ HTTP/1.1\r\nHost: b.example.com\r\n\r\n")
            await other.response()
            other.writer.transport.abort()
        await world.until_ended()

    def ours() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    await some()
    before = ours()
    for _ in range(4):
        await some()
    assert ours() <= before + 24  # pipes that are kept, and servers that have not noticed yet


def test_it_runs_on_uvloop_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with make_world(tmp_path) as world:
            await world.serve(echoing, "a.example.com", 443)
            await world.serve(answering(b"y" * 2_000_000), "b.example.com", address="151.101.1.69")
            world.box("*.example.com")
            client = await open_tunnel(world)
            data = os.urandom(1 << 20) * 4

            async def send() -> None:
                await client.send(data)
                client.writer.write_eof()

            sending = asyncio.create_task(send())
            assert await client.rest() == data
            await sending
            assert await world.get("http://b.example.com/") == (200, b"y" * 2_000_000)
            client = await open_tunnel(world)
            world.box("b.example.com")
            assert await client.is_reset()
            assert (await world.get("http://a.example.com/"))[0] == 403

    uvloop.run(main())


async def test_what_goes_back_to_a_box_is_not_paced_whatever_this_machine_does_for_networks(world: World) -> None:
    world.box("a.example.com")
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        ours, _ = listener.accept()
        world.proxy.take("b-1", ours)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
