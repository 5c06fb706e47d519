"""Asks a model in the same way as agents do: messages in, text and usage out, whatever API it has.

Returns one complete answer. Nothing is streamed or retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from holdfast.api.errors.models import InvalidModel, ModelFailed
from holdfast.api.model.models import Api
from holdfast.egress.models.gateway import REASON, ModelGateway
from holdfast.egress.models.model import ModelChoice
from holdfast.time_limit import time_limit

SECONDS: Final = 60.0
_MAX_ANSWER: Final = 16 * 1024 * 1024
_MAX_SHOWN: Final = 500
_ROLES: Final = ("system", "user", "assistant")

Message = Mapping[str, str]
"""`role` (system, user or assistant) and `content`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of a model, and its usage."""

    text: str
    input_tokens: int = 0
    """All input, cached or not."""
    output_tokens: int = 0
    cost: float | None = None
    """In dollars, if the provider reports it."""
    is_cut: bool = False
    """Whether it reached its maximum length."""


@dataclass(frozen=True, slots=True)
class CompletionResult:
    """The result of a question."""

    model: str
    """`NAME/MODEL`."""
    api: Api
    completion: Completion | None
    """None if it failed."""
    status: int
    """HTTP status of the answer; 0 if none came in time."""
    milliseconds: int
    problem: str = ""
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class _Grant:
    model: str
    run: str


async def ask(
    gateway: ModelGateway,
    choice: ModelChoice,
    messages: Sequence[Message],
    *,
    run: str,
    api: Api | None = None,
    timeout: float = SECONDS,
) -> Completion:
    """Returns the answer of the model. `api` defaults to its best; `run` is counted by the gateway.

    Raises `ModelFailed`, with a hint on what to do.
    """
    result = await try_to_ask(gateway, choice, messages, run=run, api=api, timeout=timeout)
    if result.completion is None:
        raise ModelFailed(f"{result.model} gave no answer: {result.problem}", hint=result.hint)
    return result.completion


async def try_to_ask(
    gateway: ModelGateway,
    choice: ModelChoice,
    messages: Sequence[Message],
    *,
    run: str,
    api: Api | None = None,
    timeout: float = SECONDS,
    max_tokens: int | None = None,
) -> CompletionResult:
    """Ask through the gateway, so the result is what an agent would get. A failure is a result too.

    `max_tokens` is for the one API that requires it; defaults to the model's own.
    """
    spoken = api or choice.apis[0]
    path, question = question_of(spoken, choice.model, messages, max_tokens or choice.max_tokens)
    body = orjson.dumps(question)
    caller = _Caller(body)
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"user-agent", b"holdfast"),
        ],
    }
    began = time.monotonic()
    try:
        async with time_limit(timeout):
            await gateway.handle(scope, caller.receive, caller.send, _Grant(str(choice), run))
    except TimeoutError:
        caller.status, caller.reason = 0, "silent"
    except _TooLarge:
        caller.is_whole = False
    spent = round((time.monotonic() - began) * 1000)
    completion, problem = None, ""
    if caller.status == 200 and caller.is_whole:
        completion = read_answer(spoken, bytes(caller.body))
        problem = "" if completion is not None else "an answer that is not one of this API"
    else:
        problem = _problem_of(caller, timeout)
    hint = None if completion is not None else find_hint(caller.status, caller.reason, choice)
    return CompletionResult(str(choice), spoken, completion, caller.status, spent, problem, hint)


def find_hint(status: int, reason: str, choice: ModelChoice) -> str | None:
    """Returns what to do next for this kind of failure. `reason` is the gateway's own, or empty."""
    name = choice.name
    if reason == "unreachable":
        return f"check the server and its base URL: holdfast model add {name} --base-url URL"
    if reason == "budget":
        return "holdfast budget list shows it; with more: holdfast budget set --day --cost DOLLARS"
    if reason == "redirect":
        return f"holdfast model add {name} --base-url URL, with the key again"
    if reason in ("silent", "broken", "busy"):
        return "try again; if it stays so, ask the provider"
    if status in (401, 403):
        return f"the key is not accepted: holdfast model add {name} --key-stdin < FILE"
    if status in (200, 400, 404, 422):
        return f"check the name {choice.model!r} and the base URL; holdfast model test {name}/MODEL tries another"
    if status == 402:
        return "the account has no credit left"
    if status == 413:
        return "ask less at once"
    if status == 429:
        return "too many requests, or no credit left: wait, or look at the account"
    if status >= 500:
        return "the provider has trouble: try again later"
    return None


# --- as the APIs have it ---


def question_of(api: Api, model: str, messages: Sequence[Message], max_tokens: int) -> tuple[str, dict[str, Any]]:
    """Returns the path at the gateway and the body of a request."""
    completion = [_checked(message) for message in messages]
    if not any(message["role"] == "user" for message in completion):
        raise InvalidModel("there is nothing to ask: no message is of the user", hint="give a message of role user")
    match api:
        case Api.OPENAI_CHAT:
            # Without a limit, whose name differs between models.
            return "/model/v1/chat/completions", {"model": model, "messages": completion}
        case Api.OPENAI_RESPONSES:
            return "/model/v1/responses", {"model": model, "input": completion, "store": False}
        case Api.ANTHROPIC:
            system = "\n\n".join(message["content"] for message in completion if message["role"] == "system")
            others = [message for message in completion if message["role"] != "system"]
            body: dict[str, Any] = {"model": model, "messages": others, "max_tokens": max_tokens}
            return "/model/v1/messages", {**body, "system": system} if system else body


def _checked(message: Message) -> dict[str, str]:
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES or not isinstance(content, str):
        raise InvalidModel(
            f"a message has a role of {', '.join(_ROLES)} and a text as its content, not {role!r}"[:_MAX_SHOWN],
            hint="give {'role': 'user', 'content': '…'}",
        )
    return {"role": role, "content": content}


def read_answer(api: Api, body: bytes) -> Completion | None:
    """Returns None if this is not an answer of this API. Everything in it is untrusted."""
    try:
        answer = orjson.loads(body)
        completion = _completion(api, answer, answer.get("usage") or {})
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return completion if isinstance(completion.text, str) else None


def _completion(api: Api, answer: Mapping[str, Any], usage: Mapping[str, Any]) -> Completion:
    cost = _cost(usage)
    match api:
        case Api.OPENAI_CHAT:
            choice = answer["choices"][0]
            text, is_cut = choice["message"].get("content") or "", choice.get("finish_reason") == "length"
            return Completion(text, _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"), cost, is_cut)
        case Api.OPENAI_RESPONSES:
            items = [item for item in answer["output"] if item["type"] == "message"]
            text = "".join(part.get("text", "") for item in items for part in item["content"])
            is_cut = answer.get("status") == "incomplete"
            return Completion(text, _count(usage, "input_tokens"), _count(usage, "output_tokens"), cost, is_cut)
        case Api.ANTHROPIC:
            text = "".join(part.get("text", "") for part in answer["content"])
            cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
            input_tokens = sum(_count(usage, name) for name in ("input_tokens", *cached))
            return Completion(
                text, input_tokens, _count(usage, "output_tokens"), cost, answer.get("stop_reason") == "max_tokens"
            )


def _cost(usage: Mapping[str, Any]) -> float | None:
    cost = usage.get("cost")
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) and cost >= 0 else None


def _count(usage: Mapping[str, Any], name: str) -> int:
    number = usage.get(name)
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 0


class _TooLarge(Exception):
    """The answer is too large to read on."""


class _Caller:
    """The other end of an ASGI request, in memory."""

    def __init__(self, body: bytes) -> None:
        self._question: bytes | None = body
        self.status = 0
        self.reason = ""
        self.body = bytearray()
        self.is_whole = False

    async def receive(self) -> dict[str, Any]:
        if self._question is None:
            await asyncio.Event().wait()  # the caller does not disconnect
        body, self._question = self._question, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.reason = dict(message["headers"]).get(REASON, b"").decode()
            return
        self.body += message.get("body", b"")
        if len(self.body) > _MAX_ANSWER:
            raise _TooLarge  # ends the request, so that the provider stops
        self.is_whole = not message.get("more_body")


def _problem_of(caller: _Caller, timeout: float) -> str:
    if caller.status == 0:
        return f"no answer within {timeout:g} s"
    if caller.status == 200:
        return "the answer broke off, or was larger than any should be"
    try:
        error = orjson.loads(bytes(caller.body))["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError):
        message = bytes(caller.body[:_MAX_SHOWN]).decode(errors="replace").strip() or "no explanation"
    return str(message)[:_MAX_SHOWN]
