"""What a hostile box, or a hostile provider, tries at the model gateway: no key gets anywhere but to its base URL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.egress.model_world import KEY, WAIT, World, make_world
from tests.testing.test_model import body_of, every_api

from holdfast.api.model.models import Api
from holdfast.egress.models.gateway import GatewayLimits
from holdfast.egress.models.headers import find_route, headers_for_agent, headers_for_provider
from holdfast.redaction import Scrubber
from holdfast.testing.model import FOR_EVER, error, text

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path) as world:
        world.provider.script([text("an answer", times=FOR_EVER)])
        yield world


async def raw(port: int, request: bytes) -> bytes:
    """Bytes to the gateway, and all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(WAIT):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def post(target: str, *headers: str, body: str = "{}") -> bytes:
    lines = [f"POST {target} HTTP/1.1", "host: 127.0.0.1", "connection: close", *headers]
    return ("\r\n".join([*lines, f"content-length: {len(body)}"]) + "\r\n\r\n" + body).encode("latin-1")


@pytest.mark.parametrize(
    "target",
    [
        "/model/../v1/tokens/renew",
        "/model/v1/../../admin",
        "/model/v1/messages/../../../admin",
        "/model/v1/messages/..%2f..%2fadmin",
        "/model/v1/%6dessages",
        "/%6dodel/v1/messages",
        "/model//v1/messages",
        "/model/v1/messages/",
        "/model/v1/messages;x",
        "/model/v1/files",
        "/model/v1/batches",
        "/model/v1/messages/batches",
        "/model/v1/organizations",
        "/model/v1/fine_tuning/jobs",
        "/model/v1/responses/resp_1",
        "/model/@evil.example.com/v1/messages",
        "/model.evil.example.com/v1/messages",
        "/model\\v1\\messages",
        "http://evil.example.com/model/v1/../messages",
        "//evil.example.com/model/v1/messages",
    ],
)
async def test_only_requests_for_answers_go_on(world: World, target: str) -> None:
    answer = await raw(world.port, post(target))
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert KEY.encode() not in answer
    assert list(world.provider.visits) == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"])
async def test_only_posts_go_on(world: World, method: str) -> None:
    answer = await raw(world.port, post("/model/v1/messages").replace(b"POST", method.encode(), 1))
    assert b" 200 " not in answer.partition(b"\r\n")[0]
    assert list(world.provider.visits) == []


async def test_an_absolute_url_leads_to_the_provider_and_nowhere_else(world: World) -> None:
    answer = await raw(world.port, post("http://evil.example.com/model/v1/messages"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert world.provider.requests[0].headers["host"] == f"127.0.0.1:{world.provider.port}"


@pytest.mark.parametrize(
    "query", ["?a=b c", "?a\x01", "?x=http://evil/", "?#", "?%0d%0ax: y&" + "a" * 2000, "?a=\\", '?"']
)
async def test_a_strange_query_stays_behind(world: World, query: str) -> None:
    answer = await raw(world.port, post(f"/model/v1/messages{query}"))
    assert b" 400 " in answer.partition(b"\r\n")[0] or world.provider.requests[0].path == "/v1/messages"


@pytest.mark.parametrize(
    "header",
    [
        "Host: evil.example.com",
        "X-Forwarded-Host: evil.example.com",
        "Forwarded: host=evil.example.com",
        "X-Api-Key: other",
        "Authorization: Bearer other",
        "Api-Key: other",
        "X-Goog-Api-Key: other",
        "Cookie: session=other",
        "Proxy-Authorization: Basic other",
        "OpenAI-Organization: other",
        "Anthropic-Organization-Id: other",
        "Transfer-Encoding : chunked",
        "Connection: x-api-key, authorization, host",
        "X-Stainless-Smuggled: a\rx-api-key: other",
        "Anthropic-Beta: \x00other",
        "Anthropic-Beta: \xe9other",
        "Accept-Encoding: gzip",
        "Expect: 200-maybe",
        "Upgrade: websocket",
    ],
)
async def test_no_header_of_a_box_speaks_for_somebody_else(world: World, header: str) -> None:
    answer = await raw(world.port, post("/model/v1/messages", header))
    if not world.provider.requests:
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        return
    [request] = world.provider.requests
    assert request.headers["host"] == f"127.0.0.1:{world.provider.port}"
    assert request.headers["x-api-key"] == KEY
    assert "authorization" not in request.headers
    assert "other" not in str(request.headers)
    assert "evil" not in str(request.headers)


@pytest.mark.parametrize(
    "lengths",
    [
        b"content-length: 2\r\ncontent-length: 40\r\n\r\n{}",
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"content-length: -1\r\n\r\n{}",
        b"content-length: " + b"9" * 5000 + b"\r\n\r\n{}",
        b"content-length: 99999999999999999999\r\n\r\n{}",
    ],
)
async def test_a_body_of_two_lengths_or_none_is_not_sent_on(world: World, lengths: bytes) -> None:
    head = b"POST /model/v1/messages HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
    answer = await raw(world.port, head + lengths)
    assert answer.startswith(b"HTTP/1.1 4")
    assert world.provider.requests == []


async def test_a_body_that_holds_a_request_is_a_body(world: World) -> None:
    """Chunks are written anew, so what looks like the next request stays inside of this one."""
    inner = b"0\r\n\r\nPOST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    head = b"POST /model/v1/messages HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    await raw(world.port, head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner))
    assert list(world.provider.visits) == ["POST /v1/messages"]


# --- hostile providers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(world: World, status: int) -> None:
    elsewhere: list[bytes] = []

    async def thief(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        elsewhere.append(await reader.read(10_000))
        writer.close()

    async with await asyncio.start_server(thief, "127.0.0.1", 0) as server:
        place = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/steal"
        world.provider.script([error(status, headers={"location": place})])
        answer = await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC), follow_redirects=True)
    assert (answer.status_code, answer.headers["x-holdfast-reason"]) == (502, "redirect")
    assert "location" not in answer.headers
    assert elsewhere == []


@every_api
async def test_a_provider_that_repeats_the_key_is_not_let_through(world: World, api: Api) -> None:
    path = {Api.OPENAI_CHAT: "/v1/chat/completions", Api.OPENAI_RESPONSES: "/v1/responses"}.get(api, "/v1/messages")
    headers = {"x-echo": KEY, "set-cookie": f"key={KEY}", "openai-organization": "org-1"}
    world.provider.script([error(401, f"{KEY} is not a key", headers=headers), text(f"Your key is {KEY}, isn't it?")])
    told = await world.agent.post(path, json=body_of(api))
    assert told.status_code == 401
    assert told.json()["error"]["message"] == f"{'*' * len(KEY)} is not a key"
    answer = await world.agent.post(path, json=body_of(api, stream=False))
    assert f"Your key is {'*' * len(KEY)}, isn't it?" in answer.text
    for each in (told, answer):
        assert KEY not in f"{each.text} {each.headers}"
        assert "set-cookie" not in each.headers
        assert "openai-organization" not in each.headers


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nx-bad: a\x00b\r\ncontent-length: 2\r\n\r\n{}",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nraw bytes",
    ],
)
async def test_an_answer_that_is_none_harms_nobody(tmp_path: Path, answer: bytes) -> None:
    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with (
        make_world(tmp_path, limits=GatewayLimits(idle=2.0)) as world,
        await asyncio.start_server(provider, "127.0.0.1", 0) as server,
    ):
        await world.add(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        told = await raw(world.port, post("/model/v1/messages"))
        assert b" 200 OK" not in told.partition(b"\r\n")[0] or not told.endswith(b"0\r\n\r\n")
        world.provider.script([text("still there")])
        await world.add()
        assert (await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))).status_code == 200


async def test_no_log_holds_a_key_or_a_word_of_a_body(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world.provider.script([error(401, f"{KEY}!"), text("private words", cut=1), text("private words")])
    body = body_of(Api.ANTHROPIC, "private question")
    for _ in range(3):
        await raw(world.port, post("/model/v1/messages", body=str(body).replace("'", '"').replace("True", "true")))
    await world.add(base_url="http://127.0.0.1:1")
    await world.agent.post("/v1/messages", json=body)
    assert len(world.provider.requests) == 3
    said = "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
    assert "model mine/scripted for run r-1: 401" in said
    for secret in (KEY, "private", "token-of-the-run"):
        assert secret not in said


# --- the pieces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 27, 28, 29, 1000])
def test_a_key_is_found_however_it_is_cut_into_pieces(size: int) -> None:
    data = f"{KEY[:5]}{KEY} and {KEY}{KEY[:-1]} sk-real {KEY[:9]}".encode()
    scrubber = Scrubber(KEY)
    given = b"".join(scrubber.feed(data[start : start + size]) for start in range(0, len(data), size))
    given += scrubber.rest()
    assert given == data.replace(KEY.encode(), b"*" * len(KEY))


def test_nothing_is_held_back_that_cannot_begin_a_key() -> None:
    scrubber = Scrubber(KEY)
    assert scrubber.feed(b"data: words\n\n") == b"data: words\n\n"
    assert scrubber.feed(b"data: s") == b"data: "
    assert scrubber.feed(b"o it goes on") == b"so it goes on"
    assert Scrubber("short").feed(b"a short word") == b"a short word"
    assert Scrubber(None).feed(b"anything") == b"anything"


def test_what_goes_on_is_a_matter_of_names() -> None:
    sent = dict(headers_for_provider([(b"X-API-Key", b"mine"), (b"Content-Type", b"a/b")], Api.OPENAI_CHAT, KEY))
    assert sent == {
        b"content-type": b"a/b",
        b"accept-encoding": b"identity",
        b"authorization": f"Bearer {KEY}".encode(),
    }
    assert dict(headers_for_provider([], Api.OPENAI_CHAT, None)) == {b"accept-encoding": b"identity"}
    given = headers_for_agent(
        [(b"Connection", b"X-Hop"), (b"X-Hop", b"1"), (b"Retry-After", b"2"), (b"Set-Cookie", b"c")]
    )
    assert given == [(b"retry-after", b"2")]
    assert find_route("POST", b"/model/v1/messages") is not None
    assert find_route("post", b"/model/v1/messages") is None
