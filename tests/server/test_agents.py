"""`/v1/agents` and the client for it: who can be let run, and with which models."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from holdfast.api.model.models import Api
from holdfast.client import InvalidRequest, SyncClient
from holdfast.harnesses import registry
from holdfast.testing.server import ServerProcess


@pytest.fixture
def client(dummy_server: ServerProcess) -> Iterator[SyncClient]:
    with SyncClient(dummy_server.url, api_key=dummy_server.api_key) as client:
        client.models.add("mine", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:1/v1", model="qwen3")
        yield client
        client.models.remove("mine")


def test_agents_are_listed_with_the_models_that_they_can_be_used_with(client: SyncClient) -> None:
    agents = {each.name: each for each in client.agents.list()}
    assert list(agents) == [*registry.names(), "acp:COMMAND"]
    pi, codex = agents["pi"], agents["codex"]
    ours = registry.find("pi")
    assert ours.package is not None
    assert (pi.title, pi.version, pi.apis) == (ours.title, ours.package.version, ours.apis)
    # What is ready comes first.
    assert pi.models[0].to_json() == {"name": "mine", "model": "qwen3", "api": "openai-chat", "isReady": True}
    assert {each.name for each in pi.models[1:]} >= {"anthropic", "openai"}
    assert not any(each.is_ready for each in pi.models[1:])
    assert "mine" not in {each.name for each in codex.models}
    assert {each.api for each in codex.models} == {Api.OPENAI_RESPONSES}
    assert client.agents.get("codex") == codex


def test_a_key_makes_a_model_ready_for_the_agents_that_speak_to_it(client: SyncClient) -> None:
    client.models.add("anthropic", key="sk-of-a-test-0123456789")
    try:
        ready = {each.name: [model.name for model in each.models if model.is_ready] for each in client.agents.list()}
    finally:
        client.models.remove("anthropic")
    assert ready["claude"] == ["anthropic"]
    assert ready["codex"] == []
    assert ready["pi"] == ["anthropic", "mine"]


def test_an_agent_by_command_is_found_whatever_is_in_its_command(client: SyncClient) -> None:
    found = client.agents.get("acp:/usr/bin/some agent --flag=1")
    assert (found.name, found.version) == ("acp:/usr/bin/some agent --flag=1", None)
    assert "mine" in {each.name for each in found.models}


def test_an_agent_that_is_not_there_is_refused_with_those_that_are(client: SyncClient) -> None:
    with pytest.raises(InvalidRequest, match="there is no agent 'nobody'") as refused:
        client.agents.get("nobody")
    assert "pi, claude, codex, opencode, acp:COMMAND" in str(refused.value.hint)


def test_agents_are_told_to_who_has_a_key(dummy_server: ServerProcess) -> None:
    assert httpx.get(f"{dummy_server.url}/v1/agents").status_code == 401
