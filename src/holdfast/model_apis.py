"""The ways in which models are spoken to. One list for those who speak (harnesses) and those who carry (egress)."""

from __future__ import annotations

from enum import StrEnum


class Api(StrEnum):
    """How a model is spoken to."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
