"""Budgets hold: against many calls at once, calls that are cut off, restarts, and models whose price nobody knows."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import orjson
import pytest
from tests.egress.metered_world import CALL_COST, MeteredWorld, make_metered, open_metered
from tests.egress.model_world import KEY, serving
from tests.testing.test_model import PATHS, body_of, every_api

from holdfast.api.errors import NotFound
from holdfast.api.errors.models import InvalidModel
from holdfast.api.ids import now_ms
from holdfast.api.model.budgets import Budget, BudgetScope
from holdfast.api.model.models import Api, Price
from holdfast.api.run.tasks import BoxMode
from holdfast.egress.models.budgets import Amount, Limit, find_reached, find_warnings
from holdfast.egress.models.completion import ask as complete
from holdfast.egress.models.journal import completions_thread
from holdfast.egress.models.ledger import Ledger, day_of, load_from, start_of_day
from holdfast.egress.models.meter import Terms
from holdfast.egress.models.probe import probe
from holdfast.egress.models.usage import Answer, Ending, Measured, charged_usage
from holdfast.testing.model import FOR_EVER, Gate, ScriptedModel, Usage, error, held, text
from holdfast.threads.delegation import Delegation
from holdfast.threads.model_events import Usage as Tokens
from holdfast.threads.rows import RowFilter, RunRow, Spending, SpendingFilter, ThreadRow
from holdfast.threads.run_events import Run, ThreadRuns

pytestmark = pytest.mark.anyio

BIG = Usage(100_000, 10_000)
"""Costs 0.3 dollars."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MeteredWorld]:
    async with make_metered(tmp_path) as world:
        world.provider.script([text("An answer.", usage=BIG, times=FOR_EVER)])
        yield world


async def ask(world: MeteredWorld, run: str = "r-1") -> httpx.Response:
    return await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC), headers={"x-run": run})


@every_api
async def test_a_used_up_budget_refuses_in_the_form_of_the_api(world: MeteredWorld, api: Api) -> None:
    world.use(budget=Budget(cost=0.3))
    assert (await world.agent.post(PATHS[api], json=body_of(api))).status_code == 200
    await world.settled(1)
    refused = await world.agent.post(PATHS[api], json=body_of(api))
    # Codex repeats a request after a 402, and not after a 400.
    assert refused.status_code == (400 if api is Api.OPENAI_RESPONSES else 402)
    assert refused.headers["x-holdfast-reason"] == "budget"
    told = refused.json()["error"]
    assert told["message"].startswith("Holdfast: this run is out of budget")
    assert told["code"] == "budget"
    assert len(world.provider.requests) == 1


async def test_the_thread_is_told_once_before_and_once_at_the_end(world: MeteredWorld) -> None:
    world.use(budget=Budget(cost=1))
    for _ in range(6):
        await ask(world)
    told = await world.entries("signal.model.budget")
    assert [(each["state"], each["scope"], each["unit"], each["limit"]) for each in told] == [
        ("warning", "run", "cost", 1.0),
        ("reached", "run", "cost", 1.0),
    ]
    assert told[0]["spent"] == pytest.approx(0.9)
    assert len(await world.entries()) == 4


@pytest.mark.parametrize("scope", [BudgetScope.THREAD, BudgetScope.TREE, BudgetScope.DAY])
async def test_a_budget_counts_all_runs_in_its_scope(world: MeteredWorld, scope: BudgetScope) -> None:
    world.use(run="r-2")
    await ask(world)
    await world.meter.budgets.put(scope, "" if scope is BudgetScope.DAY else "t-1", Budget(tokens=200_000))
    assert (await ask(world, "r-2")).status_code == 200
    assert (await ask(world, "r-2")).status_code == 402
    assert (await ask(world)).status_code == 402
    await world.meter.budgets.remove(scope, "" if scope is BudgetScope.DAY else "t-1")
    assert (await ask(world)).status_code == 200


async def test_a_budget_survives_a_restart(tmp_path: Path) -> None:
    async with ScriptedModel(key=KEY) as provider, ScriptedModel(key=KEY) as other:
        provider.script([text("An answer.", usage=BIG, times=FOR_EVER)])
        async with open_metered(tmp_path, models=(provider, other)) as world:
            world.use(budget=Budget(cost=0.5))
            await world.meter.budgets.put(BudgetScope.DAY, "", Budget(tokens=10**9, warn_at=0.0001))
            assert (await ask(world)).status_code == 200
            assert (await ask(world)).status_code == 200
            assert (await ask(world)).status_code == 402
            before = await world.entries("signal.model.budget")
        async with open_metered(tmp_path, models=(provider, other)) as world:
            world.use(budget=Budget(cost=0.5))
            assert (await ask(world)).status_code == 402
            assert await world.entries("signal.model.budget") == before
            assert await world.meter.spent(BudgetScope.DAY, "") == Amount(600_000_000, 220_000)


async def test_the_budget_of_a_tree_counts_the_threads_below_it_also_after_a_restart(tmp_path: Path) -> None:
    async with ScriptedModel(key=KEY) as provider, ScriptedModel(key=KEY) as other:
        provider.script([text("An answer.", usage=BIG, times=FOR_EVER)])
        for answers in ([200, 200, 402, 402], [402, 402]):
            async with open_metered(tmp_path, models=(provider, other)) as world:
                if answers[0] == 200:
                    await world.threads.create(id="t-2", parent="t-1")
                    await world.meter.budgets.put(BudgetScope.TREE, "t-1", Budget(tokens=200_000))
                world.terms["r-2"] = Terms("t-2", "r-2", ("t-2", "t-1"))
                runs = ("r-1", "r-2", "r-1", "r-2")
                assert [(await ask(world, run)).status_code for run in runs[: len(answers)]] == answers
                assert (await world.meter.spent(BudgetScope.TREE, "t-1")).tokens == 220_000
                assert (await world.meter.spent(BudgetScope.THREAD, "t-2")).tokens == 110_000


async def test_a_budget_of_a_tree_below_the_root_counts_what_is_below_it_alone(world: MeteredWorld) -> None:
    for id, parent in (("t-2", "t-1"), ("t-3", "t-2"), ("t-4", "t-1")):
        await world.threads.create(id=id, parent=parent)
    world.terms["r-3"] = Terms("t-3", "r-3", ("t-3", "t-2", "t-1"))
    world.terms["r-4"] = Terms("t-4", "r-4", ("t-4", "t-1"))
    await world.meter.budgets.put(BudgetScope.TREE, "t-2", Budget(tokens=200_000))
    runs = ("r-1", "r-4", "r-3", "r-4", "r-3", "r-3", "r-4", "r-1")
    assert [(await ask(world, run)).status_code for run in runs] == [200, 200, 200, 200, 200, 402, 200, 200]
    assert (await world.meter.spent(BudgetScope.TREE, "t-2")).tokens == 220_000
    assert (await world.meter.spent(BudgetScope.TREE, "t-1")).tokens == 770_000


async def test_the_budget_of_a_run_counts_the_tasks_that_it_has_delegated(world: MeteredWorld) -> None:
    """Otherwise a run with a budget would spend it once in each of its tasks."""
    purse = Budget(tokens=300_000)
    world.use(budget=purse)
    for id, parent in (("t-2", "t-1"), ("t-3", "t-2")):
        await world.threads.create(id=id, parent=parent)
    world.terms["r-2"] = Terms("t-2", "r-2", ("t-2", "t-1"), budget=purse, above=(("r-1", purse),))
    world.terms["r-3"] = Terms(
        "t-3", "r-3", ("t-3", "t-2", "t-1"), budget=purse, above=(("r-2", purse), ("r-1", purse))
    )
    runs = ("r-1", "r-2", "r-3", "r-3", "r-2", "r-1")
    answers = [await ask(world, run) for run in runs]
    assert [each.status_code for each in answers] == [200, 200, 200, 402, 402, 402]
    told = [each.json()["error"]["message"] for each in answers[3:]]
    assert told[0].startswith("Holdfast: the run that delegated this task is out of budget")
    assert told[2].startswith("Holdfast: this run is out of budget")


async def test_what_tasks_have_spent_is_found_again_by_the_run_that_delegated_them() -> None:
    class Rows:
        """What a projection says of a run with two tasks, one of which is another run's."""

        async def run(self, id: str) -> Any:
            return RunRow("t-1", Run(run=id, epoch=1, agent="pi", model="m", provider="local", started_at=0))

        async def rows(self, wanted: RowFilter) -> list[ThreadRow]:
            assert wanted.parent == "t-1"
            made = [("t-2", "r-1"), ("t-3", "r-0")]
            return [ThreadRow(id, 1, runs=ThreadRuns(delegation=delegation(run))) for id, run in made]

        async def spending(self, wanted: SpendingFilter) -> list[Spending]:
            return [Spending(nanos={"t-2": 10, "t-3": 1000, None: 1}[wanted.tree])]

    def delegation(run: str) -> Delegation:
        return Delegation(parent="t-1", root="t-1", depth=1, agent="pi", model="m", box=BoxMode.OWN, run=run)

    assert (await load_from(cast("Any", Rows()))(BudgetScope.RUN, "r-1")).nanos == 11


async def test_calls_that_no_run_makes_count_against_the_day_also_after_a_restart(tmp_path: Path) -> None:
    """`model test`, completions, and `llm_query` of interpreters."""
    async with ScriptedModel(key=KEY) as provider, ScriptedModel(key=KEY) as other:
        async with open_metered(tmp_path, models=(provider, other)) as world:
            choice = world.models.resolve("mine")
            tested = await probe(world.gateway, choice, Api.ANTHROPIC)
            assert tested.ok, tested
            messages = [{"role": "user", "content": "Hello"}]
            await asyncio.gather(*(complete(world.gateway, choice, messages, run="interpreter") for _ in range(8)))
            spent = await world.meter.spent(BudgetScope.DAY, "")
            assert spent.tokens > 0
            thread = completions_thread(now_ms())
            calls = await world.entries(thread=thread)
            assert sorted(each["run"] for each in calls) == ["interpreter"] * 8 + ["model-test"]
            assert (await world.threads.get(thread)).archived
        async with open_metered(tmp_path, models=(provider, other)) as world:
            assert await world.meter.spent(BudgetScope.DAY, "") == spent
            await world.meter.budgets.put(BudgetScope.DAY, "", Budget(tokens=spent.tokens))
            refused = await probe(world.gateway, world.models.resolve("mine"), Api.ANTHROPIC)
            assert (refused.ok, refused.status) == (False, 402)
            assert "this day is out of budget" in refused.text


async def test_a_call_that_no_run_makes_is_counted_beside_a_thread_that_took_its_name(world: MeteredWorld) -> None:
    await world.threads.create(id=completions_thread(now_ms()), title="mine")
    assert (await probe(world.gateway, world.models.resolve("mine"), Api.ANTHROPIC)).ok
    assert len(await world.entries(thread=completions_thread(now_ms()))) == 1


async def test_calls_at_once_cannot_pass_a_budget_by_more_than_one_each(world: MeteredWorld) -> None:
    """32 calls are sent at once with money for two. Each that is let through holds an estimate before it begins."""
    world.use(budget=Budget(cost=0.02))
    gate = Gate("start")
    answer = text("An answer.", usage=Usage(100, 1000), times=FOR_EVER)
    world.provider.script([held(text("An answer.", usage=Usage(100, 1000)), gate), answer])
    asking = [asyncio.create_task(ask(world)) for _ in range(32)]
    await gate.reached()
    gate.release()
    answers = [(await each).status_code for each in asking]
    assert sorted(set(answers)) == [200, 402]
    # An answer costs 0.0102: two fill the budget, and what each call holds (about 0.01) keeps a third from beginning.
    assert answers.count(200) <= 3
    assert len(world.provider.requests) == answers.count(200)


async def test_a_call_waits_for_what_others_hold_instead_of_being_refused(world: MeteredWorld) -> None:
    world.use(budget=Budget(cost=0.012))
    gate = Gate("start")
    world.provider.script([held(text("An answer.", usage=Usage(10, 1)), gate), text("An answer.", usage=Usage(10, 1))])
    first = asyncio.create_task(ask(world))
    await gate.reached()
    second = asyncio.create_task(ask(world))
    third = asyncio.create_task(ask(world))
    gate.release()  # it leaves almost everything that it held
    assert [(await each).status_code for each in (first, second, third)] == [200, 200, 200]


async def test_calls_that_are_cut_off_use_up_a_budget_too(world: MeteredWorld) -> None:
    world.use(budget=Budget(cost=0.05))
    for number in range(1, 20):
        gate = Gate("start")
        world.provider.script([held(text("An answer."), gate)])
        asking = asyncio.create_task(ask(world))
        reached = asyncio.create_task(gate.reached())
        await asyncio.wait((asking, reached), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            reached.cancel()
            assert (await asking).status_code == 402
            break
        asking.cancel()
        await world.settled(number)
    assert 3 <= number <= 6  # each costs about 0.01


async def test_an_agent_that_leaves_while_its_call_is_written_is_charged(
    world: MeteredWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codex disconnects at the last event, which is before the end of the answer."""
    world.use(budget=Budget(cost=0.3))
    write, writing, may_write = world.meter.journal.append, asyncio.Event(), asyncio.Event()

    async def append(thread: str, payload: dict[str, Any], id: str | None = None) -> None:
        writing.set()
        await may_write.wait()
        await write(thread, payload, id)

    ended = asyncio.Event()
    monkeypatch.setattr(world.meter.journal, "append", append)
    monkeypatch.setattr(world.gateway, "_on_answer", lambda answered: ended.set())
    asking = asyncio.create_task(ask(world))
    await writing.wait()
    asking.cancel()
    with pytest.raises(TimeoutError):  # what it holds is not given back before what it took is counted
        await asyncio.wait_for(ended.wait(), 0.5)
    may_write.set()
    await ended.wait()
    assert (await world.meter.spent(BudgetScope.RUN, "r-1")).nanos == 300_000_000
    assert (await ask(world)).status_code == 402


async def test_a_provider_that_reports_too_little_or_too_much_cannot_free_or_break_a_budget(
    world: MeteredWorld,
) -> None:
    world.use(budget=Budget(cost=0.5))
    world.provider.script([text("Lies.", usage=Usage(-(10**9), -(10**9)))])
    await ask(world)
    await world.settled(1)
    assert (await world.meter.spent(BudgetScope.RUN, "r-1")).nanos >= 0
    world.provider.script([text("Lies.", usage=Usage(2**62, 2**62))])
    await ask(world)
    await world.settled(2)
    assert (await ask(world)).status_code == 402


async def test_a_failed_call_gives_back_what_it_held(world: MeteredWorld) -> None:
    world.use(budget=Budget(cost=0.012))
    world.provider.script([error(500, times=20)])
    for _ in range(20):
        assert (await ask(world)).status_code == 500
    assert await world.meter.spent(BudgetScope.RUN, "r-1") == Amount()


async def test_a_model_of_unknown_price_is_refused_where_a_cost_is_limited(world: MeteredWorld) -> None:
    await world.meter.prices.remove("mine/scripted")
    world.use(budget=Budget(cost=100))
    refused = await ask(world)
    assert refused.status_code == 402
    assert "holdfast model price mine/scripted" in refused.json()["error"]["message"]
    world.use(budget=Budget(tokens=1_000_000))
    assert (await ask(world)).status_code == 200


async def test_a_budget_of_nothing_refuses_everything(world: MeteredWorld) -> None:
    world.use(budget=Budget(tokens=0))
    assert (await ask(world)).status_code == 402
    assert list(world.provider.requests) == []


async def test_budgets_are_checked_before_they_are_set(world: MeteredWorld) -> None:
    budgets = world.meter.budgets
    with pytest.raises(InvalidModel, match="needs a cost"):
        await budgets.put(BudgetScope.DAY, "", Budget())
    with pytest.raises(InvalidModel, match="when it is launched"):
        await budgets.put(BudgetScope.RUN, "r-1", Budget(cost=1))
    with pytest.raises(NotFound):
        await budgets.remove(BudgetScope.THREAD, "t-9")


# --- answers that do not say what they used ---

MOST_OUTPUT = 8192
"""Of a model that says nothing about it, as `Models` has it."""
WINDOW = 128_000


@asynccontextmanager
async def quiet_provider(world: MeteredWorld, api: Api, body: bytes, content_type: str) -> AsyncIterator[None]:
    """The run's model answers with this, which reports no usage."""

    async def provider(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with serving(provider) as port:
        await world.models.put("mine", base_url=f"http://127.0.0.1:{port}/v1", apis=[api])
        yield


QUIET = b'data: {"model":"scripted","choices":[{"index":0,"delta":{"content":"word"}}]}\n\ndata: [DONE]\n\n'
QUEUED = b'{"id":"resp_1","model":"scripted","status":"queued","background":true,"output":[],"usage":null}'


async def test_an_answer_that_hides_its_usage_costs_all_that_it_may_have_taken(world: MeteredWorld) -> None:
    """Reasoning is not in the stream, so its size says nothing."""
    async with quiet_provider(world, Api.OPENAI_CHAT, QUIET, "text/event-stream"):
        await world.agent.post(PATHS[Api.OPENAI_CHAT], json=body_of(Api.OPENAI_CHAT))
        world.use(budget=Budget(tokens=2 * MOST_OUTPUT))
        for status in (200, 200, 402):
            answer = await world.agent.post(PATHS[Api.OPENAI_CHAT], json=body_of(Api.OPENAI_CHAT))
            assert answer.status_code == status
    without, *within = await world.settled(3)
    assert without["output"] < 100
    assert [each["output"] for each in within] == [MOST_OUTPUT] * 2
    assert all(each["estimated"] for each in (without, *within))


async def test_an_answer_in_the_background_costs_all_that_it_may_take(world: MeteredWorld) -> None:
    """It ends after its answer, and what it reads may be stored at the provider."""
    world.use(budget=Budget(tokens=100_000))
    async with quiet_provider(world, Api.OPENAI_RESPONSES, QUEUED, "application/json"):
        body = {**body_of(Api.OPENAI_RESPONSES), "background": True, "previous_response_id": "resp_0"}
        assert (await world.agent.post("/v1/responses", json=body)).status_code == 200
        assert (await world.agent.post("/v1/responses", json=body)).status_code == 400
    [call] = await world.settled(1)
    assert (call["input"], call["output"], call["estimated"]) == (WINDOW, MOST_OUTPUT, True)


@pytest.mark.parametrize("name", [b'"background"', rb'"\u0062ackground"', rb'"backgroun\u0064"'])
async def test_who_leaves_an_answer_in_the_background_pays_for_it(world: MeteredWorld, name: bytes) -> None:
    world.use(budget=Budget(cost=5))
    gate = Gate("start")
    world.provider.script([held(text("An answer."), gate)])
    content = orjson.dumps(body_of(Api.OPENAI_RESPONSES))[:-1] + b"," + name + b": true}"
    headers = {"content-type": "application/json"}
    asking = asyncio.create_task(world.agent.post("/v1/responses", content=content, headers=headers))
    await gate.reached()
    asking.cancel()
    [call] = await world.settled(1)
    assert (call["status"], call["input"], call["output"]) == (499, WINDOW, MOST_OUTPUT)


async def test_a_compressed_request_costs_all_that_it_may_hold(world: MeteredWorld) -> None:
    world.use(budget=Budget(tokens=WINDOW))
    body = {**body_of(Api.OPENAI_CHAT), "messages": [{"role": "user", "content": "x" * 400_000}]}
    content = gzip.compress(orjson.dumps(body))
    assert len(content) < 2000
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    async with quiet_provider(world, Api.OPENAI_CHAT, QUIET, "text/event-stream"):
        for status in (200, 402):
            answer = await world.agent.post(PATHS[Api.OPENAI_CHAT], content=content, headers=headers)
            assert answer.status_code == status
    [call] = await world.settled(1)
    assert (call["input"], call["output"]) == (WINDOW, MOST_OUTPUT)


async def test_a_compressed_request_holds_all_that_it_may_take(world: MeteredWorld) -> None:
    world.use(budget=Budget(tokens=WINDOW))
    gate = Gate("start")
    answer = text("An answer.", usage=Usage(WINDOW, 10))
    world.provider.script([held(answer, gate), answer])
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    content = gzip.compress(orjson.dumps(body_of(Api.ANTHROPIC)))
    asking = [asyncio.create_task(world.agent.post("/v1/messages", content=content, headers=headers)) for _ in "ab"]
    await gate.reached()
    gate.release()
    assert sorted([(await each).status_code for each in asking]) == [200, 402]
    assert len(world.provider.requests) == 1


async def test_a_compressed_request_that_reports_its_usage_costs_that(world: MeteredWorld) -> None:
    world.use(budget=Budget(cost=5))
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    content = gzip.compress(orjson.dumps(body_of(Api.ANTHROPIC)))
    assert (await world.agent.post("/v1/messages", content=content, headers=headers)).status_code == 200
    [call] = await world.settled(1)
    assert (call["input"], call["output"], call.get("estimated")) == (100_000, 10_000, None)


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in events)


BUSY = {"type": "overloaded_error", "message": "busy"}
UNKNOWN = {"type": "api_error", "message": "something broke"}
ONLY_ERRORS: list[tuple[Api, bytes]] = [
    (Api.ANTHROPIC, sse({"type": "error", "error": BUSY})),
    (Api.ANTHROPIC, sse({"type": "ping"}, {"type": "error", "error": UNKNOWN})),
    (Api.OPENAI_CHAT, sse({"error": UNKNOWN})),
    (Api.OPENAI_CHAT, sse({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}, {"error": BUSY})),
    (Api.OPENAI_RESPONSES, sse({"type": "error", "code": "server_error", "message": "broke"})),
    (
        Api.OPENAI_RESPONSES,
        sse(
            {"type": "response.created", "response": {"error": None, "usage": None}},
            {"type": "response.failed", "response": {"error": UNKNOWN, "usage": None}},
        ),
    ),
    (Api.ANTHROPIC, orjson.dumps({"type": "error", "error": UNKNOWN})),
    (Api.OPENAI_CHAT, orjson.dumps({"error": UNKNOWN})),
    (Api.OPENAI_RESPONSES, orjson.dumps({"status": "failed", "error": UNKNOWN, "output": [], "usage": None})),
]


@pytest.mark.parametrize(("api", "body"), ONLY_ERRORS)
async def test_an_answer_that_is_only_an_error_costs_nothing(world: MeteredWorld, api: Api, body: bytes) -> None:
    world.use(budget=Budget(tokens=1000))
    kind = "text/event-stream" if body.startswith(b"data:") else "application/json"
    async with quiet_provider(world, api, body, kind):
        for _ in range(3):
            assert (await world.agent.post(PATHS[api], json=body_of(api))).status_code == 200
    assert await world.meter.spent(BudgetScope.RUN, "r-1") == Amount()
    [call, *_] = await world.settled(1)
    assert (call["input"], call["output"], call.get("estimated")) == (0, 0, None)


async def test_an_error_after_what_was_used_costs_what_was_reported(world: MeteredWorld) -> None:
    world.use(budget=Budget(tokens=100_000))
    begin = {"type": "message_start", "message": {"usage": {"input_tokens": 700, "output_tokens": 1}}}
    async with quiet_provider(world, Api.ANTHROPIC, sse(begin, {"type": "error", "error": BUSY}), "text/event-stream"):
        await world.agent.post("/v1/messages", json=body_of(Api.ANTHROPIC))
    [call] = await world.settled(1)
    assert (call["input"], call["output"], call.get("estimated")) == (700, 1, None)


async def test_an_error_after_content_costs_what_a_broken_answer_costs(world: MeteredWorld) -> None:
    """Not all that it may have taken: the answer ended there. Not nothing either: it has content."""
    world.use(budget=Budget(tokens=100_000))
    words = {"choices": [{"index": 0, "delta": {"content": "word " * 400}}]}
    async with quiet_provider(world, Api.OPENAI_CHAT, sse(words, {"error": BUSY}), "text/event-stream"):
        await world.agent.post(PATHS[Api.OPENAI_CHAT], json=body_of(Api.OPENAI_CHAT))
    [call] = await world.settled(1)
    assert call["estimated"] is True
    assert 400 <= call["output"] < MOST_OUTPUT


async def test_words_about_errors_are_no_error(world: MeteredWorld) -> None:
    world.use(budget=Budget(tokens=100_000))
    words = {"choices": [{"index": 0, "delta": {"content": '{"error": {"type": "api_error"}}'}}]}
    async with quiet_provider(world, Api.OPENAI_CHAT, sse(words), "text/event-stream"):
        await world.agent.post(PATHS[Api.OPENAI_CHAT], json=body_of(Api.OPENAI_CHAT))
    [call] = await world.settled(1)
    assert call["output"] == MOST_OUTPUT


async def test_an_answer_that_hides_its_usage_is_priced_by_the_model_that_it_names(world: MeteredWorld) -> None:
    await world.meter.prices.put("mine/big", Price(input=20, output=100))
    world.use(budget=Budget(cost=5))
    for api, body, kind in (
        (Api.OPENAI_CHAT, QUIET, "text/event-stream"),
        (Api.OPENAI_RESPONSES, QUEUED, "application/json"),
    ):
        async with quiet_provider(world, api, body.replace(b'"scripted"', b'"big"'), kind):
            await world.agent.post(PATHS[api], json={**body_of(api), "model": "big"})
    assert [each["model"] for each in await world.settled(2)] == ["mine/big", "mine/big"]


# --- the decisions ---


def limit(**budget: float) -> Limit:
    return Limit(BudgetScope.RUN, "r-1", Budget(**budget))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "spent", "reached"),
    [
        ({"cost": 1}, Amount(999_999_999, 10**9), None),
        ({"cost": 1}, Amount(1_000_000_000, 0), "cost"),
        ({"tokens": 10}, Amount(10**12, 9), None),
        ({"tokens": 10}, Amount(0, 10), "tokens"),
        ({"cost": 1, "tokens": 10}, Amount(0, 11), "tokens"),
        ({"cost": 0}, Amount(), "cost"),
    ],
)
def test_when_a_budget_is_used_up(budget: dict[str, float], spent: Amount, reached: str | None) -> None:
    found = find_reached([(limit(**budget), spent)])
    assert (None if found is None else found.unit) == reached


def test_a_warning_comes_at_its_share() -> None:
    assert find_warnings([(limit(cost=1), Amount(799_999_999))]) == []
    assert [each.unit for each in find_warnings([(limit(cost=1), Amount(800_000_000))])] == ["cost"]
    assert [each.unit for each in find_warnings([(limit(tokens=10, warn_at=0.5), Amount(0, 5))])] == ["tokens"]


def test_a_refusal_says_what_agents_do_not_retry() -> None:
    """pi looks for numbers such as 500 in an error to tell whether to try again, unless it says this."""
    found = find_reached([(limit(cost=500), Amount(500 * 10**9))])
    assert found is not None
    assert found.message("r-1") == "this run is out of budget: $500.0000 of $500.0000 are spent"
    found = find_reached([(limit(tokens=500), Amount(0, 429_503))])
    assert found is not None
    assert found.message("r-1") == "this run is out of budget: 429,503 tokens of 500 tokens are spent"


async def test_an_account_is_loaded_once_and_kept_while_it_is_used() -> None:
    loads: list[str] = []

    async def load(scope: BudgetScope, subject: str) -> Amount:
        loads.append(subject)
        await asyncio.sleep(0)
        return Amount(5, 5)

    ledger = Ledger(load)
    opened = await asyncio.gather(*(ledger.open([(BudgetScope.RUN, "r-1")]) for _ in range(10)))
    assert loads == ["r-1"]
    accounts = opened[0]
    ledger.hold(accounts, Amount(3, 3))
    ledger.settle(accounts, Amount(3, 3), Amount(1, 1))
    assert (accounts[0].spent, accounts[0].held) == (Amount(6, 6), Amount())


def test_days_are_in_utc() -> None:
    assert day_of(start_of_day("2026-11-17")) == "2026-11-17"
    assert day_of(start_of_day("2026-11-17") - 1) == "2026-11-16"
    assert pytest.approx(0.0003) == CALL_COST


@pytest.mark.parametrize(
    ("ending", "seconds", "output"),
    [
        (Ending.LEFT, 1, 1000),
        (Ending.LEFT, 20, 4000),
        (Ending.LEFT, 600, MOST_OUTPUT),
        (Ending.CUT, 20, 4000),
        (Ending.WHOLE, 1, MOST_OUTPUT),
    ],
)
def test_what_an_answer_without_usage_may_have_taken(ending: Ending, seconds: int, output: int) -> None:
    """An agent that waits for a long thought and leaves just before its end has had it."""
    answer = Answer(200, 400, seconds * 1000, ending, Measured(None, output_estimate=3))
    assert charged_usage(answer, WINDOW, MOST_OUTPUT) == (Tokens(100, output), True)
    assert charged_usage(answer, WINDOW) == (Tokens(100, 1000 if ending is Ending.LEFT else 3), True)


def test_a_small_budget_is_not_shown_as_nothing() -> None:
    found = find_reached([(limit(cost=0.00002), Amount(30_000))])
    assert found is not None
    assert found.message("r-1") == "this run is out of budget: $0.00003 of $0.00002 are spent"
