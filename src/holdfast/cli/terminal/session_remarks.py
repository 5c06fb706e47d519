"""What is said about a session on its thread, besides its runs: questions, answers, sleep and its end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.cli.terminal.agent_text import one_line, plain

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
    why = f": {one_line(str(payload['why']))}" if payload.get("why") else ""
    match name:
        case "hibernated":
            return "asleep, with its files saved; a prompt wakes it"
        case "running" if payload.get("from") == "restoring":
            return "awake again"
        case "terminated":
            return f"session terminated{why}"
        case "error":
            error = payload.get("error")
            said = one_line(str(error.get("message", ""))) if isinstance(error, Mapping) else ""
            return f"the session could not be started{f': {said}' if said else ''}"
        case "child_terminated":
            return f"session {payload.get('child')}, which belongs to this one, has ended{why}"
    return None
