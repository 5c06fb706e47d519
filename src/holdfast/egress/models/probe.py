"""Asks a model one small question in the same way as agents do, and reports the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.api.model.models import Api
from holdfast.egress.models.completion import SECONDS, try_to_ask
from holdfast.egress.models.gateway import ModelGateway
from holdfast.egress.models.model import ModelChoice

_MAX_SHOWN: Final = 500
_QUESTION: Final = ({"role": "user", "content": "Answer with the one word: ready"},)
_MAX_TOKENS: Final = 64
_RUN: Final = "model-test"


@dataclass(frozen=True, slots=True)
class Probe:
    """The result."""

    model: str
    """`NAME/MODEL`."""
    api: Api
    ok: bool
    status: int
    """HTTP status of the answer; 0 if none came in time."""
    milliseconds: int
    text: str
    """The model's answer, or the error."""
    hint: str | None = None


async def probe(gateway: ModelGateway, choice: ModelChoice, api: Api, *, timeout: float = SECONDS) -> Probe:
    """Goes through the gateway, so the result is what an agent would get."""
    result = await try_to_ask(gateway, choice, _QUESTION, run=_RUN, api=api, timeout=timeout, max_tokens=_MAX_TOKENS)
    text = result.problem if result.completion is None else result.completion.text
    ok = result.completion is not None
    return Probe(result.model, api, ok, result.status, result.milliseconds, text[:_MAX_SHOWN], result.hint)
