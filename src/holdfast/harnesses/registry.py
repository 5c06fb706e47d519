"""All harnesses by name. A new one is one folder and one line here. Each is imported on first use."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Final

from holdfast.api.errors.agents import UnknownAgent

if TYPE_CHECKING:
    from holdfast.harnesses.harness import Harness

_HARNESSES: Final = {
    "pi": "holdfast.harnesses.pi:Pi",
    "claude": "holdfast.harnesses.claude:Claude",
    "codex": "holdfast.harnesses.codex:Codex",
    "opencode": "holdfast.harnesses.opencode:OpenCode",
}
_BY_COMMAND: Final = {"acp": "holdfast.harnesses.acp:Acp"}
"""Harnesses that are named by a kind and a command: `acp:opencode acp`."""
_MOST: Final = 256


def names() -> tuple[str, ...]:
    """Returns the names of agents that need no command."""
    return tuple(_HARNESSES)


def kinds() -> tuple[str, ...]:
    """Returns the form of names with a command."""
    return tuple(f"{kind}:COMMAND" for kind in _BY_COMMAND)


def entry_prefixes() -> tuple[str, ...]:
    """Returns the prefixes of the types of agents' entries: `pi` of `pi.assistant`. Imports no harness."""
    return (*_HARNESSES, *_BY_COMMAND)


@functools.lru_cache(_MOST)
def find(name: str) -> Harness:
    """Raises `UnknownAgent`."""
    kind, by_command, command = name.partition(":")
    known = (_BY_COMMAND if by_command else _HARNESSES).get(kind)
    if known is None:
        raise UnknownAgent(f"there is no agent {name!r}", hint=f"use one of {', '.join((*names(), *kinds()))}")
    module, _, made = known.partition(":")
    harness: Harness = getattr(importlib.import_module(module), made)(*([command] if by_command else []))
    return harness
