"""Built-in providers, which need only a key, and what is known about their models.

Providers publish models more often than we publish releases. An id that is not listed here works as well, with careful
assumptions about its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.api.model.models import Api
from holdfast.egress.models.model import DEFAULT_CONTEXT, DEFAULT_MAX_TOKENS, Model


@dataclass(frozen=True, slots=True)
class Size:
    """In tokens."""

    context_window: int
    max_tokens: int


_MILLION: Final = Size(1_000_000, 128_000)
_GEMINI: Final = Size(1_048_576, 65_536)

SIZES: Final[Mapping[str, Size]] = {
    # Anthropic
    "claude-fable-5": _MILLION,
    "claude-opus-5-5": _MILLION,
    "claude-opus-5": _MILLION,
    "claude-sonnet-5": _MILLION,
    "claude-sonnet-4-5": Size(200_000, 64_000),
    "claude-opus-4-5": Size(200_000, 64_000),
    "claude-haiku-4-5": Size(200_000, 64_000),
    # OpenAI
    "gpt-6-sol": Size(272_000, 128_000),
    "gpt-6-luna": Size(272_000, 128_000),
    "gpt-5.5": Size(272_000, 128_000),
    "gpt-5.4": Size(272_000, 128_000),
    "gpt-5.4-mini": Size(400_000, 128_000),
    "gpt-5.3-codex": Size(400_000, 128_000),
    "gpt-5": Size(400_000, 128_000),
    "gpt-5-mini": Size(400_000, 128_000),
    "gpt-4.1": Size(1_047_576, 32_768),
    # Google
    "gemini-3.1-pro-preview": _GEMINI,
    "gemini-3.8-flash": _GEMINI,
    "gemini-2.5-pro": _GEMINI,
    "gemini-2.5-flash": _GEMINI,
    # Others
    "grok-4.7": Size(500_000, 64_000),
    "deepseek-v4-pro": Size(1_000_000, 128_000),
    "deepseek-flash": Size(1_000_000, 128_000),
    "devstral-latest": Size(262_144, 65_536),
    "mistral-large-latest": Size(262_144, 65_536),
    "kimi-k3": Size(1_048_576, 131_072),
    "kimi-k2.7-code": Size(262_144, 65_536),
    "glm-5.3": Size(1_000_000, 131_072),
    "gpt-oss-120b": Size(131_072, 40_960),
    "openai/gpt-oss-120b": Size(131_072, 65_536),
    "anthropic/claude-sonnet-5": _MILLION,
    "openai/gpt-5.5": Size(272_000, 128_000),
}


def _provider(name: str, model: str, **endpoints: str) -> Model:
    size = SIZES.get(model, Size(DEFAULT_CONTEXT, DEFAULT_MAX_TOKENS))
    spoken = {Api(api.replace("_", "-")): url for api, url in endpoints.items()}
    return Model(name, spoken, model, size.context_window, size.max_tokens, built_in=True, key_wanted=True)


_OPENAI: Final = "https://api.openai.com/v1"
_OPENROUTER: Final = "https://openrouter.ai/api"

PROVIDERS: Final[Mapping[str, Model]] = {
    provider.name: provider
    for provider in (
        _provider("anthropic", "claude-sonnet-5", anthropic="https://api.anthropic.com"),
        _provider("openai", "gpt-5.5", openai_responses=_OPENAI, openai_chat=_OPENAI),
        _provider(
            "openrouter",
            "anthropic/claude-sonnet-5",
            openai_chat=f"{_OPENROUTER}/v1",
            openai_responses=f"{_OPENROUTER}/v1",
            anthropic=_OPENROUTER,
        ),
        _provider(
            "google",
            "gemini-3.1-pro-preview",
            openai_chat="https://generativelanguage.googleapis.com/v1beta/openai",
        ),
        _provider("xai", "grok-4.7", openai_responses="https://api.x.ai/v1", openai_chat="https://api.x.ai/v1"),
        _provider(
            "deepseek",
            "deepseek-v4-pro",
            openai_chat="https://api.deepseek.com",
            anthropic="https://api.deepseek.com/anthropic",
        ),
        _provider("mistral", "devstral-latest", openai_chat="https://api.mistral.ai/v1"),
        _provider("groq", "openai/gpt-oss-120b", openai_chat="https://api.groq.com/openai/v1"),
        _provider("cerebras", "gpt-oss-120b", openai_chat="https://api.cerebras.ai/v1"),
        _provider("moonshot", "kimi-k2.7-code", openai_chat="https://api.moonshot.ai/v1"),
        _provider("zai", "glm-5.3", openai_chat="https://api.z.ai/api/coding/paas/v4"),
    )
}
