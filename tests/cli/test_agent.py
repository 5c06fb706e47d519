"""`holdfast agent`: who can be let run, and with which models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.conftest import Cli


@pytest.fixture
def mine(cli: Cli) -> Iterator[None]:
    url = "http://127.0.0.1:1/v1"
    assert cli("model", "add", "mine", "--api", "openai-chat", "--base-url", url, "--model", "qwen3").exit == 0
    yield
    cli("model", "remove", "mine", "--yes")


@pytest.mark.usefixtures("mine")
def test_agents_are_listed_with_what_is_ready_for_them(cli: Cli) -> None:
    listed = cli("agent", "list")
    assert listed.exit == 0, listed.err
    lines = {line.split()[0]: line for line in listed.out.splitlines()}
    assert list(lines) == ["name", "pi", "claude", "codex", "opencode", "acp:COMMAND"]
    assert lines["pi"].endswith("mine, 11 that need a key")
    assert lines["codex"].split()[3:] == ["openai-responses", "3", "that", "need", "a", "key"]
    assert [each["name"] for each in cli("agent", "list", "--json").json()["agents"]] == list(lines)[1:]


@pytest.mark.usefixtures("mine")
def test_an_agent_is_shown_with_every_model_that_it_can_be_used_with(cli: Cli) -> None:
    shown = cli("agent", "show", "opencode")
    assert shown.exit == 0, shown.err
    assert "OpenCode" in shown.out
    assert "anthropic, openai-chat" in shown.out
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["mine", "ready", "qwen3", "openai-chat"] in rows
    assert ["anthropic", "no", "key", "claude-sonnet-5", "anthropic"] in rows
    codex = cli("agent", "show", "codex", "--json").json()
    assert {each["name"] for each in codex["models"]} == {"openai", "openrouter", "xai"}


def test_an_agent_that_is_not_there_is_named(cli: Cli) -> None:
    shown = cli("agent", "show", "nobody")
    assert shown.exit == 2
    assert "there is no agent 'nobody'" in shown.err
    assert "use one of pi" in shown.err
