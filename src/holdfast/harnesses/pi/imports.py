"""Reads a session file of pi: a tree of messages, of which the branch that ends last is the conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.harnesses.imports import ImportedSession, Record, lines_of, not_a_session, read_with, time_of
from holdfast.harnesses.pi.reader import Reader


def read_session(data: bytes) -> ImportedSession:
    records = list(lines_of("pi", data))
    if not records or records[0].get("type") != "session":
        raise not_a_session("pi", "it does not begin with a session")
    return read_with(Reader(), _records(_branch(records[1:])))


def _branch(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records from the root to the last one."""
    known = {record["id"]: record for record in records if isinstance(record.get("id"), str)}
    if not known:
        return records
    chosen: list[dict[str, Any]] = []
    at: Any = next(record for record in reversed(records) if isinstance(record.get("id"), str))["id"]
    while isinstance(at, str) and at in known:
        record = known.pop(at)  # each once, also in a circle
        chosen.append(record)
        at = record.get("parentId")
    return chosen[::-1]


def _records(branch: list[dict[str, Any]]) -> Iterator[tuple[int, Record]]:
    """Yields what pi would have printed. A compaction comes before what it kept, as the model sees it."""
    compacted = next((at for at in range(len(branch) - 1, -1, -1) if branch[at].get("type") == "compaction"), None)
    if compacted is not None:
        record = branch[compacted]
        kept = next(
            (at for at in range(compacted) if branch[at].get("id") == record.get("firstKeptEntryId")), compacted
        )
        result = {"summary": str(record.get("summary") or ""), "tokensBefore": record.get("tokensBefore")}
        yield time_of(record.get("timestamp")), {"type": "compaction_end", "result": result}
        branch = [*branch[kept:compacted], *branch[compacted + 1 :]]
    for record in branch:
        message = record.get("message")
        if record.get("type") == "message" and isinstance(message, dict):
            yield time_of(record.get("timestamp")), {"type": "message_end", "message": message}
