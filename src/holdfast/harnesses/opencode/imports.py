"""Reads a session of OpenCode, as `opencode export` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.harnesses.imports import ImportedSession, Record, not_a_session, read_with, time_of
from holdfast.harnesses.opencode.reader import Reader


def read_session(data: bytes) -> ImportedSession:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise not_a_session("opencode", "it is not JSON") from None
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list):
        raise not_a_session("opencode", "it has no messages")
    return read_with(Reader(), _records(messages))


def _records(messages: list[Any]) -> Iterator[tuple[int, Record]]:
    """Yields the events that OpenCode would have sent."""
    for message in messages:
        info, parts = (message.get("info"), message.get("parts")) if isinstance(message, dict) else (None, None)
        if not isinstance(info, dict) or not isinstance(parts, list):
            continue
        given = info.get("time")
        times: dict[str, Any] = given if isinstance(given, dict) else {}
        ts = time_of(times.get("created"))
        begun = {**info, "time": {name: value for name, value in times.items() if name != "completed"}}
        yield ts, {"type": "message.updated", "properties": {"info": begun}}
        for part in parts:
            if isinstance(part, dict):
                yield ts, {"type": "message.part.updated", "properties": {"part": part}}
        if info.get("role") != "user":
            ended = {**info, "time": {"completed": ts, **times}}
            yield time_of(times.get("completed"), ts), {"type": "message.updated", "properties": {"info": ended}}
