"""The ways in which models are spoken to. One list for those who speak (harnesses) and those who carry (egress)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum


class Api(StrEnum):
    """How a model is spoken to."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"


def shared(wanted: Iterable[Api], spoken: Collection[Api]) -> Api | None:
    """What two sides speak with each other: the first API of one that the other speaks, too."""
    return next((api for api in wanted if api in spoken), None)
