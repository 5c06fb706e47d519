"""Secrets that are bound to hosts go into requests to those hosts, and the box sees only a placeholder."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.egress.bound_world import GIT, HOST, OUTSIDE, VALUE, BoundWorld, bound_world, trusting
from tests.egress.conftest import WAIT

from holdfast.api.box.network import Network, NetworkPolicy, Rule
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.api.errors.secrets import InvalidSecret, SecretMissing
from holdfast.api.secrets import Binding, Exposure, Placement, SecretAction
from holdfast.egress import DefaultList, Source

pytestmark = pytest.mark.anyio
BASIC = base64.b64encode(f"me:{VALUE}".encode())


@pytest.fixture
async def bound(tmp_path: Path) -> AsyncIterator[BoundWorld]:
    async with bound_world(tmp_path) as bound:
        yield bound


@pytest.mark.parametrize(
    ("binding", "line", "header"),
    [
        ({"format": "Bearer {}"}, b"GET /v1?a=1 HTTP/1.1", b"Authorization: Bearer " + VALUE.encode()),
        ({"name": "X-Api-Key"}, b"GET /v1?a=1 HTTP/1.1", b"X-Api-Key: " + VALUE.encode()),
        ({"placement": Placement.BASIC, "name": "me"}, b"GET /v1?a=1 HTTP/1.1", b"Authorization: Basic " + BASIC),
        (
            {"placement": Placement.QUERY, "name": "key"},
            b"GET /v1?a=1&key=sk-live-0123456789%2Fabcdef%2Bghij HTTP/1.1",
            b"Accept-Encoding: identity",
        ),
    ],
)
async def test_a_secret_is_put_where_its_binding_says(
    bound: BoundWorld, binding: dict[str, Any], line: bytes, header: bytes
) -> None:
    await bound.secrets.set("TOKEN", VALUE, [Binding(host=HOST, **binding)], by="alice")
    sent = "Authorization: Bearer holdfast-placeholder-TOKEN\r\nX-Api-Key: placeholder\r\nX-Other: stays\r\n"
    status, _ = await bound.get("/v1?a=1", more=sent)
    assert status == 200
    [head] = bound.outside.heads
    lines = head.split(b"\r\n")
    assert lines[0] == line
    assert header in lines
    assert b"Host: api.example.com" in lines
    assert b"X-Other: stays" in lines
    name = header.partition(b":")[0]
    assert len(bound.outside.header(name)) == 1


MARK = "dtn_secret_0123456789abcdef"


async def test_a_secret_is_put_wherever_its_placeholder_is(bound: BoundWorld) -> None:
    await bound.secrets.set(
        "TOKEN", VALUE, [Binding(host=HOST, placement=Placement.PLACEHOLDER, name=MARK)], by="alice"
    )
    more = f"Authorization: Bearer {MARK}\r\nX-Two: {MARK} and {MARK}\r\nX-Other: {MARK[:-1]}\r\n"
    status, body = await bound.get(f"/{MARK}?key={MARK}&a=1", more=more)
    assert status == 200
    assert bound.outside.header(b"authorization") == [b"Bearer " + VALUE.encode()]
    assert bound.outside.header(b"x-two") == [f"{VALUE} and {VALUE}".encode()]
    assert bound.outside.header(b"x-other") == [MARK[:-1].encode()]
    [head] = bound.outside.heads
    assert head.startswith(f"GET /{MARK}?key={quote(VALUE, safe='')}&a=1 HTTP/1.1\r\n".encode())
    assert VALUE.encode() not in body


async def test_a_request_without_the_placeholder_gets_no_secret(bound: BoundWorld) -> None:
    await bound.secrets.set(
        "TOKEN", VALUE, [Binding(host=HOST, placement=Placement.PLACEHOLDER, name=MARK)], by="alice"
    )
    assert (await bound.get("/", more="Authorization: Bearer mine\r\n"))[0] == 200
    assert bound.outside.header(b"authorization") == [b"Bearer mine"]
    assert not any(event.action is SecretAction.USED for event in await bound.secrets.events("TOKEN"))


@pytest.mark.parametrize("mark", ["", "too_short", "with blanks in it 0123456789", "x" * 101])
async def test_a_placeholder_that_could_be_something_else_is_refused(bound: BoundWorld, mark: str) -> None:
    binding = Binding(host=HOST, placement=Placement.PLACEHOLDER, name=mark)
    with pytest.raises(InvalidSecret, match="not a placeholder"):
        await bound.secrets.set("TOKEN", VALUE, [binding], by="alice")


async def test_the_use_is_recorded_by_name(bound: BoundWorld) -> None:
    await bound.get()
    decision = await bound.world.decision()
    assert (decision.host, decision.port, decision.method, decision.allowed) == (HOST, 443, "GET", True)
    assert decision.why == "secret TOKEN; with secret TOKEN"
    event, _ = await bound.secrets.events("TOKEN")
    assert (event.action, event.box, event.host) == (SecretAction.USED, "b-1", HOST)


async def test_a_box_sees_placeholders_and_where_certificates_are(bound: BoundWorld) -> None:
    policy = NetworkPolicy(Network.ALLOW, secrets=("TOKEN",))
    environment = bound.world.proxy.environment(policy)
    assert environment["TOKEN"] == "holdfast-placeholder-TOKEN"
    assert environment["SSL_CERT_FILE"] == environment["GIT_SSL_CAINFO"] == "/tmp/.holdfast/certificates.pem"
    assert VALUE not in str(environment)
    assert "SSL_CERT_FILE" not in bound.world.proxy.environment(NetworkPolicy(Network.ALLOW))


async def test_an_exposed_secret_is_in_the_environment(bound: BoundWorld) -> None:
    await bound.secrets.set("PLAIN", "a value", expose=Exposure.ENV, by="alice")
    await bound.secrets.set("PEM", "two\nlines", expose=Exposure.FILE, by="alice")
    policy = NetworkPolicy(secrets=("PLAIN", "PEM"))
    assert bound.world.proxy.environment(policy) == {"PLAIN": "a value", "PEM_FILE": "/tmp/.holdfast/secrets/PEM"}
    bound.server.check(policy)
    assert bound.server.exposed(policy) == ("PLAIN", "PEM")


async def test_a_policy_names_secrets_that_exist_and_can_be_used(bound: BoundWorld) -> None:
    with pytest.raises(SecretMissing, match="there is no secret NONE, MORE"):
        bound.server.check(NetworkPolicy(Network.ALLOW, secrets=("NONE", "TOKEN", "MORE:push")))
    with pytest.raises(InvalidSpec, match="a box without a network"):
        bound.server.check(NetworkPolicy(secrets=("TOKEN",)))


async def test_requests_of_one_connection_follow_each_other(bound: BoundWorld) -> None:
    client = await bound.inside()
    for number in range(3):
        await client.send(f"GET /{number} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        status, body = await client.response()
        assert status == 200
        assert body.startswith(b"GET /%d " % number)
    assert len(bound.world.connector.connected) == 1


async def test_a_new_value_is_used_by_the_next_request_of_a_connection(bound: BoundWorld) -> None:
    client = await bound.inside()
    request = f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    await client.send(request)
    await client.response()
    await bound.secrets.rotate("TOKEN", "sk-live-the-second-value", by="bob")
    await client.send(request)
    await client.response()
    assert bound.outside.header(b"authorization") == [b"Bearer sk-live-the-second-value"]
    await bound.secrets.remove("TOKEN", by="bob")
    await client.send(request)
    status, body = await client.response()
    assert status == 403
    assert b"no longer there" in body
    assert len(bound.outside.heads) == 2


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_go_through_whole(bound: BoundWorld, chunked: bool, expect: bytes) -> None:
    content = bytes(range(256)) * 2000
    client = await bound.inside()
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(content)
    await client.send(b"POST / HTTP/1.1\r\nHost: %s\r\n%s%s\r\n\r\n" % (HOST.encode(), expect, framing))
    if expect:
        assert (await client.head()).startswith(b"HTTP/1.1 100")
    if chunked:
        for at in range(0, len(content), 100_000):
            piece = content[at : at + 100_000]
            await client.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        await client.send(b"0\r\n\r\n")
    else:
        await client.send(content)
    status, body = await client.response()
    assert status == 200
    assert bound.outside.bodies == [content]
    assert body.endswith(content)


async def test_an_answer_arrives_as_it_is_sent(bound: BoundWorld) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        await reader.read()  # never says more

    await bound.serve(serve=serve)
    client = await bound.inside()
    await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    await client.head()
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(10) == b"5\r\nfirst\r\n"


async def test_a_websocket_is_opened_with_the_secret(bound: BoundWorld) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Authorization: Bearer " + VALUE.encode() in head
        assert b"Sec-WebSocket-Extensions" not in head
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        while data := await reader.read(1000):
            writer.write(data + VALUE.encode())
            await writer.drain()

    await bound.serve(serve=serve)
    client = await bound.inside()
    await client.send(
        f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n".encode()
    )
    assert (await client.head()).startswith(b"HTTP/1.1 101 ")
    await client.send(b"ping")
    async with asyncio.timeout(WAIT):
        assert await client.reader.readexactly(4 + len(VALUE)) == b"ping" + b"*" * len(VALUE)


async def test_a_host_without_a_binding_stays_end_to_end(bound: BoundWorld) -> None:
    await bound.serve("other.example.com")
    client = await bound.inside("other.example.com", context=trusting(OUTSIDE))  # not the box's own authority
    await client.send(b"GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n")
    status, body = await client.response()
    assert status == 200
    assert b"authorization" not in body.lower()
    assert (await bound.world.decision()).method == "CONNECT"


async def test_without_a_rule_only_the_bound_host_is_reached(bound: BoundWorld) -> None:
    bound.world.box("other.example.com", id="b-2", secrets=("TOKEN",))
    assert (await bound.get(box="b-2"))[0] == 200
    client = await bound.world.client("b-2")
    await client.send(f"CONNECT {GIT}:443 HTTP/1.1\r\nHost: {GIT}:443\r\n\r\n".encode())
    assert await client.is_refused()


async def test_a_box_can_have_the_hosts_of_its_secrets_and_nothing_else(bound: BoundWorld) -> None:
    await bound.serve("registry.example.com")
    bound.world.proxy.use(DefaultList((Source(Rule.parse("registry.example.com"), "pip"),)))
    bound.world.box("secrets", id="b-2", secrets=("TOKEN",))
    assert (await bound.get(box="b-2"))[0] == 200
    client = await bound.world.client("b-2")
    await client.send(b"CONNECT registry.example.com:443 HTTP/1.1\r\nHost: registry.example.com:443\r\n\r\n")
    assert await client.is_refused()


async def test_a_certificate_of_the_box_is_the_same_after_a_restart(bound: BoundWorld) -> None:
    before, after = bound.server.authority("b-1"), bound.server.authority("b-1")
    for issuer, trusted in ((before, after), (after, before)):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting(trusted).wrap_bio(incoming, outgoing, server_hostname=HOST)
        server = issuer.context(HOST).wrap_bio(outgoing, incoming, server_side=True)
        for _ in range(3):
            for end in (client, server):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        assert client.version() == "TLSv1.3"
