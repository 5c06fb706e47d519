"""The requests that the model received, and the conversation in each, independent of the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from holdfast.api.model.models import Api
from holdfast.time_limit import time_limit

Role = Literal["system", "user", "assistant"]
Ending = Literal["answered", "refused", "cut", "gone"]

_PATIENCE: Final = 240.0


@dataclass(frozen=True, slots=True)
class Said:
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Thinking of earlier replies that was sent back with the history."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    call: str
    """Its id, which the result refers to."""
    name: str
    arguments: Any
    """As given: an object, or the free text of a custom tool."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a tool call."""

    call: str
    text: str
    is_error: bool = False


Turn = Said | Thought | Called | Answered


@dataclass(eq=False)
class Request:
    """One request to the model, and how it ended."""

    number: int
    """Counted from 1 over all requests of this server."""
    api: Api
    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    body: Mapping[str, Any]
    size: int = 0
    step: int | None = None
    """Which step of the script answered it. None for a side request, or if the script was exhausted."""
    script: str = ""
    """The marker of the script that answered it; empty for the default script."""
    _ended: Future[Ending] = field(default_factory=Future, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether it offers tools. Agents also ask for titles and summaries, and offer no tools then."""
        return bool(self.body.get("tools"))

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def credential(self) -> str | None:
        """The key that was sent with it."""
        bearer = self.headers.get("authorization", "")
        return bearer.removeprefix("Bearer ") if bearer else self.headers.get("x-api-key")

    @property
    def ending(self) -> Ending | None:
        """`answered` completely, `refused` by an error step, `cut` by the script, or `gone` if the client disconnected
        before.
        """
        return self._ended.result() if self._ended.done() else None

    async def ended(self, timeout: float = _PATIENCE) -> Ending:
        async with time_limit(timeout):
            return await asyncio.shield(asyncio.wrap_future(self._ended))

    def end(self, how: Ending) -> None:
        """Called by the model server."""
        if not self._ended.done():
            self._ended.set_result(how)

    # --- the conversation ---

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """Everything that was said, called and answered, oldest first."""
        return tuple(turn for turn in _READERS[self.api](self.body) if not isinstance(turn, Said) or turn.text)

    @property
    def system(self) -> str:
        return "\n".join(turn.text for turn in self.turns if isinstance(turn, Said) and turn.role == "system")

    @property
    def user_texts(self) -> list[str]:
        return [turn.text for turn in self.turns if isinstance(turn, Said) and turn.role == "user"]

    @property
    def assistant_texts(self) -> list[str]:
        return [turn.text for turn in self.turns if isinstance(turn, Said) and turn.role == "assistant"]

    @property
    def opening(self) -> list[str]:
        """What the user said before the model said or did anything."""
        texts = []
        for turn in self.turns:
            if isinstance(turn, Said) and turn.role == "user":
                texts.append(turn.text)
            elif not isinstance(turn, Said) or turn.role == "assistant":
                break
        return texts

    @property
    def thoughts(self) -> list[str]:
        return [turn.text for turn in self.turns if isinstance(turn, Thought)]

    @property
    def calls(self) -> list[Called]:
        return [turn for turn in self.turns if isinstance(turn, Called)]

    @property
    def results(self) -> list[Answered]:
        return [turn for turn in self.turns if isinstance(turn, Answered)]

    @property
    def open_calls(self) -> list[Called]:
        """Calls without a result. Real APIs refuse such a history."""
        answered = {result.call for result in self.results}
        return [call for call in self.calls if call.call not in answered]

    @property
    def complaint(self) -> str | None:
        """Why real APIs would refuse this conversation: a call without a result, or a result without its call."""
        if self.open_calls:
            return f"no result follows the call {self.open_calls[0].call} of {self.open_calls[0].name}"
        if self.body.get("previous_response_id") is not None:
            return None  # the calls are in a part of the conversation that was not sent again
        made = {call.call for call in self.calls}
        lost = next((result for result in self.results if result.call not in made), None)
        return None if lost is None else f"the result of {lost.call} follows no such call"

    def result_of(self, call: Called) -> Answered | None:
        return next((result for result in self.results if result.call == call.call), None)

    def saw(self, words: str) -> bool:
        """Returns whether the conversation contains these words, in a message, a call or a result."""
        return any(words in _words(turn) for turn in self.turns)


def _words(turn: Turn) -> str:
    if not isinstance(turn, Called):
        return turn.text
    arguments = turn.arguments if isinstance(turn.arguments, str) else "\n".join(_strings(turn.arguments))
    return f"{turn.name}\n{arguments}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    else:
        yield str(value)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    return (one for one in value if isinstance(one, Mapping)) if isinstance(value, list) else iter(())


def _text_of(content: Any) -> str:
    """Returns the text of content that is a string or a list of parts."""
    if isinstance(content, str):
        return content
    parts: Iterable[Mapping[str, Any]] = _objects(content)
    return "\n".join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))


def _texts_of(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [str(part["text"]) for part in _objects(content) if isinstance(part.get("text"), str)]


def _arguments_of(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _role_of(name: Any) -> Role:
    return "system" if name in ("system", "developer") else "assistant" if name == "assistant" else "user"


def _read_chat(body: Mapping[str, Any]) -> Iterator[Turn]:
    for message in _objects(body.get("messages")):
        if message.get("role") == "tool":
            yield Answered(str(message.get("tool_call_id")), _text_of(message.get("content")))
            continue
        thinking = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thinking, str):
            yield Thought(thinking)
        for text in _texts_of(message.get("content")):
            yield Said(_role_of(message.get("role")), text)
        for call in _objects(message.get("tool_calls")):
            function = call.get("function") or {}
            yield Called(str(call.get("id")), str(function.get("name")), _arguments_of(function.get("arguments")))


def _read_responses(body: Mapping[str, Any]) -> Iterator[Turn]:
    yield Said("system", str(body.get("instructions") or ""))
    given = body.get("input")
    if isinstance(given, str):
        yield Said("user", given)
    for item in _objects(given):
        match item.get("type", "message"):
            case "message":
                for text in _texts_of(item.get("content")):
                    yield Said(_role_of(item.get("role")), text)
            case "reasoning":
                yield Thought(_text_of(item.get("summary")))
            case "function_call":
                yield Called(str(item.get("call_id")), str(item.get("name")), _arguments_of(item.get("arguments")))
            case "custom_tool_call":
                yield Called(str(item.get("call_id")), str(item.get("name")), item.get("input"))
            case "function_call_output" | "custom_tool_call_output":
                yield Answered(str(item.get("call_id")), _text_of(item.get("output")))


def _read_messages(body: Mapping[str, Any]) -> Iterator[Turn]:
    yield Said("system", _text_of(body.get("system")))
    for message in _objects(body.get("messages")):
        role, content = _role_of(message.get("role")), message.get("content")
        if isinstance(content, str):
            yield Said(role, content)
        for block in _objects(content):
            match block.get("type"):
                case "text":
                    yield Said(role, str(block.get("text")))
                case "thinking":
                    yield Thought(str(block.get("thinking")))
                case "tool_use":
                    yield Called(str(block.get("id")), str(block.get("name")), block.get("input"))
                case "tool_result":
                    text = _text_of(block.get("content"))
                    yield Answered(str(block.get("tool_use_id")), text, block.get("is_error") is True)


_READERS: Final = {
    Api.OPENAI_CHAT: _read_chat,
    Api.OPENAI_RESPONSES: _read_responses,
    Api.ANTHROPIC: _read_messages,
}
