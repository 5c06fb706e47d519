"""Decides when another model is asked instead, and for how long a model is left alone. Pure, but for the clock.

What a box can bring about by its request (a model that does not exist, words that an error repeats, an answer without
content) counts against the model for that run alone. Otherwise one box could take a model away from all the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

from holdfast.api.model.models import Api

MOST_ERROR: Final = 64 * 1024
"""Bytes of an error that are read to tell what it is."""
MOST_HELD: Final = 256 * 1024
"""Bytes of an answer that are held back to see whether it has content."""
_MAX_MESSAGE: Final = 300
_REMEMBERED: Final = 10_000


class Reason(StrEnum):
    """Why a model gave no answer."""

    BILLING = "billing"
    RATE = "rate"
    AUTH = "auth"
    UNSUPPORTED = "unsupported"
    """It does not know the model, or, of a fallback, does not take this request."""
    EMPTY = "empty"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Failure:
    reason: Reason
    status: int
    message: str = ""
    retry_after: int | None = None
    """Seconds, by the provider."""

    @property
    def is_proven(self) -> bool:
        """Whether it says something about the model or its account, whatever the request was."""
        return self.reason is Reason.UNREACHABLE or self.status in _PROVEN


_PROVEN: Final = frozenset((401, 402, 429, 529))
_BY_STATUS: Final = {
    401: Reason.AUTH,
    402: Reason.BILLING,
    403: Reason.AUTH,
    404: Reason.UNSUPPORTED,
    429: Reason.RATE,
    529: Reason.RATE,
}
_WORDS: Final[Sequence[tuple[Reason, frozenset[int], tuple[str, ...]]]] = (
    (
        Reason.BILLING,
        frozenset((400, 403, 429)),
        (
            "credit balance",
            "insufficient_quota",
            "insufficient credit",
            "insufficient balance",
            "billing_error",
            "billing not active",
            "billing_not_active",
            "exceeded your current quota",
            "exceeded quota",
            "payment required",
        ),
    ),
    (Reason.RATE, frozenset((400, 403, 503)), ("rate limit", "rate_limit", "too many requests", "overloaded")),
    (
        Reason.AUTH,
        frozenset((400,)),
        ("invalid api key", "invalid x-api-key", "api key not valid", "authentication_error", "unauthorized"),
    ),
    (
        Reason.UNSUPPORTED,
        frozenset((400, 403, 422)),
        (
            "model_not_found",
            "model not found",
            "unknown model",
            "unsupported model",
            "invalid model",
            "not a valid model",
            "model is not supported",
            "no endpoints found",
        ),
    ),
)
"""By the words of an error, for statuses that providers give to several of them."""

_SECONDS: Final[Mapping[Reason, int]] = {
    Reason.BILLING: 600,
    Reason.RATE: 30,
    Reason.AUTH: 300,
    Reason.UNSUPPORTED: 600,
    Reason.EMPTY: 10,
    Reason.UNREACHABLE: 30,
}
_MOST_SECONDS: Final = 600


def classify(
    status: int, body: bytes, headers: Mapping[str, str] | None = None, *, is_own: bool = True
) -> Failure | None:
    """Returns why this answer means that another model should be asked, or None if the agent should have it.

    `is_own` is False for a fallback: a request that it does not take was written for another model.
    """
    if status < 400:
        return None
    text = body[:MOST_ERROR].decode("utf-8", "replace").lower()
    reason = next(
        (reason for reason, statuses, words in _WORDS if status in statuses and any(word in text for word in words)),
        _BY_STATUS.get(status),
    )
    if reason is None and not is_own and status in (400, 422):
        reason = Reason.UNSUPPORTED
    if reason is None:
        return None
    return Failure(reason, status, message_in(body), _retry_after(headers or {}))


def message_in(body: bytes) -> str:
    """Returns the message of an error, in the form of any API."""
    try:
        value = orjson.loads(body[:MOST_ERROR])
    except ValueError:
        return ""
    error = value.get("error") if isinstance(value, Mapping) else None
    found = error.get("message") if isinstance(error, Mapping) else error
    return found[:_MAX_MESSAGE] if isinstance(found, str) else ""


def pause_of(failure: Failure) -> int:
    """Returns for how many seconds a model is left alone."""
    seconds = _SECONDS[failure.reason]
    if failure.reason is Reason.RATE and failure.retry_after is not None:
        seconds = failure.retry_after
    return max(1, min(seconds, _MOST_SECONDS))


def _retry_after(headers: Mapping[str, str]) -> int | None:
    value = headers.get("retry-after", "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


# --- whether an answer has content ---


class Opening:
    """The beginning of an answer with status 200, which is held back until it has content."""

    def __init__(self, api: Api, content_type: str) -> None:
        self._api = api
        self._is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self.held: list[bytes] = []
        self._line = bytearray()
        self._size = 0

    def feed(self, piece: bytes) -> Failure | bool | None:
        """Returns True once it has content, the failure if it has none, and None while that is open."""
        self.held.append(piece)
        self._size += len(piece)
        if self._size > MOST_HELD:
            return True
        if not self._is_stream:
            return None
        self._line += piece
        while (end := self._line.find(b"\n")) >= 0:
            line = bytes(self._line[:end])
            del self._line[: end + 1]
            if line.startswith(b"data:") and (decided := judge_event(self._api, line[5:].strip())) is not None:
                return decided
        return None

    def end(self) -> Failure | bool:
        """Returns the decision at the end of the answer."""
        if self._is_stream:
            return Failure(Reason.EMPTY, 200, "the answer has no content")
        return _judge_document(self._api, b"".join(self.held))


def judge_event(api: Api, data: bytes) -> Failure | bool | None:
    """Returns True if an event of a stream has content, the failure that it reports, or None if it is neither."""
    if data == b"[DONE]":
        return Failure(Reason.EMPTY, 200, "the answer has no content")
    try:
        event = orjson.loads(data)
    except ValueError:
        return True
    if not isinstance(event, Mapping):
        return True
    if (failure := _failure_in(event)) is not None:
        return failure
    match api:
        case Api.ANTHROPIC:
            return _judge_anthropic(event)
        case Api.OPENAI_CHAT:
            return _judge_chat(event)
        case Api.OPENAI_RESPONSES:
            return _judge_responses(event)


def _judge_anthropic(event: Mapping[str, Any]) -> Failure | bool | None:
    kind = event.get("type")
    if kind in ("message_start", "ping", "content_block_stop"):
        return None
    if kind == "content_block_start":
        block = event.get("content_block")
        return None if isinstance(block, Mapping) and block.get("type") in ("text", "thinking") else True
    return _EMPTY if kind in ("message_delta", "message_stop") else True


def _judge_chat(event: Mapping[str, Any]) -> Failure | bool | None:
    choices = event.get("choices")
    if not isinstance(choices, list):
        return True
    ended = False
    for choice in choices:
        if not isinstance(choice, Mapping):
            return True
        delta = choice.get("delta")
        if isinstance(delta, Mapping) and any(value for name, value in delta.items() if name != "role"):
            return True
        ended |= choice.get("finish_reason") is not None
    return _EMPTY if ended else None


def _judge_responses(event: Mapping[str, Any]) -> Failure | bool | None:
    kind = event.get("type")
    if kind in ("response.created", "response.in_progress", "response.queued"):
        return None
    if kind in ("response.completed", "response.incomplete"):
        response = event.get("response")
        output = response.get("output") if isinstance(response, Mapping) else None
        return True if output else _EMPTY
    return True


def _judge_document(api: Api, body: bytes) -> Failure | bool:
    try:
        answer = orjson.loads(body)
    except ValueError:
        return True
    if not isinstance(answer, Mapping):
        return True
    if (failure := _failure_in(answer)) is not None:
        return failure
    match api:
        case Api.ANTHROPIC:
            return _EMPTY if answer.get("content") == [] else True
        case Api.OPENAI_CHAT:
            choices = answer.get("choices")
            messages = [each.get("message") for each in choices if isinstance(each, Mapping)] if choices else []
            has_content = any(
                isinstance(each, Mapping) and any(value for name, value in each.items() if name != "role")
                for each in messages
            )
            return True if has_content else _EMPTY
        case Api.OPENAI_RESPONSES:
            return _EMPTY if answer.get("output") == [] else True


_EMPTY: Final = Failure(Reason.EMPTY, 200, "the answer has no content")
_BY_ERROR: Final[Mapping[str, int]] = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "authentication_error": 401,
    "permission_error": 403,
    "billing_error": 402,
    "insufficient_quota": 402,
    "not_found_error": 404,
    "model_not_found": 404,
}


def _failure_in(event: Mapping[str, Any]) -> Failure | None:
    """Returns the failure that a provider reports in an answer with status 200."""
    inner = event.get("response")
    error = event.get("error") or (inner.get("error") if isinstance(inner, Mapping) else None)
    if not isinstance(error, Mapping):
        return None
    for name in ("code", "type"):
        value = error.get(name)
        status = value if isinstance(value, int) else _BY_ERROR.get(value) if isinstance(value, str) else None
        if status is not None and (failure := classify(status, orjson.dumps({"error": error}))) is not None:
            return failure
    return None


# --- models that are left alone ---


class Pauses:
    """Until when models are left alone. A model that was changed since is not.

    A pause is for everybody if the failure proves something about the model, and otherwise for one run.
    """

    def __init__(self, ticks: Callable[[], int]) -> None:
        """`ticks` returns the milliseconds of a monotonic clock."""
        self._ticks = ticks
        self._until: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        """Ticks, and the model's revision, by run (empty for all) and model."""

    def add(self, run: str, model: str, revision: int, failure: Failure) -> int:
        """Leave a model alone. Returns for how many milliseconds."""
        pause = pause_of(failure) * 1000
        key = ("" if failure.is_proven else run, model)
        self._until[key] = (self._ticks() + pause, revision)
        self._until.move_to_end(key)
        while len(self._until) > _REMEMBERED:
            self._until.popitem(last=False)
        return pause

    def is_paused(self, run: str, model: str, revision: int) -> bool:
        now = self._ticks()
        return any(
            now < until and known == revision
            for until, known in (self._until.get((who, model), (0, -1)) for who in ("", run))
        )
