"""Rebuilds the session file of Claude Code from the entries of a thread."""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from holdfast.harnesses.session_files import iso, written

_Line = tuple[bytes, str | None, tuple[str, ...]]
"""A line without its first brace and the fields that depend on other lines; its id, and other ids for it."""


def rebuild(entries: Iterable[Mapping[str, Any]], workspace: str) -> tuple[str, bytes] | None:
    """Returns the id and the file of a session with these entries, or None if there is nothing in them."""
    lines: list[_Line] = []
    last = ""
    for entry in entries:
        payload = entry["payload"]
        kind = payload["type"].rpartition(".")[2]
        last = entry["id"]
        if kind == "compaction":
            lines = _compacted(payload, entry["ts"], lines)
            continue
        line_of_entry = _line(kind, payload, entry["ts"])
        if line_of_entry is not None:
            lines.append(line_of_entry)
    if not lines:
        return None
    # Each history gets its own id, because an older file of the session may still exist.
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
    # The rest are calls without a result and answers without a complete block. Claude Code does not keep these either,
    # and closes an open call when it loads the session.
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
    """Returns whether a message is well-formed. Entries come from boxes, and Claude Code fails on malformed ones."""
    content = message.get("content")
    return isinstance(content, str) or (
        isinstance(content, list)
        and all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content)
    )


def _made(message: Mapping[str, Any], ts: int, **more: Any) -> _Line:
    return written({"type": "user", "message": message, "timestamp": iso(ts), **more})[1:], None, ()


def _compacted(payload: Mapping[str, Any], ts: int, lines: list[_Line]) -> list[_Line]:
    """Returns the summary, followed by the lines that the compaction kept."""
    record = payload.get("record")
    boundary = record.get("boundary") if isinstance(record, dict) else None
    metadata = boundary.get("compact_metadata") if isinstance(boundary, dict) else None
    preserved = metadata.get("preserved_messages") if isinstance(metadata, dict) else None
    uuids = preserved.get("all_uuids") or preserved.get("uuids") if isinstance(preserved, dict) else None
    kept = {ident for ident in uuids if isinstance(ident, str)} if isinstance(uuids, list) else set()
    summary = _made({"role": "user", "content": str(payload.get("summary") or "")}, ts, isCompactSummary=True)
    return [summary, *(line for line in lines if kept.intersection((line[1], *line[2])))]
