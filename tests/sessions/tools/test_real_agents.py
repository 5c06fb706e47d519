"""Real agents in real boxes use the tools of their session. Only the model is scripted."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.agents import InstalledAgents
from tests.runs.delegate.real import Delegating, a_delegating_server
from tests.runs.delegate.test_agents_delegate import calls, named

from holdfast.api.secrets import Binding
from holdfast.sessions.workflows.signatures import sign
from holdfast.testing.chats import Telegram
from holdfast.testing.model.requests import Request
from holdfast.testing.model.steps import Step, bash, text, tool
from holdfast.testing.model.tools import offered_by

pytestmark = pytest.mark.xdist_group("session tools")


@pytest.fixture(scope="module")
def telegram() -> Iterator[Telegram]:
    with Telegram("123456:token-of-a-bot-0123") as telegram:
        yield telegram


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents, telegram: Telegram
) -> Iterator[Delegating]:
    installed_agents.install("opencode")
    apis = (f"telegram={telegram.url}",)
    with a_delegating_server(tmp_path_factory.mktemp("tools"), installed_agents, service_apis=apis) as world:
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


def test_a_workflow_runs_in_a_real_box_with_a_persons_approval_and_by_webhook(world: Delegating) -> None:
    world.model.script([text("Notes are written.")], when="release notes")
    session = world.client.sessions.create(agent="pi", model="scripted").id
    steps = [
        {"id": "count", "type": "command", "command": "echo $VAR_version >> /workspace/times; cat /workspace/times"},
        {"id": "notes", "type": "agent", "prompt": "Please write release notes for {{steps.count.output}}."},
        {"id": "ok", "type": "approval", "prompt": "Deploy?"},
        {"id": "last", "type": "command", "command": 'echo "$STEP_notes"'},
    ]
    data = {"variables": {"version": "none"}, "steps": steps}
    workflow = world.client.sessions.call_tool(session, "sync_workflow", {"name": "Deploy it", "data": data})[
        "workflow"
    ]
    started = world.client.workflows.run(session, "deploy-it", variables={"version": "1.2"})
    waiting = world.client.workflows.wait(started.id)
    assert waiting.requires_approval is not None, waiting
    done = world.client.workflows.approve(started.id, waiting.requires_approval.resume_token)
    done = world.client.workflows.wait(done.id)
    assert [each.output.strip() for each in done.steps] == [
        "1.2",
        "Notes are written.",
        "approved",
        "Notes are written.",
    ]
    hook = {"name": "t", "workflowId": workflow["id"], "config": {"type": "webhook"}}
    mapping = {"variableMapping": {"version": "body.tag"}}
    trigger = world.client.sessions.call_tool(session, "create_trigger", {**hook, **mapping})["trigger"]
    url, body, stamp = f"{world.server.url}/v1/hooks/{trigger['id']}", b'{"tag": "1.3"}', str(int(time.time()))
    headers = {"x-holdfast-timestamp": stamp, "x-holdfast-signature": sign(trigger["secret"], stamp, body)}
    answers = [httpx.post(url, content=body, headers=headers, trust_env=False) for _ in range(2)]
    assert [each.status_code for each in answers] == [202, 202]
    assert answers[0].json()["executionId"] == answers[1].json()["executionId"]
    forged = httpx.post(url, content=body + b" ", headers=headers, trust_env=False)
    nowhere = httpx.post(url + "x", content=body, headers=headers, trust_env=False)
    assert (forged.status_code, nowhere.status_code) == (401, 401)
    assert httpx.post(url, content=b"x" * (1 << 20) + b"x", headers=headers, trust_env=False).status_code == 413
    fired = world.client.workflows.wait(answers[0].json()["executionId"])
    assert fired.steps[0].output.split() == ["1.2", "1.3"]
    world.client.workflows.cancel(fired.id)
    world.client.sessions.terminate(session)


def test_a_message_in_telegram_is_answered_by_a_real_agent(world: Delegating, telegram: Telegram) -> None:
    reply = calls("channel_reply", channelType="telegram", channelId="42", message="all is well")
    world.model.script([reply, text("Answered.")], when="how is the chat")
    session = world.client.sessions.create(agent="pi", model="scripted", tools=["channels"]).id
    world.client.secrets.set("TG", telegram.token, bindings=[Binding(host="api.telegram.org", name="x-token")])
    given = {"channelType": "telegram", "token": "TG", "chats": ["42"]}
    made = world.client.sessions.call_tool(session, "connect_channel", given)
    headers = {"x-telegram-bot-api-secret-token": made["secret"]}
    body = Telegram.update(1, 42, "how is the chat?")
    url = world.server.url + made["path"]
    assert httpx.post(url, content=body, headers={}, trust_env=False).status_code == 401
    assert httpx.post(url, content=body, headers=headers, trust_env=False).json() == {"ok": True}
    [prompt] = world.client.sessions.prompts(session)
    assert world.client.sessions.wait_for_prompt(session, prompt.id).status == "completed"
    assert telegram.sent == [{"method": "sendMessage", "chat_id": "42", "text": "all is well"}]
    world.client.sessions.terminate(session)
