"""Calls of code in a box to its host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    execution: str


@dataclass(frozen=True, slots=True)
class Submission:
    """The result of a call that ends its execution."""

    values: Mapping[str, Any]


Handler = Callable[[Call], Awaitable[Any]]
"""Carries out a call. `value_codec` encodes its result; an exception is raised in the box."""


@dataclass(frozen=True, slots=True)
class ToolName:
    """A function of the host, as code in a box sees it."""

    name: str
    doc: str = ""
