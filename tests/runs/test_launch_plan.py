"""Which models an agent can be used with."""

from __future__ import annotations

import pytest

from holdfast.api.model.models import Api
from holdfast.egress.models import PROVIDERS, Model
from holdfast.harnesses import registry
from holdfast.runs.launch.plan import offers

URL = "http://127.0.0.1:8000"
CHAT = Model("chat", {Api.OPENAI_CHAT: URL})
BOTH = Model("both", {Api.OPENAI_CHAT: URL, Api.ANTHROPIC: URL})
MUTE = Model("mute", {})


@pytest.mark.parametrize(
    ("apis", "expected"),
    [
        ((), []),
        ((Api.OPENAI_RESPONSES,), []),
        ((Api.ANTHROPIC,), [("both", Api.ANTHROPIC)]),
        ((Api.OPENAI_CHAT,), [("chat", Api.OPENAI_CHAT), ("both", Api.OPENAI_CHAT)]),
        # The agent's own order decides, not the model's.
        ((Api.ANTHROPIC, Api.OPENAI_CHAT), [("chat", Api.OPENAI_CHAT), ("both", Api.ANTHROPIC)]),
    ],
)
def test_an_agent_is_offered_what_speaks_an_api_of_its_own(
    apis: tuple[Api, ...], expected: list[tuple[str, Api]]
) -> None:
    found = offers(iter(apis), [CHAT, BOTH, MUTE])
    assert [(each.model.name, each.api) for each in found] == expected


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("pi", set(PROVIDERS)),
        ("acp:some agent", set(PROVIDERS)),
        ("claude", {"anthropic", "openrouter", "deepseek"}),
        ("codex", {"openai", "openrouter", "xai"}),
        ("opencode", set(PROVIDERS)),
    ],
)
def test_every_agent_has_providers_that_are_built_in(agent: str, expected: set[str]) -> None:
    assert {each.model.name for each in offers(registry.find(agent).apis, PROVIDERS.values())} == expected
