"""Makes Claude Code's session file again from a thread's entries."""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from holdfast.harnesses.session_files import iso, written

_Line = tuple[bytes, str | None, tuple[str, ...]]
"""A line behind its first brace, but for what depends on the others; its id, and more ids that mean it."""


def rebuild(entries: Iterable[Mapping[str, Any]], workspace: str) -> tuple[str, bytes] | None:
    """The id and the file of a session with all that these entries tell, or None where they tell nothing."""
    lines: list[_Line] = []
    last = ""
    for entry in entries:
        payload = entry["payload"]
        kind = payload["type"].rpartition(".")[2]
        last = entry["id"]
        if kind == "compaction":
            lines = _compacted(payload, entry["ts"], lines)
            continue
        told = _line(kind, payload, entry["ts"])
        if told is not None:
            lines.append(told)
    if not lines:
        return None
    # An id of its own for each history: an older file of the session may still be there.
    digest = hashlib.blake2b(f"{workspace}\0{last}\0{len(lines)}".encode(), digest_size=16).digest()
    session = str(uuid.UUID(bytes=digest, version=4))
    common = {"isSidechain": False, "userType": "external", "cwd": workspace, "sessionId": session}
    head = orjson.dumps(common)[1:-1]
    parent = b"null"
    file = io.BytesIO()
    for number, (line, ident, _) in enumerate(lines):
        if ident is None:
            ident = str(uuid.UUID(int=int.from_bytes(digest, "big") ^ number, version=4))
            line = b'%b,"uuid":%b}' % (line[:-1], written(ident))
        file.write(b'{"parentUuid":%b,%b,%b\n' % (parent, head, line))
        parent = written(ident)
    return session, file.getvalue()


def _line(kind: str, payload: Mapping[str, Any], ts: int) -> _Line | None:
    record = payload.get("record")
    if kind not in ("user", "assistant", "tool"):
        return None
    role = "assistant" if kind == "assistant" else "user"
    if isinstance(record, dict) and isinstance(record.get("message"), dict):
        return _of_record(record, role, ts) if _can_be_written(record["message"]) else None
    if kind == "user":
        return _made({"role": "user", "content": str(payload.get("text"))}, ts)
    if kind == "tool" and payload.get("status") != "interrupted":
        block = {
            "type": "tool_result",
            "tool_use_id": str(payload.get("call")),
            "content": str(payload.get("result") or ""),
            "is_error": payload.get("status") != "ok",
        }
        return _made({"role": "user", "content": [block]}, ts)
    # What is left: a call without a result and an answer without a whole block, of which Claude Code itself keeps
    # nothing either. It closes an open call when it loads the session.
    return None


def _of_record(record: Mapping[str, Any], role: str, ts: int) -> _Line:
    timestamp = record.get("timestamp")
    line: dict[str, Any] = {
        "type": role,
        "message": record["message"],
        "timestamp": timestamp if isinstance(timestamp, str) else iso(ts),
    }
    ident, also = record.get("uuid"), record.get("uuids")
    if isinstance(ident, str):
        line["uuid"] = ident
    if "tool_use_result" in record:
        line["toolUseResult"] = record["tool_use_result"]
    return (
        written(line)[1:],
        ident if isinstance(ident, str) else None,
        tuple(each for each in also if isinstance(each, str)) if isinstance(also, list) else (),
    )


def _can_be_written(message: Mapping[str, Any]) -> bool:
    """Entries come from boxes, and Claude Code fails on a session with a message of a strange shape."""
    content = message.get("content")
    return isinstance(content, str) or (
        isinstance(content, list)
        and all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content)
    )


def _made(message: Mapping[str, Any], ts: int, **more: Any) -> _Line:
    return written({"type": "user", "message": message, "timestamp": iso(ts), **more})[1:], None, ()


def _compacted(payload: Mapping[str, Any], ts: int, lines: list[_Line]) -> list[_Line]:
    """The summary, and behind it those of the lines so far that were kept beside it."""
    record = payload.get("record")
    boundary = record.get("boundary") if isinstance(record, dict) else None
    metadata = boundary.get("compact_metadata") if isinstance(boundary, dict) else None
    preserved = metadata.get("preserved_messages") if isinstance(metadata, dict) else None
    uuids = preserved.get("all_uuids") or preserved.get("uuids") if isinstance(preserved, dict) else None
    kept = {ident for ident in uuids if isinstance(ident, str)} if isinstance(uuids, list) else set()
    summary = _made({"role": "user", "content": str(payload.get("summary") or "")}, ts, isCompactSummary=True)
    return [summary, *(line for line in lines if kept.intersection((line[1], *line[2])))]
