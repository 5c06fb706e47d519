"""What code in a box asks of its host, and how that is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """What code in a box asks of its host."""

    id: str
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    execution: str


@dataclass(frozen=True, slots=True)
class Submission:
    """What a handler answers to a call that ends its execution."""

    values: Mapping[str, Any]


Handler = Callable[[Call], Awaitable[Any]]
"""Carries a call out. Its result travels by `value_codec`; an exception becomes one in the box."""


@dataclass(frozen=True, slots=True)
class ToolName:
    """A function of the host's, as code in a box sees it."""

    name: str
    doc: str = ""
