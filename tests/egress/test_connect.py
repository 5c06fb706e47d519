"""Tunnels: TLS to the name that was allowed, and to no other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.egress.conftest import WAIT, Client, World, answering, echoing

from holdfast.api.box.network import Network
from holdfast.egress.tls_hello import NotTls, read_hello

pytestmark = pytest.mark.anyio


def client_hello(name: str | None) -> bytes:
    """As OpenSSL sends it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def in_records(hello: bytes, size: int) -> bytes:
    """The same message, in TLS records of that size."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


async def tunnel(world: World, target: str) -> Client:
    client = await world.client()
    await client.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    assert (await client.head()).startswith(b"HTTP/1.1 200 Connection established\r\n")
    return client


async def test_an_answer_after_which_the_proxy_closes_says_so(world: World) -> None:
    world.box("a.example.com")
    client = await world.client()
    await client.send(b"CONNECT blocked.example.com:443 HTTP/1.1\r\nHost: blocked.example.com:443\r\n\r\n")
    assert b"\r\nConnection: close\r\n" in await client.head()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a.example.com",
         "-addext", "subjectAltName=DNS:a.example.com", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


async def test_https_goes_through_end_to_end(world: World, certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    await world.serve(answering(b"secret"), "a.example.com", 443, tls=context)
    world.box("a.example.com")
    environment = {**os.environ, "https_proxy": f"http://127.0.0.1:{world.port()}", "NO_PROXY": "", "no_proxy": ""}
    command = ("curl", "-sS", "--max-time", "10", "--cacert", certificate / "cert.pem", "https://a.example.com/")
    curl = await asyncio.create_subprocess_exec(*command, env=environment, stdout=-1, stderr=-1)
    out, err = await curl.communicate()
    assert (out, err) == (b"secret", b"")
    blocked = await asyncio.create_subprocess_exec(
        *command[:-1], "https://blocked.example.com/", env=environment, stdout=-1, stderr=-1
    )
    out, err = await blocked.communicate()
    assert blocked.returncode != 0
    assert b"403" in err
    denied, allowed = await world.decisions()
    assert (denied.host, denied.port, denied.method, denied.allowed) == ("blocked.example.com", 443, "CONNECT", False)
    assert (allowed.host, allowed.port, allowed.method, allowed.allowed) == ("a.example.com", 443, "CONNECT", True)
    await world.until_ended()
    _, allowed = await world.decisions()
    assert allowed.sent > 300
    assert allowed.received > 1000
    assert allowed.ms is not None


@pytest.mark.parametrize("size", [1 << 14, 100, 40])
async def test_a_hello_in_pieces_is_put_together(world: World, size: int) -> None:
    await world.serve(echoing, "a.example.com", 443)
    world.box("a.example.com")
    client = await tunnel(world, "a.example.com:443")
    hello = in_records(client_hello("a.example.com"), size)
    for at in range(0, len(hello), 50):
        await client.send(hello[at : at + 50])
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(len(hello)) == hello


async def test_a_name_with_capitals_and_a_dot_is_the_same_name(world: World) -> None:
    await world.serve(echoing, "a.example.com", 443)
    world.box("a.example.com")
    client = await tunnel(world, "A.Example.COM.:443")
    hello = client_hello("a.EXAMPLE.com")
    await client.send(hello)
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(len(hello)) == hello


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (client_hello("evil.example.org"), "asks for evil.example.org inside"),
        (client_hello(None), "asks for no name inside"),
        (in_records(client_hello("evil.example.org"), 60), "asks for evil.example.org inside"),
        (b"GET / HTTP/1.1\r\nHost: evil.example.org\r\n\r\n", "the first bytes are not a TLS handshake"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the first bytes are not a TLS handshake"),
        (in_records(client_hello("a.example.com"), 1), "in too many pieces"),
        (b"\x16\x03\x01\x00\x00", "invalid length"),
        (b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00", "not a ClientHello"),
        (b"\x16\x03\x01\x00\x05\x01\xff\xff\xff\x00", "too long"),
    ],
)
async def test_a_tunnel_for_anything_else_is_reset_before_a_byte_is_sent(world: World, first: bytes, why: str) -> None:
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            got.extend(data)

    await world.serve(serve, "a.example.com", 443)
    world.box("a.example.com")
    client = await tunnel(world, "a.example.com:443")
    await client.send(first)
    assert await client.is_reset()
    found = await world.decision()
    assert not found.allowed
    assert why in found.why
    await world.until_ended()
    assert not got


async def test_an_open_box_may_speak_what_it_likes_but_no_tls_for_another_name(world: World) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-here\r\n")
        await echoing(reader, writer)

    await world.serve(greet, "git.example.com", 22)
    world.box(mode=Network.OPEN)
    client = await tunnel(world, "git.example.com:22")
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(14) == b"SSH-2.0-here\r\n"
        await client.send(b"SSH-2.0-there\r\n")
        assert await client.reader.readexactly(15) == b"SSH-2.0-there\r\n"
    other = await tunnel(world, "git.example.com:22")
    await other.send(client_hello("evil.example.org"))
    with pytest.raises(ConnectionResetError):
        await other.rest()
    assert not (await world.decision()).allowed


async def test_a_tunnel_carries_megabytes_both_ways_and_ends_when_both_sides_have(world: World) -> None:
    await world.serve(echoing, "a.example.com", 443)
    world.box("a.example.com")
    client = await tunnel(world, "a.example.com:443")
    data = client_hello("a.example.com") + os.urandom(1 << 20) * 6

    async def send() -> None:
        await client.send(data)
        client.writer.write_eof()

    sending = asyncio.create_task(send())
    assert await client.rest() == data
    await sending
    await world.until_ended()
    found = await world.decision()
    assert found.sent >= len(data)
    assert found.received == len(data)


def test_every_prefix_of_a_hello_needs_more_and_no_byte_of_it_breaks_the_reader() -> None:
    hello = client_hello("a.example.com")
    assert all(read_hello(hello[:end]) is None for end in range(len(hello)))
    found = read_hello(hello + b"\x17\x03\x03\x00\x01x")
    assert found is not None
    assert found.name == "a.example.com"
    for at in range(len(hello)):
        for value in (0, 255, hello[at] ^ 1):
            with contextlib.suppress(NotTls):
                read_hello(hello[:at] + bytes([value]) + hello[at + 1 :])
