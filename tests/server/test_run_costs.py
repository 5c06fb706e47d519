"""Runs of the real agents with prices, budgets and fallbacks. A real server, real boxes, a scripted model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.agents import InstalledAgents
from tests.serving import serving_agents

from holdfast.api.errors import Refused
from holdfast.api.model.budgets import Budget, BudgetScope
from holdfast.api.model.models import Api, Price
from holdfast.client import SyncClient
from holdfast.testing.model import FOR_EVER, ScriptedModel, Usage, bash, error, text
from holdfast.testing.server import ServerProcess

AGENTS = ("pi", "claude", "codex", "opencode")
BIG = Usage(1000, 10)
"""Costs 2.01 dollars."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[ServerProcess]:
    with serving_agents(tmp_path_factory.mktemp("costs") / "home", installed_agents, *AGENTS) as server:
        yield server


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def spare() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def client(running: ServerProcess, model: ScriptedModel, spare: ScriptedModel) -> Iterator[SyncClient]:
    with SyncClient(running.url, api_key=running.api_key) as client:
        client.models.add("mine", apis=list(Api), base_url=model.openai_url, model="scripted")
        client.models.add("spare", apis=list(Api), base_url=spare.openai_url, model="scripted")
        client.models.set_price("mine/scripted", Price(input=2000, output=1000))
        client.models.set_price("spare/scripted", Price(input=2000, output=1000))
        yield client


def told(client: SyncClient, thread: str, kind: str) -> list[dict[str, object]]:
    return [dict(each.payload) for each in client.thread(thread).entries(types=kind)]


@pytest.mark.sampled(share=0.5)
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_that_used_up_its_budget_ends_and_says_so(
    client: SyncClient, model: ScriptedModel, agent: str
) -> None:
    model.script([bash("echo hi", usage=BIG), text("Never said.", times=FOR_EVER)])
    thread = client.runs.launch("work", agent=agent, model="mine", budget=Budget(cost=2, tokens=500)).thread
    run = client.runs.wait(thread)
    assert run.status == "failed"
    assert run.error is not None
    assert run.error.code == "over_budget"
    assert "this run is out of budget" in run.error.message
    assert len(model.main_requests) == 1
    kinds = [str(each.payload["type"]) for each in client.thread(thread).entries()]
    assert [kind for kind in kinds if "retry" in kind] == [], "no agent asks again"
    assert run.cost is not None
    assert run.cost.cost >= 2.01
    states = [(each["unit"], each["state"]) for each in told(client, thread, "signal.model.budget")]
    assert states[0] == ("cost", "warning")
    assert ("cost", "reached") in states
    report = client.costs.report(thread=thread)
    assert report.total.cost == run.cost.cost
    assert [each.key for each in report.by] == ["mine/scripted"]


@pytest.mark.sampled(share=0.5)
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_goes_on_with_another_model_and_does_not_notice(
    client: SyncClient, model: ScriptedModel, spare: ScriptedModel, agent: str
) -> None:
    model.answer_sides(error(402, "no credit left"))
    model.script([error(402, "no credit left", times=FOR_EVER)])
    spare.script([bash("echo hi"), text("Done by the spare.")])
    thread = client.runs.launch("work", agent=agent, model="mine", fallbacks=("spare",)).thread
    run = client.runs.wait(thread)
    assert run.status == "completed", run.error
    [switched] = told(client, thread, "signal.model.failover")
    assert (switched["model"], switched["to"], switched["reason"]) == ("mine/scripted", "spare/scripted", "billing")
    assert run.cost is not None
    assert run.cost.cost > 0
    client.models.add("mine", apis=list(Api), base_url=model.openai_url, model="scripted")


def test_a_budget_in_dollars_needs_a_price_before_anything_is_made(client: SyncClient) -> None:
    client.models.add("free", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:1/v1", model="unpriced")
    with pytest.raises(Refused, match="the price of free/unpriced is unknown") as refused:
        client.runs.launch("work", agent="pi", model="free", budget=Budget(cost=1))
    assert refused.value.hint is not None
    assert "holdfast model price free/unpriced" in refused.value.hint
    with pytest.raises(Refused, match="the price of free/unpriced is unknown"):
        client.runs.check(agent="pi", model="mine", fallbacks=("free",), budget=Budget(cost=1))
    assert client.runs.check(agent="pi", model="free", budget=Budget(tokens=1)) == "free/unpriced"


def test_models_of_a_chain_must_have_an_api_in_common(client: SyncClient) -> None:
    client.models.add("claude-only", apis=[Api.ANTHROPIC], base_url="http://127.0.0.1:1", model="x")
    client.models.add("chat-only", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:1/v1", model="x")
    with pytest.raises(Refused, match="no API in common"):
        client.runs.check(agent="pi", model="claude-only", fallbacks=("chat-only",))
    assert client.runs.check(agent="pi", model="mine", fallbacks=("chat-only",)) == "mine/scripted"


def test_budgets_and_prices_are_set_listed_and_removed(client: SyncClient) -> None:
    thread = client.threads.create(title="budgets").id
    made = client.costs.set_budget(BudgetScope.TREE, thread, Budget(cost=5, warn_at=0.5))
    assert (made.cost, made.tokens, made.budget.warn_at) == (0, 0, 0.5)
    client.costs.set_budget(BudgetScope.DAY, "", Budget(tokens=10**9))
    assert {(each.scope, each.subject) for each in client.costs.budgets()} == {("tree", thread), ("day", "")}
    client.costs.remove_budget(BudgetScope.TREE, thread)
    client.costs.remove_budget(BudgetScope.DAY)
    assert client.costs.budgets() == []
    with pytest.raises(Refused, match="there is no budget"):
        client.costs.remove_budget(BudgetScope.DAY)
    prices = {each.model: each for each in client.models.prices()}
    assert prices["mine/scripted"].is_own
    assert not prices["openai/gpt-5"].is_own
    client.models.set_price("openai/gpt-5", Price(input=1, output=1))
    client.models.remove_price("openai/gpt-5")
    assert {each.model: each for each in client.models.prices()}["openai/gpt-5"].price.input == 1.25
