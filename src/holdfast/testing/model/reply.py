"""A reply of the model before it is formatted for an API, and the pieces in which it is streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from holdfast.testing.model.steps import Step
from holdfast.testing.model.tools import Chosen

Part = Literal["opening", "words", "calls", "closing"]


@dataclass(frozen=True, slots=True)
class Reply:
    model: str
    """As the request named it."""
    step: Step
    calls: tuple[Chosen, ...]
    token: str
    """Makes the ids in this reply unique."""
    now: int
    """Seconds since the epoch."""

    def deltas(self, text: str) -> Iterator[str]:
        size = max(self.step.delta_size, 1)
        return (text[start : start + size] for start in range(0, len(text), size))

    @property
    def deltas_of_words(self) -> int:
        """How many deltas the thinking and the text need."""
        return sum(1 for words in (self.step.thinking, self.step.text) for _ in self.deltas(words))


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are sent at once."""

    data: bytes
    part: Part
    is_delta: bool = False
    """Whether it is part of the thinking, the text or the arguments of a call. Gates and cuts count these."""


class Wire(Protocol):
    """How an API formats a reply. All functions are pure."""

    @staticmethod
    def stream(reply: Reply) -> Iterator[Piece]: ...

    @staticmethod
    def whole(reply: Reply) -> Mapping[str, Any]: ...

    @staticmethod
    def error(status: int, message: str) -> Mapping[str, Any]: ...

    @staticmethod
    def broken(reply: Reply, message: str) -> bytes:
        """Returns the event that ends a broken stream."""


_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "api_error",
    529: "overloaded_error",
}


def error_type(status: int) -> str:
    return _ERROR_TYPES.get(status, "invalid_request_error")


def event(data: Mapping[str, Any] | str, name: str | None = None) -> bytes:
    """A server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{f'event: {name}{chr(10)}' if name else ''}data: {text}\n\n".encode()


def arguments_text(call: Chosen) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
