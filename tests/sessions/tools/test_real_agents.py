"""Real agents in real boxes use the tools of their session. Only the model is scripted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from tests.agents import InstalledAgents
from tests.runs.delegate.real import Delegating, a_delegating_server
from tests.runs.delegate.test_agents_delegate import calls, named

from holdfast.testing.model.requests import Request
from holdfast.testing.model.steps import Step, bash, text, tool
from holdfast.testing.model.tools import offered_by

pytestmark = pytest.mark.xdist_group("session tools")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[Delegating]:
    installed_agents.install("opencode")
    with a_delegating_server(tmp_path_factory.mktemp("tools"), installed_agents) as world:
        yield world


def last_text(world: Delegating, script: str) -> str:
    """What the last call of a script returned."""
    return world.requests(script)[-1].results[-1].text


@pytest.mark.parametrize("agent", ["pi", "opencode"])
def test_an_agent_starts_a_child_and_asks_about_it(world: Delegating, agent: str) -> None:
    def asks(request: Request) -> Step:
        child = re.findall(r"t-[0-9a-z]{10,}", request.results[-1].text)[0]
        return tool(named(request, "session_status"), {"sessionId": child})

    world.model.script([text("I have looked.")], when=f"small look of {agent}")
    script = f"large job of {agent}"
    spawn = calls("spawn_child", task=f"Please take a small look of {agent}.", workspace="look")
    world.model.script([spawn, asks, text("Started.")], when=script)
    session = world.client.sessions.create(agent=agent, model="scripted", tools=["children"]).id
    prompt = world.client.sessions.prompt(session, f"Please do the large job of {agent}.")
    assert world.client.sessions.wait_for_prompt(session, prompt.id).status == "completed"
    status = json.loads(last_text(world, script))["sessionStatus"]
    [child] = world.client.sessions.list(parent=session)
    assert (status["id"], status["parent"]) == (child.id, session)
    [asked] = world.client.sessions.prompts(child.id)
    assert world.client.sessions.wait_for_prompt(child.id, asked.id).status == "completed"
    said = world.client.sessions.call_tool(session, "session_messages", {"sessionId": child.id})["messages"]
    assert [(each["role"], each["content"]) for each in said][-1] == ("assistant", "I have looked.")
    world.client.sessions.terminate(session)


def test_code_in_the_box_uses_the_internal_api_within_its_groups(world: Delegating) -> None:
    ask = "curl -sS -w ' %{http_code}' http://127.0.0.1:3128/api"
    world.model.script(
        [
            bash(f"{ask}/child-sessions; {ask}/memories; {ask}/nothing; {ask}/session-status"),
            text("done"),
        ],
        when="question by curl",
    )
    session = world.client.sessions.create(agent="pi", model="scripted", tools=["children"]).id
    prompt = world.client.sessions.prompt(session, "Please do the question by curl.")
    assert world.client.sessions.wait_for_prompt(session, prompt.id).status == "completed"
    answers = last_text(world, "question by curl")
    assert '{"children":[]} 200' in answers
    assert re.findall(r" (\d{3})", answers)[:4] == ["200", "403", "404", "400"]
    offered = offered_by(world.requests("question by curl")[0].api, world.requests("question by curl")[0].body)
    assert "spawn_child" in offered
    assert "delegate_task" not in offered
    world.client.sessions.terminate(session)
