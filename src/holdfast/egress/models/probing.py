"""Asks a model one small question by the way that agents go, and says what came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from holdfast.egress.models.gateway import REASON, ModelGateway
from holdfast.egress.models.model import ModelChoice
from holdfast.model_apis import Api

_SECONDS: Final = 60.0
_MAX_ANSWER: Final = 256 * 1024
_MAX_SHOWN: Final = 500
_QUESTION: Final = "Answer with the one word: ready"
_MAX_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of it."""

    model: str
    """`NAME/MODEL`."""
    api: Api
    ok: bool
    status: int
    """Of the answer; 0 where none came in time."""
    milliseconds: int
    text: str
    """What the model said, or what was wrong."""
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class _Grant:
    model: str
    run: str = "model-test"


async def probe(gateway: ModelGateway, choice: ModelChoice, api: Api, *, timeout: float = _SECONDS) -> Probe:
    """Goes through the gateway, so what it finds is what an agent would find."""
    path, question = _question(api, choice.model)
    caller = _Caller(orjson.dumps(question))
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"user-agent", b"holdfast")],
    }
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            await gateway.handle(scope, caller.receive, caller.send, _Grant(str(choice)))
    except TimeoutError:
        caller.status, caller.reason = 0, "silent"
    spent = round((time.monotonic() - began) * 1000)
    ok = caller.status == 200 and caller.whole
    text = _answer_text(api, caller.body) if ok else _error_text(caller, timeout)
    hint = None if ok else find_hint(caller.status, caller.reason, choice)
    return Probe(str(choice), api, ok, caller.status, spent, text[:_MAX_SHOWN], hint)


def find_hint(status: int, reason: str, choice: ModelChoice) -> str | None:
    """What to do next, by the class of failure. `reason` is the gateway's own, or empty."""
    name = choice.name
    if reason == "unreachable":
        return (
            f"is the server up, and its base URL right? holdfast model list; holdfast model add {name} --base-url URL"
        )
    if reason == "redirect":
        return f"holdfast model add {name} --base-url URL, with the key again"
    if reason in ("silent", "broken", "busy"):
        return "try again; if it stays so, ask the provider"
    if status in (401, 403):
        return f"the key is not accepted: holdfast model add {name} --key-stdin < FILE"
    if status in (400, 404, 422):
        return (
            f"does it know {choice.model!r}, and is the base URL right? holdfast model test {name}/MODEL tries another"
        )
    if status == 402:
        return "the account has no credit left"
    if status == 429:
        return "too many requests, or no credit left: wait, or look at the account"
    if status >= 500:
        return "the provider has trouble: try again later"
    return None


class _Caller:
    """The other end of an ASGI request, in memory."""

    def __init__(self, body: bytes) -> None:
        self._question: bytes | None = body
        self.status = 0
        self.reason = ""
        self.body = b""
        self.whole = False

    async def receive(self) -> dict[str, Any]:
        if self._question is None:
            await asyncio.Event().wait()  # it does not hang up
        body, self._question = self._question, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.reason = dict(message["headers"]).get(REASON, b"").decode()
            return
        self.body = (self.body + message.get("body", b""))[:_MAX_ANSWER]
        self.whole = not message.get("more_body")


def _question(api: Api, model: str) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "content": _QUESTION}]
    match api:
        case Api.OPENAI_CHAT:
            # Without a limit: its name differs from model to model, and the answer is short anyway.
            return "/model/v1/chat/completions", {"model": model, "messages": said}
        case Api.OPENAI_RESPONSES:
            return "/model/v1/responses", {"model": model, "input": said, "store": False}
        case Api.ANTHROPIC:
            return "/model/v1/messages", {"model": model, "messages": said, "max_tokens": _MAX_TOKENS}


def _answer_text(api: Api, body: bytes) -> str:
    try:
        answer = orjson.loads(body)
        match api:
            case Api.OPENAI_CHAT:
                return str(answer["choices"][0]["message"]["content"] or "")
            case Api.OPENAI_RESPONSES:
                items = [item for item in answer["output"] if item["type"] == "message"]
                return "".join(part.get("text", "") for item in items for part in item["content"])
            case Api.ANTHROPIC:
                return "".join(part.get("text", "") for part in answer["content"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return "an answer that is not one of this API"


def _error_text(caller: _Caller, timeout: float) -> str:
    if caller.status == 0:
        return f"no answer within {timeout:g} s"
    try:
        error = orjson.loads(caller.body)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError):
        message = caller.body[:_MAX_SHOWN].decode(errors="replace").strip() or "no explanation"
    return str(message)
