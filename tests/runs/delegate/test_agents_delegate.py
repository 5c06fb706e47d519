"""Each of the real agents delegates a task to another one, and is told the result. Only the model is scripted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.serving import add_models, serving_agents

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel
from holdfast.testing.model.requests import Request
from holdfast.testing.model.steps import Scripted, Step, text, tool
from holdfast.testing.model.tools import offered_by
from holdfast.testing.server import ServerProcess

APIS = {"pi": Api.ANTHROPIC, "claude": Api.ANTHROPIC, "opencode": Api.ANTHROPIC, "codex": Api.OPENAI_RESPONSES}
ANSWER = "The answer is forty-two, I looked it up."


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[ServerProcess]:
    with serving_agents(tmp_path_factory.mktemp("delegating") / "home", installed_agents, *APIS) as server:
        yield server


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def client(running: ServerProcess, model: ScriptedModel) -> Iterator[SyncClient]:
    with SyncClient(running.url, api_key=running.api_key) as client:
        add_models(client, model, "sk-x")
        yield client


def model_of(agent: str) -> str:
    return "responses" if APIS[agent] is Api.OPENAI_RESPONSES else "anthropic"


def named(request: Request, name: str) -> str:
    """What the agent calls this tool: most put the name of the server before it."""
    found = [each for each in offered_by(request.api, request.body) if each.endswith(name)]
    assert found, json.dumps(request.body["tools"])[:4000]
    return found[0]


def calls(name: str, **arguments: Any) -> Scripted:
    return lambda request: tool(named(request, name), arguments)


def asks_for_result(request: Request) -> Step:
    task = re.findall(r"t-[0-9a-z]{10,}", request.results[-1].text)[0]
    return tool(named(request, "task_result"), {"task": task, "wait": 45})


@pytest.mark.parametrize("agent", list(APIS))
def test_an_agent_delegates_and_is_told_the_result(agent: str, client: SyncClient, model: ScriptedModel) -> None:
    model.script([text(ANSWER)], when="the small question")
    model.script(
        [
            calls("delegate_task", prompt="Please answer the small question.", title="small"),
            asks_for_result,
            asks_for_result_again,
            text("All done."),
        ],
        when="the large question",
    )
    thread = client.runs.launch(
        "Please answer the large question.", agent=agent, model=model_of(agent), delegate=True
    ).thread
    run = client.runs.wait(thread)
    assert run.status == "completed", run.error
    last = [each for each in model.main_requests if each.script == "the large question"][-1]
    assert any(ANSWER in each.text for each in last.results), last.turns
    [task] = client.tasks.list(thread)
    assert (task.title, task.status, task.agent, task.reported) == ("small", "completed", agent, True)
    kinds = [entry.type for entry in client.thread(thread).entries()]
    assert kinds.count("signal.thread.child_started") == kinds.count("signal.thread.child_finished") == 1
    # The agent has read the result itself, so nothing waits for its next prompt.
    info = client.thread(thread).info()
    assert info.run is not None
    assert info.run.waiting == 0


def asks_for_result_again(request: Request) -> Step:
    """On a busy machine, a task takes longer than one call waits."""
    if ANSWER in request.results[-1].text:
        return text("All done.")
    task = re.findall(r"t-[0-9a-z]{10,}", request.results[-1].text)[0]
    return tool(named(request, "task_result"), {"task": task, "wait": 45}, times=20)
