"""Reads what a model's answer used, beside the bytes that are forwarded. Pure; everything in an answer is untrusted.

An answer is a stream of server-sent events or one JSON document. Only what a count needs is kept: the line that is
incomplete, or the document up to a limit. Numbers that cannot be are ignored, so a provider cannot report less than
nothing. An answer without usage is estimated by its size, and within a budget by the most that it may have taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from holdfast.api.model.models import Api
from holdfast.egress.models.failover import judge_event
from holdfast.threads.model_events import MOST_TOKENS, Usage, nanos_of

BYTES_PER_TOKEN: Final = 4
"""Of text and of JSON around it, about. Only for estimates."""
EXPECTED_OUTPUT: Final = 1000
"""Tokens that a call holds for an answer that has not come, and is charged for one that nobody waited for."""
ANY_SIZE: Final = MOST_TOKENS * BYTES_PER_TOKEN
"""Bytes of a request that may hold as much as fits in a model."""
_TOKENS_PER_SECOND: Final = 200
"""The most that a model makes, about."""
_BYTES_AROUND: Final = 250
"""Of one event, around its text."""
_MAX_LINE: Final = 16 * 1024 * 1024
_MAX_DOCUMENT: Final = 16 * 1024 * 1024
_MAX_MODEL: Final = 200
_USAGE: Final = b'"usage":'
_MODEL: Final = b'"model":'
_ERROR: Final = b'"error"'
_CONTENT: Final = ("content", "choices", "output")
"""What a document has content in, by API."""
_NO_USAGE: Final = (b'"usage":null', b'"usage": null')


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known about an answer."""

    usage: Usage | None
    """None if the answer reported none."""
    nanos: int | None = None
    """The cost that the provider reports, in billionths of a dollar."""
    output_estimate: int = 0
    """Tokens of output by the size of what has come."""
    model: str | None = None
    """The provider's name of the model that answered. An agent may ask for another one than the run's."""
    has_error: bool = False
    """Whether the provider reports an error in an answer with status 200, and not all that it used."""
    has_content: bool = True


class Ending(StrEnum):
    """How an answer ended."""

    WHOLE = "whole"
    CUT = "cut"
    """By the provider."""
    LEFT = "left"
    """The agent disconnected."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, for accounting."""

    status: int
    """Of the provider; 0 if it sent none."""
    sent: int
    """Bytes of the request's body."""
    ms: int
    ending: Ending
    measured: Measured
    is_opaque: bool = False
    """Whether neither the size of the request nor when the agent left says what it took."""

    @property
    def shown_status(self) -> int:
        """499 if the agent disconnected first, 502 if the provider broke off."""
        if self.ending is Ending.LEFT:
            return 499
        return 502 if self.ending is Ending.CUT else self.status


def charged_usage(answer: Answer, context_window: int, most_output: int | None = None) -> tuple[Usage, bool]:
    """Returns the usage that an answer is charged for, and whether it is an estimate.

    `most_output` is given within a budget. Then what is unknown costs the most that it may be: otherwise an agent
    would stay below its budget by hiding what it uses.

    An error costs nothing, also one that is all of an answer with status 200; after content, it is where the provider
    broke off. An answer that was not read to its end costs what has been seen of it; where the agent left,
    at least what answers usually take: otherwise an agent that leaves before the usage comes would pay nothing.
    """
    measured, ending = answer.measured, answer.ending
    known = measured.usage
    if answer.status >= 400 or (not answer.status and ending is not Ending.LEFT):
        return known or Usage(), False
    if measured.has_error and ending is Ending.WHOLE:
        if not measured.has_content:
            return known or Usage(), False
        ending = Ending.CUT
    if known is not None and ending is Ending.WHOLE:
        return known, False
    output = measured.output_estimate
    if ending is Ending.LEFT:
        output = max(output, EXPECTED_OUTPUT)
    sent = answer.sent
    if most_output is not None:
        is_over = ending is Ending.WHOLE or answer.is_opaque
        made = most_output if is_over else min(answer.ms * _TOKENS_PER_SECOND // 1000, most_output)
        output = max(output, made)
        sent = ANY_SIZE if answer.is_opaque else sent
    if known is not None and known.input + known.cache_read + known.cache_write:
        return replace(known, output=max(known.output, output)), True
    return Usage(input=min(estimate_input(sent), context_window), output=output), True


class UsageReader:
    """For one answer: feed it every piece, in order, and ask at the end or where the answer was cut."""

    def __init__(self, api: Api, content_type: str) -> None:
        self._api = api
        self._is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._held = bytearray()
        self._overlong = False
        self._usage: Usage | None = None
        self._nanos: int | None = None
        self._model: str | None = None
        self._bytes = 0
        self._events = 0
        self._has_error = False
        self._has_content = False

    def feed(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if not self._is_stream:
            if len(self._held) + len(piece) <= _MAX_DOCUMENT:
                self._held += piece
            else:
                self._overlong = self._has_content = True
            return
        end = piece.rfind(b"\n")
        if end < 0:
            self._hold(piece)
            return
        head = piece[: end + 1]
        if self._held or self._overlong:
            first, _, head = head.partition(b"\n")
            self._hold(first)
            if not self._overlong:
                self._scan(bytes(self._held))
            self._held.clear()
            self._overlong = False
        self._scan(head)
        self._hold(piece[end + 1 :])

    def measure(self) -> Measured:
        """Returns what is known so far."""
        if self._held and not self._overlong:
            if self._is_stream:
                self._scan(bytes(self._held))  # a stream need not end with a line end
            else:
                self._take(bytes(self._held))
                self._look_at_document(bytes(self._held))
        text = self._bytes - self._events * _BYTES_AROUND
        size = max(self._events, text // BYTES_PER_TOKEN)  # an event has at least one token
        # Only Anthropic reports usage before the end, so elsewhere it is that of the failed answer too.
        is_final = self._usage is not None and self._api is not Api.ANTHROPIC
        return Measured(
            self._usage,
            self._nanos,
            min(size, MOST_TOKENS),
            self._model,
            has_error=self._has_error and not is_final,
            has_content=self._has_content,
        )

    def _hold(self, piece: bytes) -> None:
        if len(self._held) + len(piece) > _MAX_LINE:
            self._overlong = self._has_content = True
            self._held.clear()
        elif not self._overlong:
            self._held += piece

    def _scan(self, lines: bytes) -> None:
        """Find events with usage. Most have none, so the lines are not even split."""
        self._events += lines.count(b"data:")
        if not self._has_content or _ERROR in lines:
            self._look(lines)
        if self._model is None and (start := lines.find(_MODEL)) >= 0:
            line = lines[lines.rfind(b"\n", 0, start) + 1 :].partition(b"\n")[0]
            if line.startswith(b"data:"):
                self._take(line[5:])
        if _USAGE not in lines:
            return
        for line in lines.split(b"\n"):
            if line.startswith(b"data:") and _USAGE in line and not _is_null(line):
                self._take(line[5:])

    def _look(self, lines: bytes) -> None:
        """See whether events have content, and whether they report an error. Once content has come, only for errors."""
        for line in lines.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if _ERROR in data and _reports_error(_parsed(data)):
                self._has_error = True
            elif not self._has_content:
                self._has_content = judge_event(self._api, data) is True

    def _look_at_document(self, document: bytes) -> None:
        value = _parsed(document)
        self._has_error = _reports_error(value)
        self._has_content = not isinstance(value, Mapping) or any(value.get(name) for name in _CONTENT)

    def _take(self, document: bytes) -> None:
        for holder in _holders(_parsed(document)):
            found, model = holder.get("usage"), holder.get("model")
            is_named = isinstance(found, Mapping) or self._model is None
            if is_named and isinstance(model, str) and 0 < len(model) <= _MAX_MODEL:
                self._model = model
            if isinstance(found, Mapping):
                self._usage = _merge(self._usage, read_usage(self._api, found))
                if (nanos := nanos_of(found.get("cost"))) is not None:
                    self._nanos = nanos


def read_usage(api: Api, usage: Mapping[str, Any]) -> Usage:
    """Returns the usage of an answer in one shape, whatever API it came by."""
    if api is Api.ANTHROPIC:
        kept = usage.get("cache_creation")
        write = _count(usage, "cache_creation_input_tokens")
        hour = _count(kept, "ephemeral_1h_input_tokens") if isinstance(kept, Mapping) else 0
        return Usage(
            input=_count(usage, "input_tokens"),
            output=_count(usage, "output_tokens"),
            cache_read=_count(usage, "cache_read_input_tokens"),
            cache_write=write,
            cache_write_1h=min(hour, write),
        )
    before, after = ("prompt", "completion") if api is Api.OPENAI_CHAT else ("input", "output")
    given, made = _count(usage, f"{before}_tokens"), _count(usage, f"{after}_tokens")
    input_details, output_details = usage.get(f"{before}_tokens_details"), usage.get(f"{after}_tokens_details")
    read = _count(input_details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens")
    write = _count(input_details, "cache_write_tokens")
    # Some providers count reasoning in the total alone.
    output = max(made, _count(usage, "total_tokens") - given)
    read = min(read, given)
    write = min(write, given - read)
    return Usage(
        input=given - read - write,
        output=output,
        cache_read=read,
        cache_write=write,
        reasoning=min(_count(output_details, "reasoning_tokens"), output),
    )


def estimate_input(size: int) -> int:
    """Returns the tokens of a request by the size of its body, about."""
    return min(size // BYTES_PER_TOKEN, MOST_TOKENS)


def _parsed(document: bytes) -> object:
    """Returns None for what is not JSON."""
    try:
        return orjson.loads(document)
    except ValueError:
        return None


def _reports_error(value: object) -> bool:
    """Returns whether an event or document is an error, in the form of any API. Most have an `error` that is null."""
    if not isinstance(value, Mapping):
        return False
    inner = value.get("response")
    is_inside = isinstance(inner, Mapping) and bool(inner.get("error"))
    return value.get("type") == "error" or bool(value.get("error")) or is_inside


def _holders(value: object) -> list[Mapping[str, Any]]:
    """Returns where an event or document may have its usage: itself, its `message` (Anthropic), its `response`."""
    if not isinstance(value, Mapping):
        return []
    inner = [value.get("message"), value.get("response")]
    return [value, *(each for each in inner if isinstance(each, Mapping))]


def _merge(before: Usage | None, after: Usage) -> Usage:
    """Counts of a stream only grow. A later event may leave some out."""
    if before is None:
        return after
    names = Usage.__slots__
    return replace(before, **{name: max(getattr(before, name), getattr(after, name)) for name in names})


def _is_null(line: bytes) -> bool:
    return any(line.count(each) == line.count(_USAGE) for each in _NO_USAGE)


def _count(holder: object, name: str) -> int:
    """Returns a number of tokens, or 0 for what cannot be one."""
    value = holder.get(name) if isinstance(holder, Mapping) else None
    return min(value, MOST_TOKENS) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
