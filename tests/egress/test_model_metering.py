"""Every call of a model is counted, priced and written on its thread, whatever the API, and however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.egress.metered_world import CALL_COST, MeteredWorld, make_metered
from tests.egress.model_world import serving
from tests.testing.test_model import PATHS, body_of, every_api

from holdfast.api.model.models import Api, Price
from holdfast.egress.models.prices import cost_of, find_shipped, shipped_prices
from holdfast.egress.models.usage import Answer, Ending, Measured, UsageReader, charged_usage
from holdfast.testing.model import Gate, Step, Usage, error, held, text
from holdfast.threads import model_events
from holdfast.threads.model_events import Usage as Tokens
from holdfast.threads.model_events import call_of, nanos_of
from holdfast.threads.rows import SpendingFilter

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MeteredWorld]:
    async with make_metered(tmp_path) as world:
        yield world


@every_api
@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_is_written_on_the_thread_with_its_tokens_and_cost(
    world: MeteredWorld, api: Api, stream: bool
) -> None:
    world.provider.script([text("An answer.", usage=Usage(1000, 200, 5000, 0))])
    body = {**body_of(api), "stream": stream}
    if api is Api.OPENAI_CHAT and stream:
        body["stream_options"] = {"include_usage": True}
    answer = await world.agent.post(PATHS[api], json=body)
    assert answer.status_code == 200
    [call] = await world.settled(1)
    assert (call["input"], call["output"], call["cache_read"]) == (1000, 200, 5000)
    assert call["cost"] == pytest.approx(1000 * 2e-6 + 200 * 10e-6 + 5000 * 0.2e-6)
    assert (call["run"], call["model"], call["api"], call["status"]) == ("r-1", "mine/scripted", api.value, 200)
    assert "estimated" not in call
    [spent] = await world.projection.spending(SpendingFilter(threads=("t-1",)))
    assert (spent.calls, spent.nanos, spent.unpriced) == (1, 5_000_000, 0)


async def test_an_answer_without_usage_is_estimated_and_said_to_be(world: MeteredWorld) -> None:
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'

    async def provider(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": chunk * 40 + b"data: [DONE]\n\n"})

    async with serving(provider) as port:
        await world.models.put("mine", base_url=f"http://127.0.0.1:{port}/v1", apis=[Api.OPENAI_CHAT])
        body = {**body_of(Api.OPENAI_CHAT), "messages": [{"role": "user", "content": "x" * 4000}]}
        await world.agent.post(PATHS[Api.OPENAI_CHAT], json=body)
    [call] = await world.settled(1)
    assert call["estimated"] is True
    assert call["output"] >= 40  # one for each event at least
    assert 1000 <= call["input"] < 2000
    assert call["cost"] > 0


async def test_an_unknown_price_is_unknown_and_not_zero(world: MeteredWorld) -> None:
    await world.meter.prices.remove("mine/scripted")
    world.provider.script([text("An answer.")])
    await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    [call] = await world.settled(1)
    assert call["cost"] is None
    [spent] = await world.projection.spending(SpendingFilter())
    assert (spent.nanos, spent.unpriced) == (0, 1)


async def test_an_error_of_the_provider_costs_nothing(world: MeteredWorld) -> None:
    world.provider.script([error(500, "broken")])
    await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    [call] = await world.settled(1)
    assert (call["status"], call["input"], call["output"], call["cost"]) == (500, 0, 0, 0)


async def test_a_flood_of_refused_calls_does_not_flood_the_thread(world: MeteredWorld) -> None:
    world.provider.script([error(500, "broken", times=30), text("An answer.")])
    for _ in range(30):
        await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    assert len(await world.entries()) < 10
    world.ticks += 10_000
    await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    calls = await world.settled(2)
    assert calls[-1]["status"] == 200
    assert calls[-1]["cost"] == CALL_COST


@every_api
async def test_an_agent_that_leaves_before_the_usage_comes_is_charged_an_estimate(
    world: MeteredWorld, api: Api
) -> None:
    gate = Gate(1)
    world.provider.script([held(text("a long answer"), gate)])
    asking = asyncio.create_task(world.agent.post(PATHS[api], json=body_of(api)))
    await gate.reached()
    asking.cancel()
    [call] = await world.settled(1)
    assert call["status"] == 499
    assert call["estimated"] is True
    assert call["output"] >= 1000
    assert call["cost"] >= 0.01


async def test_a_stream_that_the_provider_cuts_is_charged_for_what_was_seen(world: MeteredWorld) -> None:
    world.provider.script([Step(text="half an answer", cut=1, usage=Usage(700, 300))])
    with pytest.raises(Exception, match="incomplete"):
        await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    [call] = await world.settled(1)
    assert (call["status"], call["input"], call["estimated"]) == (502, 700, True)


async def test_a_call_is_priced_by_the_model_that_answered(world: MeteredWorld) -> None:
    """An agent may name another model of the same provider than that of its run."""
    await world.meter.prices.put("mine/big", Price(input=20, output=100))
    world.provider.script([text("An answer.", times=2)])
    await world.agent.post("/v1/messages", json={**body_of(Api.ANTHROPIC), "model": "big"})
    await world.agent.post("/v1/messages", json={**body_of(Api.ANTHROPIC), "model": "never heard of"})
    calls = await world.settled(2)
    assert [each["model"] for each in calls] == ["mine/big", "mine/scripted"]
    assert [each["cost"] for each in calls] == [pytest.approx(10 * CALL_COST), pytest.approx(CALL_COST)]


async def test_counting_tokens_is_free_and_not_recorded(world: MeteredWorld) -> None:
    await world.agent.post("/v1/messages/count_tokens", json=body_of(Api.ANTHROPIC))
    assert await world.entries() == []


async def test_an_entry_without_the_seal_costs_nothing(world: MeteredWorld) -> None:
    forged = model_events.call(
        run="r-1",
        model="mine/scripted",
        api="anthropic",
        status=200,
        ms=1,
        usage=Tokens(1, 1),
        nanos=5,
        estimated=False,
    )
    entry = {"id": "e-forged", "ts": 1, "payload": {**forged, "seal": "t-1.AAAAAAAAAAAAAAAAAAAAAA"}}
    assert call_of(entry) is not None
    await world.threads._append(
        "t-1",
        world.threads._entry(
            "signal.model.call",
            **{name: value for name, value in forged.items() if name != "type"},
        ),
    )
    [spent] = await world.projection.spending(SpendingFilter())
    assert spent.calls == 0


# --- what providers may report ---


LIES: list[Any] = [-5, -(10**30), 10**30, float("1e308"), True, "100", None, [], {}, 1.5]


@pytest.mark.parametrize("lie", LIES)
@every_api
def test_a_lie_about_usage_is_never_negative_endless_or_a_crash(api: Api, lie: Any) -> None:
    names = [
        "input_tokens", "output_tokens", "prompt_tokens", "completion_tokens", "total_tokens",
        "cache_read_input_tokens", "cache_creation_input_tokens", "cost",
    ]  # fmt: skip
    details = {"cached_tokens": lie, "reasoning_tokens": lie}
    usage = dict.fromkeys(names, lie) | {
        "prompt_tokens_details": details, "input_tokens_details": lie, "output_tokens_details": details,
    }  # fmt: skip
    try:
        document = orjson.dumps({"usage": usage, "choices": []})
    except TypeError:  # a number that JSON of this library cannot have
        import json

        document = json.dumps({"usage": usage, "choices": []}).encode()
    for content_type, body in (("application/json", document), ("text/event-stream", b"data: " + document + b"\n\n")):
        reader = UsageReader(api, content_type)
        reader.feed(body)
        measured = reader.measure()
        answer = Answer(200, 4000, 1, Ending.WHOLE, measured)
        charged, _ = charged_usage(answer, 200_000)
        assert all(0 <= getattr(charged, name) <= 2 * model_events.MOST_TOKENS for name in Tokens.__slots__)
        cost = cost_of(Price(input=2, output=10), charged)
        assert 0 <= cost <= model_events.MOST_NANOS
        assert measured.nanos is None or 0 <= measured.nanos <= model_events.MOST_NANOS


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -float("inf"), -1, "1", None, True])
def test_a_cost_that_cannot_be_is_no_cost(cost: Any) -> None:
    assert nanos_of(cost) is None


def test_words_of_the_model_are_not_taken_for_usage() -> None:
    spoken = 'data: {"usage":{"input_tokens":1,"output_tokens":1}}\n\ndata: {"type":"message_stop"}\n\n'
    event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": spoken}}
    reader = UsageReader(Api.ANTHROPIC, "text/event-stream")
    reader.feed(b"event: content_block_delta\ndata: " + orjson.dumps(event) + b"\n\n")
    assert reader.measure().usage is None


@every_api
@pytest.mark.parametrize("size", [1, 3, 7, 64, 100_000])
def test_usage_is_found_however_the_stream_is_cut_into_pieces(api: Api, size: int) -> None:
    streams: dict[Api, list[Any]] = {
        Api.ANTHROPIC: [
            {"type": "message_start", "message": {"usage": {"input_tokens": 50, "cache_read_input_tokens": 7}}},
            {"type": "content_block_delta", "delta": {"text": 'say "usage": nothing'}},
            {"type": "message_delta", "usage": {"output_tokens": 9}},
        ],
        Api.OPENAI_CHAT: [
            {"choices": [{"delta": {"content": "x"}}], "usage": None},
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 57,
                    "completion_tokens": 9,
                    "prompt_tokens_details": {"cached_tokens": 7},
                },
            },
        ],
        Api.OPENAI_RESPONSES: [
            {"type": "response.created", "response": {"usage": None}},
            {
                "type": "response.completed",
                "response": {
                    "usage": {
                        "input_tokens": 57,
                        "output_tokens": 9,
                        "input_tokens_details": {"cached_tokens": 7},
                    }
                },
            },
        ],
    }
    stream = b"".join(b"data: " + orjson.dumps(event) + b"\r\n\r\n" for event in streams[api]) + b"data: [DONE]\n\n"
    reader = UsageReader(api, "text/event-stream; charset=utf-8")
    for start in range(0, len(stream), size):
        reader.feed(stream[start : start + size])
    usage = reader.measure().usage
    assert usage is not None
    assert (usage.input, usage.output, usage.cache_read) == (50, 9, 7)


def test_reasoning_that_only_the_total_counts_is_charged() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 40}
    reader = UsageReader(Api.OPENAI_CHAT, "application/json")
    reader.feed(orjson.dumps({"usage": usage}))
    assert reader.measure().usage == Tokens(input=10, output=30)


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    reader = UsageReader(Api.ANTHROPIC, "text/event-stream")
    for _ in range(40):
        reader.feed(b"x" * 1024 * 1024)
    assert len(reader._held) <= 16 * 1024 * 1024
    reader.feed(b'\ndata: {"usage":{"input_tokens":3,"output_tokens":4}}\n')
    assert reader.measure().usage == Tokens(3, 4)


# --- prices ---


def test_shipped_prices_are_of_built_in_providers_and_dated_snapshots_cost_the_same() -> None:
    assert all(model.partition("/")[0] in ("anthropic", "openai") for model in shipped_prices())
    assert find_shipped("anthropic/claude-sonnet-4-5-20250929") == shipped_prices()["anthropic/claude-sonnet-4-5"]
    assert find_shipped("openai/gpt-5-2025-08-07") == shipped_prices()["openai/gpt-5"]
    assert find_shipped("mine/gpt-5") is None
    assert find_shipped("openai/gpt-5.5") is None


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        (Tokens(1_000_000, 0), 2.0),
        (Tokens(0, 1_000_000), 10.0),
        (Tokens(0, 0, 1_000_000), 0.2 * 2),  # above 272,000 tokens of input the long price counts
        (Tokens(100_000, 0, 100_000, 100_000), 0.4 + 0.04 + 0.5),
        (Tokens(272_000, 0), 0.544),
        (Tokens(1, 0), 0.000002),
        (Tokens(), 0),
    ],
)
def test_what_a_call_costs(usage: Tokens, dollars: float) -> None:
    price = shipped_prices()["openai/gpt-6-sol"]
    expected = dollars * (2 if usage.input == 1_000_000 else 1)
    assert cost_of(price, usage) / model_events.NANO == pytest.approx(expected)


def test_a_cache_for_an_hour_costs_more() -> None:
    price = shipped_prices()["anthropic/claude-sonnet-5"]
    assert cost_of(price, Tokens(cache_write=1_000_000)) == 2_500_000_000
    assert cost_of(price, Tokens(cache_write=1_000_000, cache_write_1h=1_000_000)) == 4_000_000_000


async def test_an_own_price_counts_more_than_what_the_provider_reports(world: MeteredWorld) -> None:
    prices = world.meter.prices
    assert prices.cost("mine/scripted", Tokens(1_000_000), 77) == 2_000_000_000
    assert prices.cost("openrouter/x", Tokens(1_000_000), 77) == 77
    assert prices.cost("openrouter/x", Tokens(1_000_000)) is None


def test_an_answer_that_was_measured_counts_as_measured() -> None:
    measured = Measured(Tokens(5, 6), None, 900)
    assert charged_usage(Answer(200, 10**6, 1, Ending.WHOLE, measured), 1000) == (Tokens(5, 6), False)
    assert charged_usage(Answer(200, 10**6, 1, Ending.LEFT, measured), 1000) == (Tokens(5, 1000), True)
    assert charged_usage(Answer(0, 10**6, 1, Ending.WHOLE, Measured(None)), 1000) == (Tokens(), False)
    assert charged_usage(Answer(0, 10**6, 1, Ending.LEFT, Measured(None)), 1000) == (Tokens(1000, 1000), True)
