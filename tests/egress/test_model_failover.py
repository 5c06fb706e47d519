"""If a model gives no answer, the next one of the chain is asked, before the agent has seen anything."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from tests.egress.metered_world import MeteredWorld, make_metered
from tests.egress.model_world import KEY, serving
from tests.testing.test_model import PATHS, body_of, events_of, every_api, streamed

from holdfast.api.model.budgets import Budget
from holdfast.api.model.models import Api
from holdfast.egress.models.failover import Failure, Opening, Pauses, Reason, classify, pause_of
from holdfast.testing.model import FOR_EVER, Gate, Step, error, held, text

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MeteredWorld]:
    async with make_metered(tmp_path) as world:
        world.use(fallbacks=("spare/scripted",))
        world.other.script([text("From the spare.", times=FOR_EVER)])
        yield world


async def ask(world: MeteredWorld, run: str = "r-1", **more: Any) -> httpx.Response:
    body = {**body_of(Api.ANTHROPIC), **more}
    return await world.agent.post("/v1/messages", json=body, headers={"x-run": run})


CLASSES = [
    (402, "Payment Required", Reason.BILLING),
    (400, "Your credit balance is too low to access the API", Reason.BILLING),
    (429, "You exceeded your current quota (insufficient_quota)", Reason.BILLING),
    (403, "Billing not active", Reason.BILLING),
    (429, "Too many requests", Reason.RATE),
    (529, "Overloaded", Reason.RATE),
    (503, "The model is overloaded", Reason.RATE),
    (401, "invalid x-api-key", Reason.AUTH),
    (403, "permission denied", Reason.AUTH),
    (400, "API key not valid. Please pass a valid API key.", Reason.AUTH),
    (404, "The model `gpt-9` does not exist", Reason.UNSUPPORTED),
    (400, "gpt-9 is not a valid model ID", Reason.UNSUPPORTED),
]


@pytest.mark.parametrize(("status", "message", "reason"), CLASSES)
def test_what_an_error_means(status: int, message: str, reason: Reason) -> None:
    found = classify(status, orjson.dumps({"error": {"message": message}}))
    assert found is not None
    assert (found.reason, found.message) == (reason, message)


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "messages: text content blocks must be non-empty"), (413, "too large"), (500, "internal"), (200, "429")],
)
def test_other_errors_are_for_the_agent(status: int, message: str) -> None:
    assert classify(status, orjson.dumps({"error": {"message": message}})) is None


def test_a_request_that_a_fallback_does_not_take_was_written_for_another_model() -> None:
    body = orjson.dumps({"error": {"message": "thinking blocks cannot be modified"}})
    assert classify(400, body) is None
    found = classify(400, body, is_own=False)
    assert found is not None
    assert found.reason is Reason.UNSUPPORTED


@pytest.mark.parametrize(("status", "message", "reason"), CLASSES)
async def test_the_next_model_answers_and_the_thread_is_told(
    world: MeteredWorld, status: int, message: str, reason: Reason
) -> None:
    world.provider.script([error(status, message)])
    answer = await ask(world)
    assert answer.status_code == 200
    assert "From the spare." in streamed(Api.ANTHROPIC, events_of(answer))[1]
    [told] = await world.entries("signal.model.failover")
    assert (told["model"], told["to"], told["reason"], told["status"]) == (
        "mine/scripted",
        "spare/scripted",
        reason.value,
        status,
    )
    assert told["message"] == message
    [call] = [each for each in await world.settled(2) if each["status"] == 200]
    assert call["model"] == "spare/scripted"


@every_api
async def test_the_request_is_the_same_but_for_the_model(world: MeteredWorld, api: Api) -> None:
    await world.add("spare", world.other, model="another")
    world.use(fallbacks=("spare/another",))
    world.provider.script([error(429)])
    body = body_of(api)
    assert (await world.agent.post(PATHS[api], json=body)).status_code == 200
    assert world.provider.requests[0].body == body
    assert world.other.requests[0].body == {**body, "model": "another"}
    assert world.other.requests[0].credential == KEY


@every_api
@pytest.mark.parametrize("stream", [True, False])
async def test_an_empty_answer_is_not_an_answer(world: MeteredWorld, api: Api, stream: bool) -> None:
    world.provider.script([Step()])
    answer = await world.agent.post(PATHS[api], json={**body_of(api), "stream": stream})
    assert "From the spare." in answer.text or "From the" in answer.text
    [told] = await world.entries("signal.model.failover")
    assert told["reason"] == "empty"
    calls = await world.settled(2)
    assert [each["model"] for each in calls] == ["mine/scripted", "spare/scripted"]
    assert calls[0]["input"] == 100  # it was paid for


async def test_a_host_that_cannot_be_reached_is_left(world: MeteredWorld) -> None:
    await world.models.put("mine", base_url="http://127.0.0.1:1", apis=[Api.ANTHROPIC])
    assert (await ask(world)).status_code == 200
    [told] = await world.entries("signal.model.failover")
    assert told["reason"] == "unreachable"


@every_api
async def test_an_answer_that_has_begun_is_never_replaced(world: MeteredWorld, api: Api) -> None:
    world.provider.script([Step(text="half an answer", broken="overloaded", cut=2)])
    answer = await world.agent.post(PATHS[api], json=body_of(api))
    assert "From the" not in answer.text
    assert list(world.other.requests) == []


async def test_an_answer_of_a_chain_comes_piece_by_piece_once_it_has_content(world: MeteredWorld) -> None:
    gate = Gate(1)
    world.provider.script([held(text("first words" + " and the rest of it"), gate)])
    async with world.agent.stream("POST", "/v1/messages", json=body_of(Api.ANTHROPIC)) as answer:
        seen, pieces = "", answer.aiter_text()
        while "first words" not in seen:
            seen += await anext(pieces)
        await gate.reached()
        assert "the rest" not in seen
        gate.release()
        seen += "".join([piece async for piece in pieces])
    assert "the rest" in seen


async def test_a_model_is_left_alone_for_a_while_and_then_asked_again(world: MeteredWorld) -> None:
    world.provider.script([error(429, headers={"retry-after": "20"}), text("Back again.", times=FOR_EVER)])
    for _ in range(3):
        assert "From the" in (await ask(world)).text
    assert len(world.provider.requests) == 1
    assert len(await world.entries("signal.model.failover")) == 1
    world.ticks += 21_000
    assert "Back" in (await ask(world)).text


async def test_a_changed_model_is_asked_again_at_once(world: MeteredWorld) -> None:
    world.provider.script([error(401), text("Back again.", times=FOR_EVER)])
    assert "From the" in (await ask(world)).text
    await world.add("mine", world.provider)
    assert "Back" in (await ask(world)).text


async def test_if_all_fail_the_agent_gets_what_its_own_model_said(world: MeteredWorld) -> None:
    world.provider.script([error(429, "slow down", times=FOR_EVER, headers={"retry-after": "7"})])
    world.other.script([error(401, "no key", times=FOR_EVER)])
    answer = await ask(world)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["message"] == "slow down"
    told = await world.entries("signal.model.failover")
    assert [each["to"] for each in told] == ["spare/scripted", None]
    assert (await ask(world)).status_code == 429  # both are left alone, and still asked as a last resort
    assert len(await world.entries("signal.model.failover")) == 2


async def test_a_compressed_request_is_not_passed_on(world: MeteredWorld) -> None:
    world.provider.script([error(429, "slow down")])
    content = gzip.compress(json.dumps(body_of(Api.ANTHROPIC)).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = await world.agent.post("/v1/messages", content=content, headers=headers)
    assert answer.status_code == 429
    assert list(world.other.requests) == []


async def test_a_run_without_fallbacks_gets_its_errors_as_they_are(world: MeteredWorld) -> None:
    world.use(run="r-2")
    world.provider.script([error(429, "slow down")])
    assert (await ask(world, "r-2")).status_code == 429
    assert await world.entries("signal.model.failover") == []


async def test_a_fallback_of_unknown_price_is_not_used_where_a_cost_is_limited(world: MeteredWorld) -> None:
    await world.meter.prices.remove("spare/scripted")
    world.use(budget=Budget(cost=1), fallbacks=("spare/scripted",))
    world.provider.script([error(429, "slow down")])
    assert (await ask(world)).status_code == 429
    assert list(world.other.requests) == []


# --- attacks ---


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "The model `nonsense` does not exist"),
        (400, "Unrecognized argument: credit balance"),
        (400, "unknown model: rate limit"),
        (403, "permission denied for model x"),
    ],
)
async def test_a_box_cannot_take_a_model_away_from_other_runs(world: MeteredWorld, status: int, message: str) -> None:
    world.use(run="r-2", fallbacks=("spare/scripted",))
    world.provider.script([error(status, message), text("Still here.", times=FOR_EVER)])
    assert "From the" in (await ask(world, "r-1")).text
    assert "Still" in (await ask(world, "r-2")).text


async def test_the_key_in_an_error_reaches_neither_the_agent_nor_the_thread(world: MeteredWorld) -> None:
    world.provider.script([error(401, f"invalid x-api-key: {KEY}", times=FOR_EVER)])
    world.other.script([error(401, f"bad key {KEY}", headers={"x-echo": KEY}, times=FOR_EVER)])
    answer = await ask(world)
    assert answer.status_code == 401
    assert KEY not in answer.text + str(answer.headers)
    page = await world.threads.entries("t-1", types=(), since=0, limit=100)
    assert KEY not in str(page.entries)
    assert "*****" in str(page.entries)


async def test_a_provider_that_never_ends_its_error_is_not_read_for_ever(world: MeteredWorld) -> None:
    async def provider(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 429, "headers": []})
        for _ in range(10_000):
            await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})

    async with serving(provider) as port:
        await world.models.put("mine", base_url=f"http://127.0.0.1:{port}", apis=[Api.ANTHROPIC])
        async with asyncio.timeout(240):
            assert "From the" in (await ask(world)).text


@pytest.mark.parametrize(("given", "seconds"), [(None, 30), (0, 1), (7, 7), (10**9, 600)])
def test_a_provider_cannot_ask_to_be_left_alone_for_ever(given: int | None, seconds: int) -> None:
    assert pause_of(Failure(Reason.RATE, 429, retry_after=given)) == seconds


def test_pauses_are_bounded_in_number() -> None:
    pauses = Pauses(lambda: 0)
    for number in range(20_000):
        pauses.add(f"r-{number}", "mine/x", 0, Failure(Reason.EMPTY, 200))
    assert len(pauses._until) <= 10_000


def test_an_answer_that_says_nothing_for_long_is_passed_on() -> None:
    opening = Opening(Api.ANTHROPIC, "text/event-stream")
    ping = b'data: {"type":"ping"}\n\n'
    decided = None
    for _ in range(20_000):
        decided = opening.feed(ping)
        if decided is not None:
            break
    assert decided is True
