"""What is said about a session on its thread, besides its runs: questions, answers, sleep and its end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.cli.terminal.agent_text import one_line, plain
from holdfast.exports.marks import describe

_TOLD: Final = frozenset({"hibernated", "running", "terminated", "error", "child_terminated"})
"""Changes that matter to whoever follows a session."""
_EXPIRED: Final = "__expired__"
_MOST_OPTIONS: Final = 20


def asked(payload: Mapping[str, Any]) -> str:
    """Returns a question of an agent, with the answers that it suggests."""
    options = payload.get("options")
    known = [one_line(str(each)) for each in options[:_MOST_OPTIONS]] if isinstance(options, list) else []
    suggested = f" ({', '.join(known)})" if known else ""
    return " ".join(plain(str(payload.get("text", ""))).split()) + suggested  # all of it: somebody has to decide


def answered(payload: Mapping[str, Any]) -> str:
    said = payload.get("answer")
    return "nobody answered in time" if said == _EXPIRED else f"answered: {one_line(str(said))}"


def changed(name: str, payload: Mapping[str, Any]) -> str | None:
    """Returns what a change of a session means for whoever follows it, or None if that is nothing."""
    said = describe(f"session.{name}", payload) if name in _TOLD else None
    if said is None:
        return None
    return f"{one_line(said)}; a prompt wakes it" if name == "hibernated" else one_line(said)
