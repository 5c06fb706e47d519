"""Reads a session file of Claude Code: a tree of messages, of which the branch that ends last is the conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from holdfast.harnesses.claude.reader import Reader
from holdfast.harnesses.imports import ImportedSession, Record, lines_of, not_a_session, read_with, time_of

_MESSAGES: Final = ("user", "assistant")


def read_session(data: bytes) -> ImportedSession:
    records = [record for record in lines_of("claude", data) if not record.get("isSidechain")]
    if not any(record.get("type") in _MESSAGES and "sessionId" in record for record in records):
        raise not_a_session("claude", "it has no messages of a session")
    return read_with(Reader(), _records(_branch(records)))


def _branch(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records from the root to the last message. A compaction begins a new root, and names the old one."""
    known = {record["uuid"]: record for record in records if isinstance(record.get("uuid"), str)}
    chosen: list[dict[str, Any]] = []
    ends = [record["uuid"] for record in records if record.get("type") in _MESSAGES and record.get("uuid") in known]
    at: Any = ends[-1] if ends else None
    while isinstance(at, str) and at in known:
        record = known.pop(at)
        chosen.append(record)
        at = record.get("parentUuid") or record.get("logicalParentUuid")
    return chosen[::-1]


def _records(branch: list[dict[str, Any]]) -> Iterator[tuple[int, Record]]:
    """Yields what Claude Code would have printed."""
    for line in branch:
        ts = time_of(line.get("timestamp"))
        kind, message = line.get("type"), line.get("message")
        if kind == "system" and line.get("subtype") == "compact_boundary":
            metadata = line.get("compactMetadata")
            yield ts, {"type": "system", "subtype": "compact_boundary", "compact_metadata": metadata}
        elif kind in _MESSAGES and isinstance(message, dict) and not line.get("isApiErrorMessage"):
            record: dict[str, Any] = {"type": kind, "message": message, "uuid": line.get("uuid")}
            if isinstance(line.get("timestamp"), str):
                record["timestamp"] = line["timestamp"]
            if "toolUseResult" in line:
                record["tool_use_result"] = line["toolUseResult"]
            if line.get("isCompactSummary"):
                record["isSynthetic"] = True
            yield ts, record
