"""Asking a model through the gateway: messages in, text and usage out, by every API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.egress.model_world import KEY, World, make_world

from holdfast.api.model.models import Api
from holdfast.egress.models import Completion, InvalidModel, ModelFailed, ask
from holdfast.egress.models.completion import question_of, read_answer
from holdfast.testing.model import Gate, Step, Usage, error, held, text

pytestmark = pytest.mark.anyio

every_api = pytest.mark.parametrize("api", list(Api))
HELLO = ({"role": "user", "content": "hello"},)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path) as world:
        yield world


@every_api
async def test_a_model_is_asked_and_its_usage_is_told(world: World, api: Api) -> None:
    world.provider.answer_sides(Step(text="an answer", usage=Usage(input=70, output=9, cache_read=30)))
    messages = [{"role": "system", "content": "be short"}, *HELLO]
    said = await ask(world.gateway, world.models.resolve("mine"), messages, run="t-1", api=api)
    assert said == Completion("an answer", 100, 9)
    request = world.provider.requests[0]
    assert (request.credential, request.model, request.api) == (KEY, "scripted", api)
    assert "be short" in json.dumps(request.body)
    assert (await world.answered()).run == "t-1"


async def test_the_best_api_is_taken_unless_said(world: World) -> None:
    await world.add(apis=[Api.ANTHROPIC, Api.OPENAI_CHAT])
    world.provider.answer_sides("ready")
    await ask(world.gateway, world.models.resolve("mine"), HELLO, run="t-1")
    assert world.provider.requests[0].api is Api.ANTHROPIC


@every_api
async def test_an_answer_that_was_cut_off_says_so(world: World, api: Api) -> None:
    world.provider.answer_sides(Step(text="half of", stop="length"))
    said = await ask(world.gateway, world.models.resolve("mine"), HELLO, run="t-1", api=api)
    assert (said.text, said.is_cut) == ("half of", True)


@every_api
async def test_a_failure_says_what_was_wrong_and_what_to_do(world: World, api: Api) -> None:
    world.provider.answer_sides(error(401, "no such key"))
    with pytest.raises(ModelFailed, match="mine/scripted gave no answer: no such key") as caught:
        await ask(world.gateway, world.models.resolve("mine"), HELLO, run="t-1", api=api)
    assert "the key is not accepted" in (caught.value.hint or "")


async def test_silence_ends_with_the_timeout(world: World) -> None:
    world.provider.answer_sides(held(text("late"), Gate()))
    with pytest.raises(ModelFailed, match=r"no answer within 0\.1 s"):
        await ask(world.gateway, world.models.resolve("mine"), HELLO, run="t-1", timeout=0.1)


async def test_who_is_cancelled_keeps_no_provider_at_work(world: World) -> None:
    gate = Gate()
    world.provider.answer_sides(held(text("late"), gate))
    asking = asyncio.create_task(ask(world.gateway, world.models.resolve("mine"), HELLO, run="t-1"))
    await gate.reached()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await world.answered()).status == 499


async def test_an_answer_without_end_is_given_up(world: World) -> None:
    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 20000000\r\nconnection: close\r\n\r\n")
        for _ in range(20):
            writer.write(b"x" * 1_000_000)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(provider, "127.0.0.1", 0) as server:
        await world.add(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ModelFailed, match="larger than any should be"):
            await ask(world.gateway, world.models.resolve("mine"), HELLO, run="t-1", api=Api.OPENAI_CHAT)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "system", "content": "nobody asks"}],
        [{"role": "robot", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": ["x"]}],
    ],
)
@every_api
def test_messages_that_are_none_are_refused(messages: list[Any], api: Api) -> None:
    with pytest.raises(InvalidModel):
        question_of(api, "scripted", messages, 100)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 5}}]}',
        b'{"output": [5]}',
        b'{"content": [5]}',
        b'{"choices": [{"message": {"content": "x"}}], "usage": 5}',
    ],
)
@every_api
def test_what_is_no_answer_is_none(body: bytes, api: Api) -> None:
    assert read_answer(api, body) is None


def test_numbers_of_a_stranger_are_not_trusted() -> None:
    usage = {"prompt_tokens": -5, "completion_tokens": True, "cost": "much"}
    body = json.dumps({"choices": [{"message": {"content": "x"}}], "usage": usage}).encode()
    assert read_answer(Api.OPENAI_CHAT, body) == Completion("x", 0, 0, None)
    body = json.dumps({"choices": [{"message": {"content": "x"}}], "usage": {"cost": 0.25}}).encode()
    assert read_answer(Api.OPENAI_CHAT, body) == Completion("x", 0, 0, 0.25)
