"""Rebuilds a transcript of an ACP agent's work from a thread. Only the agent itself has its session."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from holdfast.harnesses.acp.transcript import MAX_TRANSCRIPT, done, said


def rebuild(entries: Iterable[Mapping[str, Any]]) -> tuple[str, bytes] | None:
    """Returns the agent's last session and the transcript, or None if there is nothing to continue."""
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
        while size > 2 * MAX_TRANSCRIPT and len(parts) > 1:  # only its end is used
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
