"""Networks of companies: a mirror at a private address, and a proxy before the internet."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.egress.conftest import PUBLIC, WAIT, World, answering, echoing, make_world

from holdfast.api.box.network import Network
from holdfast.egress import Private, UpstreamProxy

pytestmark = pytest.mark.anyio

MIRROR = "10.2.3.4"
SECRET = "s3cret-pass"
BASIC = "Basic " + base64.b64encode(f"ada:{SECRET}!".encode()).decode()


# --- private addresses ---


@pytest.mark.parametrize("named", ["mirror.corp.example", "*.corp.example", "10.2.0.0/16", MIRROR])
async def test_a_private_mirror_is_reached_where_the_operator_named_it(tmp_path: Path, named: str) -> None:
    async with make_world(tmp_path, private=Private.parse([named])) as world:
        await world.serve(answering(b"packages"), "mirror.corp.example", address=MIRROR)
        world.box("mirror.corp.example")
        assert await world.get("http://mirror.corp.example/simple/") == (200, b"packages")
        assert (await world.decision()).allowed


async def test_nothing_private_is_reached_unless_it_is_named(tmp_path: Path) -> None:
    async with make_world(tmp_path, private=Private.parse(["other.corp.example", "10.9.0.0/16"])) as world:
        await world.serve(answering(b"packages"), "mirror.corp.example", address=MIRROR)
        world.box("mirror.corp.example")
        status, body = await world.get("http://mirror.corp.example/simple/")
        assert status == 403
        assert b"--allow-private mirror.corp.example" in body
        assert world.connector.connected == []


async def test_what_is_named_still_needs_a_rule(tmp_path: Path) -> None:
    async with make_world(tmp_path, private=Private.parse(["*.corp.example"])) as world:
        await world.serve(answering(b"packages"), "mirror.corp.example", address=MIRROR)
        world.box("example.org")
        assert (await world.get("http://mirror.corp.example/"))[0] == 403
        assert world.connector.connected == []


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "168.63.129.16", "::1", "fe80::1", "0.0.0.0"])
async def test_loopback_and_metadata_stay_out_of_reach_whatever_is_named(tmp_path: Path, address: str) -> None:
    async with make_world(tmp_path, private=Private.parse(["mirror.corp.example"])) as world:
        await world.serve(answering(b"keys"), "mirror.corp.example", address=address)
        world.box("mirror.corp.example")
        status, body = await world.get("http://mirror.corp.example/")
        assert status == 403
        assert b"which no box reaches" in body
        assert b"--allow-private" not in body
        assert world.connector.connected == []


@pytest.mark.parametrize(
    "text",
    ["", "a b", "http://mirror.example", "mirror.example:80", "127.0.0.0/8", "169.254.169.254", "0.0.0.0/0", "8.8.8.8",
     "::/0", "10.0.0.0/7", "1.2", "*", "*.*.example"],
)  # fmt: skip
def test_what_cannot_be_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        Private.parse([text])


# --- the proxy of a network ---


class CorporateProxy:
    """A proxy as companies have it: CONNECT with a password, to names that only it can resolve."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.says = b"HTTP/1.1 200 Connection established\r\n\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            self.asked.append((head.split()[1], lines.get("Proxy-Authorization")))
            writer.write(self.says)
            if b" 200 " in self.says:
                serve = answering(b"through") if head.split()[1].endswith(":80") else echoing
                await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def corporate(folder: Path, **options: Any) -> AsyncIterator[tuple[World, CorporateProxy]]:
    there = CorporateProxy()
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    upstream = UpstreamProxy("env:CORP", {"CORP": f"http://ada:{SECRET}%21@127.0.0.1:{port}"})
    assert SECRET not in repr(upstream)
    async with make_world(folder, upstream=upstream, **options) as world:
        yield world, there
    server.close()


async def test_what_leaves_goes_through_the_proxy_of_the_network(tmp_path: Path) -> None:
    async with corporate(tmp_path) as (world, there):
        world.box("example.com")
        assert await world.get("http://example.com/") == (200, b"through")
        assert there.asked == [("example.com:80", BASIC)]
        world.box(mode=Network.OPEN)
        client = await world.client()
        await client.send(b"CONNECT tls.example.com:22 HTTP/1.1\r\nHost: tls.example.com:22\r\n\r\n")
        assert b"200" in await client.head()
        await client.send(b"SSH-2.0")
        async with asyncio.timeout(WAIT):
            assert await client.reader.readexactly(7) == b"SSH-2.0"
        assert world.names.asked == [], "names are the proxy's to resolve"
        assert world.connector.connected == []


async def test_policies_hold_before_the_proxy_is_asked(tmp_path: Path) -> None:
    async with corporate(tmp_path) as (world, there):
        world.box("example.com")
        assert (await world.get("http://evil.example.org/"))[0] == 403
        world.box(mode=Network.OPEN)
        for host in ("localhost", "127.0.0.1", "169.254.169.254", MIRROR, "metadata.google.internal", "intranet",
                     "db.localhost"):  # fmt: skip
            assert (await world.get(f"http://{host}/"))[0] == 403, host
        assert there.asked == []


async def test_a_mirror_that_is_named_is_reached_without_the_proxy(tmp_path: Path) -> None:
    async with corporate(tmp_path, private=Private.parse(["mirror.corp.example"])) as (world, there):
        await world.serve(answering(b"packages"), "mirror.corp.example", address=MIRROR)
        world.box("mirror.corp.example")
        assert await world.get("http://mirror.corp.example/") == (200, b"packages")
        assert there.asked == []


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407 Proxy Authentication Required (are its user"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "the proxy of this network says 403 Forbidden"),
        (b"hello\r\n\r\n", "does not speak HTTP"),
        (b"", "closed without an answer"),
    ],
)
async def test_a_proxy_that_refuses_is_quoted_and_its_password_never_told(
    tmp_path: Path, says: bytes, told: str
) -> None:
    async with corporate(tmp_path) as (world, there):
        there.says = says
        world.box("example.com")
        status, body = await world.get("http://example.com/")
        assert (status, told in body.decode()) == (502, True), body
        decision = await world.decision()
        assert (decision.allowed, decision.failed) == (True, True)
        for secret in (SECRET, BASIC):
            assert secret not in body.decode() + decision.why


async def test_a_proxy_that_is_away_is_said(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        upstream = UpstreamProxy(f"http://127.0.0.1:{reserved.getsockname()[1]}", {})
        async with make_world(tmp_path, upstream=upstream) as world:
            world.box("example.com")
            status, body = await world.get("http://example.com/")
            assert (status, b"is not reached" in body) == (502, True)


def test_references_are_checked_and_values_never_told(tmp_path: Path) -> None:
    file = tmp_path / "proxy"
    file.write_text(f"http://ada:{SECRET}@proxy.corp.example:8080\n")
    assert repr(UpstreamProxy(f"file:{file}", {})) == f"<UpstreamProxy file:{file}>"
    assert UpstreamProxy.of(None, {}) is None
    wrong = {"A": f"socks5://ada:{SECRET}@x:1", "B": f"http://ada:{SECRET}@", "C": f"http://ada:{SECRET}@x:99999"}
    for reference in ("env:A", "env:B", "env:C", "env:D", "file:/nowhere", f"http://ada:{SECRET}@x:1", "nonsense"):
        with pytest.raises(ValueError, match=r"is no|cannot be read|command line") as raised:
            UpstreamProxy(reference, wrong)
        assert SECRET not in str(raised.value)


# --- what a box is told ---


async def test_a_blocked_https_host_answers_403_with_the_reason(world: World) -> None:
    world.box("a.example.com")
    client = await world.client()
    await client.send(b"CONNECT pypi.example.org:443 HTTP/1.1\r\nHost: pypi.example.org:443\r\n\r\n")
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    first = head.split(b"\r\n")[0].decode()
    # Clients show this line, and nothing else of an answer to CONNECT.
    assert first == "HTTP/1.1 403 Blocked by the network policy of this box: no rule covers pypi.example.org"
    assert b"holdfast box network b-1 --allow" in body
    assert not (await world.decision()).allowed


async def test_what_comes_to_nothing_failed_and_is_not_called_allowed(world: World) -> None:
    world.box("nowhere.example.com", "quiet.example.com")
    assert (await world.get("http://nowhere.example.com/"))[0] == 502
    decision = await world.decision()
    assert (decision.failed, "has no address" in decision.why) == (True, True)
    world.names.names["quiet.example.com"] = [PUBLIC]
    assert (await world.get("http://quiet.example.com/"))[0] == 502
    assert (await world.decision()).failed
