"""What an ACP agent did on a thread, told again: its own session lives where the agent keeps it, and nowhere else."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from holdfast.harnesses.acp.transcript import MAX_TRANSCRIPT, done, said


def rebuild(entries: Iterable[Mapping[str, Any]]) -> tuple[str, bytes] | None:
    """The agent's last session, and the transcript of all; None where there is nothing to tell."""
    session = ""
    parts: deque[str] = deque()
    size = 0
    for entry in entries:
        payload = entry["payload"]
        kind = str(payload["type"]).rpartition(".")[2]
        if kind == "session":
            session = str(payload["session"])
            continue
        part = _part(kind, payload)
        parts.append(part)
        size += len(part)
        while size > 2 * MAX_TRANSCRIPT and len(parts) > 1:  # only its end is ever told
            size -= len(parts.popleft())
    text = "".join(parts)
    return (session or "lost", text.encode("utf-8", "replace")) if text else None


def _part(kind: str, payload: Mapping[str, Any]) -> str:
    if kind == "user":
        return said("User", str(payload["text"]))
    if kind == "assistant":
        return said("You", str(payload["text"])) if payload.get("text") else ""
    if kind == "tool":
        arguments = orjson.dumps(payload.get("arguments") or {}, default=str).decode()
        return done(str(payload["name"]), arguments, str(payload.get("result") or ""), str(payload["status"]))
    return ""
