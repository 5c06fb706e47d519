"""The steps of scripts: how the model replies to one request. Also parsed from JSON, for scripts in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast.testing.model.gates import Gate

if TYPE_CHECKING:
    from holdfast.testing.model.requests import Request

FOR_EVER: Final = -1


@dataclass(frozen=True, slots=True)
class Bash:
    """Run a command with the shell tool that the request offers."""

    command: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write a file with a tool that the request offers for that, or otherwise with its shell tool."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace a text in a file with a tool that the request offers for that, or otherwise with its shell tool."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Tool:
    """Call a tool by name with these arguments, even if the request does not offer it."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """A string is sent as it is: broken JSON, or the input of a tool that takes free text."""


Call = Bash | Write | Edit | Tool


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts that a reply reports. `input` excludes tokens read from or written to a cache."""

    input: int = 100
    output: int = 10
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One reply: the thinking, then the text, then the calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    stop: Literal["end", "length"] = "end"
    """With `length`, the reply reports that the token limit cut it off."""
    usage: Usage = Usage()
    error: int | None = None
    """Reply with this HTTP status instead."""
    message: str = ""
    """The message of the error."""
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    """How many requests get this reply; `FOR_EVER` for all."""
    cut: bool | int = False
    """Close the connection during the stream: True after the last word, or after this many deltas."""
    broken: str = ""
    """End the stream with the API's error event and this message, where `cut` would or just before the end."""
    hang: float = 0
    """Seconds of silence after the first delta."""
    delay: float = 0
    """Seconds before the first byte."""
    delta_delay: float = 0
    """Seconds after each delta."""
    delta_size: int = 12
    """Characters in each delta."""
    gates: tuple[Gate, ...] = ()


Scripted = Step | Mapping[str, Any] | str | Callable[["Request"], "Step | Mapping[str, Any] | str"]
"""A step in any form that scripts accept: a `Step`, its JSON, a text, or a function of the request."""

_PLAIN: Final = ("text", "thinking", "stop", "error", "message", "headers", "times", "cut", "broken", "hang", "delay")
_CALLS: Final = ("bash", "write", "edit", "tool")
_OTHER: Final = ("calls", "usage", "gate", "gates", "delta_delay", "delta_size")


def text(words: str, **more: Any) -> Step:
    return Step(text=words, **more)


def bash(command: str, **more: Any) -> Step:
    return Step(calls=(Bash(command),), **more)


def write(path: str, content: str, **more: Any) -> Step:
    return Step(calls=(Write(path, content),), **more)


def edit(path: str, old: str, new: str, **more: Any) -> Step:
    return Step(calls=(Edit(path, old, new),), **more)


def tool(name: str, arguments: Mapping[str, Any] | str | None = None, **more: Any) -> Step:
    return Step(calls=(Tool(name, {} if arguments is None else arguments),), **more)


def error(status: int, message: str = "", **more: Any) -> Step:
    return Step(error=status, message=message, **more)


def held(step: Step, *gates: Gate) -> Step:
    """Returns the same step, held at these gates."""
    return replace(step, gates=(*step.gates, *gates))


def step_of(given: Step | Mapping[str, Any] | str) -> Step:
    """A step as JSON has it:

    `{"text": "done"}`, `{"bash": "ls"}`, `{"write": {"path": "a", "content": "b"}}`,
    `{"edit": {"path": "a", "old": "b", "new": "c"}}`, `{"tool": {"name": "x", "arguments": {}}}`,
    `{"calls": [{"bash": "ls"}, …]}`, `{"error": 429, "times": 3, "headers": {"retry-after": "0"}}`,
    and beside them any field of `Step`; `usage` may be `[input, output]`, a gate is `{"name": "g", "at": 3}`.
    """
    if isinstance(given, Step):
        return given
    if isinstance(given, str):
        return Step(text=given)
    unknown = set(given) - {*_PLAIN, *_CALLS, *_OTHER}
    if unknown:
        known = ", ".join(sorted((*_PLAIN, *_CALLS, *_OTHER)))
        raise ValueError(f"unknown fields in a step: {', '.join(sorted(unknown))}; use {known}")
    fields: dict[str, Any] = {name: given[name] for name in (*_PLAIN, "delta_delay", "delta_size") if name in given}
    calls = [_call_of(name, given[name]) for name in _CALLS if name in given]
    calls += [_call_of(name, value) for one in given.get("calls", ()) for name, value in one.items()]
    gates = given.get("gates", [given["gate"]] if "gate" in given else [])
    return Step(**fields, calls=tuple(calls), usage=_usage_of(given.get("usage")), gates=tuple(map(_gate_of, gates)))


def _call_of(name: str, value: Any) -> Call:
    match name:
        case "bash":
            return Bash(value)
        case "write":
            return Write(value["path"], value["content"])
        case "edit":
            return Edit(value["path"], value["old"], value["new"])
        case "tool":
            return Tool(value["name"], value.get("arguments", {}))
    raise ValueError(f"unknown call {name!r}: use one of {', '.join(_CALLS)}")


def _usage_of(given: Any) -> Usage:
    if given is None:
        return Usage()
    if isinstance(given, Usage):
        return given
    return Usage(*given) if isinstance(given, Sequence) else Usage(**given)


def _gate_of(given: Any) -> Gate:
    return given if isinstance(given, Gate) else Gate(given.get("at", "start"), name=given.get("name", ""))
