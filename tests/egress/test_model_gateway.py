"""The gateway carries what agents ask of models, adds the key, and changes nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.egress.model_world import KEY, World, make_world
from tests.testing.test_model import PATHS, body_of, events_of, every_api, streamed

from holdfast.api.model.models import Api
from holdfast.egress.models import GatewayLimits, probe
from holdfast.testing.model import Gate, Step, error, held, text

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path) as world:
        yield world


@every_api
async def test_an_agent_reaches_its_model_with_its_token_and_the_provider_sees_the_key(world: World, api: Api) -> None:
    world.provider.script([Step(thinking="hm", text="It works.")])
    answer = await world.agent.post(PATHS[api], json=body_of(api))
    assert streamed(api, events_of(answer))[:2] == ("hm", "It works.")
    [request] = world.provider.requests
    assert request.credential == KEY
    assert request.body == body_of(api)
    assert "token-of-the-run" not in str(request.headers)
    expected = {"x-api-key"} if api is Api.ANTHROPIC else {"authorization"}
    assert {"x-api-key", "authorization"} & request.headers.keys() == expected
    answered = await world.answered()
    assert (answered.run, answered.model, answered.status) == ("r-1", "mine/scripted", 200)
    assert answered.sent == len(json.dumps(body_of(api), separators=(",", ":")).encode())
    assert answered.received == len(answer.content)


@every_api
async def test_an_answer_comes_through_piece_by_piece(world: World, api: Api) -> None:
    gate = Gate(1)
    world.provider.script([held(text("first words" + " and the rest of it"), gate)])
    async with world.agent.stream("POST", PATHS[api], json=body_of(api)) as answer:
        seen, pieces = "", answer.aiter_text()
        while "first words" not in seen:  # while the provider holds the rest back
            seen += await anext(pieces)
        await gate.reached()
        assert "the rest" not in seen
        gate.release()
        seen += "".join([piece async for piece in pieces])
    assert "the rest" in seen


async def test_a_request_goes_out_piece_by_piece(world: World) -> None:
    began = asyncio.Event()

    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first half")
        began.set()
        await reader.readuntil(b"second half")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"a": "first half'
        async with asyncio.timeout(240):
            await began.wait()
        yield b' second half"}'

    async with await asyncio.start_server(provider, "127.0.0.1", 0) as server:
        await world.add(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await world.agent.post("/v1/messages", content=body())).json() == {}


async def test_an_agent_that_hangs_up_ends_the_work_of_the_provider(world: World) -> None:
    gate = Gate(1)
    world.provider.script([held(text("a long answer"), gate)])
    asking = asyncio.create_task(world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC)))
    await gate.reached()
    asking.cancel()
    assert await world.provider.requests[0].ended() == "gone"


async def test_a_stream_that_the_provider_cuts_is_cut_for_the_agent(world: World) -> None:
    world.provider.script([Step(text="half an answer", cut=1), text("whole")])
    with pytest.raises(httpx.RemoteProtocolError):
        await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    again = await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    assert streamed(Api.ANTHROPIC, events_of(again))[1] == "whole"
    assert [(await world.answered()).status for _ in range(2)] == [502, 200]


@every_api
async def test_errors_of_the_provider_come_through_as_they_are(world: World, api: Api) -> None:
    headers = {"retry-after": "7", "x-ratelimit-remaining-tokens": "0"}
    world.provider.script([error(429, "slow down", headers=headers)])
    answer = await world.agent.post(PATHS[api], json=body_of(api))
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
    assert answer.json()["error"]["message"] == "slow down"


async def test_a_compressed_request_goes_on_as_it_is(world: World) -> None:
    world.provider.script([text("read")])
    content = gzip.compress(json.dumps(body_of(Api.OPENAI_RESPONSES)).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = await world.agent.post("/v1/responses", content=content, headers=headers)
    assert streamed(Api.OPENAI_RESPONSES, events_of(answer))[1] == "read"
    assert (await world.answered()).sent == len(content)


async def test_what_agents_tell_of_themselves_goes_on_and_nothing_else(world: World) -> None:
    world.provider.script([text("ok")])
    sent = {
        "anthropic-beta": "tools-1",
        "anthropic-version": "2024-01-01",
        "x-stainless-lang": "js",
        "user-agent": "agent/1",
        "cookie": "a=b",
        "openai-organization": "org-other",
        "x-goog-api-key": "other",
        "api-key": "other",
        "x-forwarded-for": "10.0.0.1",
        "proxy-authorization": "Basic eDp5",
        "connection": "keep-alive, x-app",
        "x-app": "named by connection",
    }
    await world.agent.post("/v1/messages?beta=true", json=body_of(Api.ANTHROPIC), headers=sent)
    [request] = world.provider.requests
    assert request.path == "/v1/messages?beta=true"
    headers = dict(request.headers)
    assert headers.pop("host") == f"127.0.0.1:{world.provider.port}"
    assert headers.pop("content-length")
    assert headers == {
        "accept": "*/*",
        "accept-encoding": "identity",
        "anthropic-beta": "tools-1",
        "anthropic-version": "2024-01-01",
        "content-type": "application/json",
        "user-agent": "agent/1",
        "x-api-key": KEY,
        "x-stainless-lang": "js",
    }


async def test_the_models_that_there_are_for_a_run_are_its_own(world: World) -> None:
    assert [each["id"] for each in (await world.agent.get("/v1/models")).json()["data"]] == ["scripted"]
    assert (await world.agent.get("/v1/models/scripted?x=y")).status_code == 200
    assert (await world.agent.head("/")).status_code == 200
    assert list(world.provider.visits) == []


async def test_connections_to_the_provider_are_used_again(world: World) -> None:
    ports = set()

    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports.add(writer.get_extra_info("peername")[1])
        for _ in range(5):
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(provider, "127.0.0.1", 0) as server:
        await world.add(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for _ in range(5):
            assert (await world.agent.post("/v1/messages", json={})).json() == {}
    assert len(ports) == 1


# --- refusals -------------------------------------------------------------------------------------------------------


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Of the gateway's own, which both kinds of clients can read."""
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"]
    assert body["error"]["message"].startswith("Holdfast: ")
    assert KEY not in answer.text
    return answer.status_code, answer.headers["x-holdfast-reason"]


async def test_a_provider_that_is_not_there_is_said_to_be_unreachable(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    await world.add(base_url=url)
    answer = await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    assert refusal(answer) == (502, "unreachable")
    assert url.removeprefix("http://") in answer.json()["error"]["message"]


async def test_a_provider_that_breaks_off_before_its_answer_is_said_to_have_done_so(world: World) -> None:
    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(provider, "127.0.0.1", 0) as server:
        await world.add(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert refusal(await world.agent.post("/v1/messages", json={})) == (502, "broken")


async def test_a_provider_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    async with make_world(tmp_path, limits=GatewayLimits(idle=0.2)) as world:
        gate = Gate()
        world.provider.script([held(text("late"), gate)])
        answer = await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
        assert refusal(answer) == (504, "silent")
        assert await world.provider.requests[0].ended() == "gone"


async def test_a_request_that_is_too_large_is_refused_whether_it_says_so_or_not(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    async with make_world(tmp_path, limits=GatewayLimits(body=1000)) as world:
        assert refusal(await world.agent.post("/v1/messages", content=b"x" * 1001)) == (413, "too_large")
        assert refusal(await world.agent.post("/v1/messages", content=pieces())) == (413, "too_large")
        assert world.provider.requests == []


async def test_a_request_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    async with make_world(tmp_path, limits=GatewayLimits(body_idle=0.2)) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(b"POST /model/v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        assert b"408" in await asyncio.wait_for(reader.readline(), 10)
        writer.close()


async def test_a_run_asks_only_so_many_things_at_once(tmp_path: Path) -> None:
    async with make_world(tmp_path, limits=GatewayLimits(at_once=2)) as world:
        gates = Gate(), Gate()
        world.provider.script([*(held(text("slow"), gate) for gate in gates), text("after")])
        body = body_of(Api.ANTHROPIC)
        asking = [asyncio.create_task(world.agent.post("/v1/messages", json=body)) for _ in gates]
        for gate in gates:
            await gate.reached()
        refused = await world.agent.post("/v1/messages", json=body)
        assert refusal(refused) == (429, "busy")
        assert refused.headers["retry-after"] == "1"
        for gate in gates:
            gate.release()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert (await world.agent.post("/v1/messages", json=body)).status_code == 200


async def test_an_api_that_the_model_does_not_speak_is_refused_by_name(world: World) -> None:
    await world.add(apis=[Api.ANTHROPIC])
    answer = await world.agent.post("/v1/responses", json=body_of(Api.OPENAI_RESPONSES))
    assert refusal(answer) == (404, "api")
    assert "does not speak openai-responses: it speaks anthropic" in answer.json()["error"]["message"]


async def test_a_model_that_was_removed_is_refused_from_then_on(world: World) -> None:
    await world.models.remove("mine")
    assert refusal(await world.agent.post("/v1/messages", json={})) == (403, "model")


# --- trying a model -------------------------------------------------------------------------------------------------


@every_api
async def test_a_model_is_tried_by_the_way_that_agents_go(world: World, api: Api) -> None:
    world.provider.answer_sides("ready")
    result = await probe(world.gateway, world.models.resolve("mine"), api)
    assert (result.ok, result.status, result.text, result.hint) == (True, 200, "ready", None)
    assert world.provider.requests[0].credential == KEY
    assert world.provider.requests[0].model == "scripted"


@pytest.mark.parametrize(
    ("step", "hint"),
    [
        (error(401, "no"), "the key is not accepted"),
        (error(404, "model not found"), "check the name 'scripted'"),
        (error(402, "pay"), "no credit"),
        (error(429, "slow"), "too many requests"),
        (error(503, "down"), "the provider has trouble"),
    ],
)
async def test_a_failed_try_says_what_to_do(world: World, step: Step, hint: str) -> None:
    world.provider.answer_sides(step)
    result = await probe(world.gateway, world.models.resolve("mine"), Api.ANTHROPIC)
    assert not result.ok
    assert result.status == step.error
    assert result.text == step.message
    assert hint in (result.hint or "")


async def test_a_try_of_a_server_that_is_not_there_or_silent_says_so(world: World) -> None:
    gate = Gate()
    world.provider.answer_sides(held(text("late"), gate))
    result = await probe(world.gateway, world.models.resolve("mine"), Api.ANTHROPIC, timeout=0.2)
    assert result.text == "no answer within 0.2 s"
    await world.add(base_url="http://127.0.0.1:1")
    result = await probe(world.gateway, world.models.resolve("mine"), Api.ANTHROPIC)
    assert "cannot be reached" in result.text
    assert "base URL" in (result.hint or "")


async def test_a_try_of_something_that_is_no_model_says_so(world: World) -> None:
    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\n<html/>")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(provider, "127.0.0.1", 0) as server:
        await world.add(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        result: Any = await probe(world.gateway, world.models.resolve("mine"), Api.OPENAI_CHAT)
        assert result.text == "an answer that is not one of this API"


# --- the event loop ---

_FIRST_REQUEST = """
import asyncio, sys, threading
import httpx
from holdfast.egress.models.upstream import LoopbackUpstream

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            print(name)

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nok")

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = "http://127.0.0.1:%d/" % server.sockets[0].getsockname()[1]
    request = httpx.Request("GET", url, extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), 60)})
    upstream = LoopbackUpstream()
    sys.meta_path.insert(0, Watch())
    response = await upstream.send(request)
    assert await response.aread() == b"ok"
    await response.aclose()
    await upstream.close()
    server.close()

asyncio.run(main())
"""


def test_the_first_request_of_a_server_loads_nothing_on_the_event_loop() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_REQUEST], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
