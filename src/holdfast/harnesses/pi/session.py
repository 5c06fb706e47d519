"""Rebuilds the session file of pi from the entries of a thread.

When pi sends a conversation to its model, it answers calls without a result ("No result provided"), and leaves out
messages that failed or were aborted. So both are written here as pi itself would have written them.
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from holdfast.harnesses.session_files import iso, written

_ROLES: Final = frozenset(("system", "user", "assistant", "toolResult", "custom", "bashExecution", "branchSummary"))
_NO_USAGE: Final = {
    "input": 0,
    "output": 0,
    "cacheRead": 0,
    "cacheWrite": 0,
    "totalTokens": 0,
    "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0},
}
_END: Final = b"}\n"
_CUT_POINTS: Final = frozenset(("user", "assistant", "custom", "bashExecution", "branchSummary"))

_Message = dict[str, Any]
_Line = tuple[int, str, bytes]
"""The time and role of a message, and the message as JSON up to the end of its line."""


def rebuild(entries: Iterable[Mapping[str, Any]], workspace: str, kept_tokens: int) -> tuple[str, bytes] | None:
    """Returns the id and the file of the session that these entries describe, or None if they describe none.

    `kept_tokens` is how much of the end of a conversation a compaction keeps: pi reports which entry of its file it
    kept first, but not which message that is.
    """
    before: list[_Line] = []
    messages: list[_Line] = []
    results: dict[str, int] = {}
    compaction: tuple[int, Mapping[str, Any]] | None = None
    last = ""
    for entry in entries:
        payload = entry["payload"]
        ts = entry["ts"]
        kind = payload["type"].rpartition(".")[2]
        last = entry["id"]
        if kind == "compaction":
            before = _kept([*before, *messages], kept_tokens)
            messages = []
            results = {}
            compaction = (ts, payload)
            continue
        message = _message(kind, payload, ts)
        if message is None or not _can_be_written(message):
            continue
        role = message["role"]
        line = (ts, role, written(message) + _END)
        if role == "assistant":
            results = {}  # some models count their calls anew in each answer
        elif role == "toolResult":
            known = results.get(message["toolCallId"])
            if known is not None:
                messages[known] = line
                continue
            results[message["toolCallId"]] = len(messages)
        messages.append(line)
    if compaction is None and all(role == "system" for _, role, _ in messages):
        return None
    return _file(before, compaction, messages, workspace, last)


def _message(kind: str, payload: Mapping[str, Any], ts: int) -> _Message | None:
    record = payload.get("record")
    if isinstance(record, dict) and isinstance(record.get("role"), str) and record["role"] in _ROLES:
        if not isinstance(record.get("timestamp"), int):
            record = {**record, "timestamp": ts}
        if record["role"] == "assistant":
            record = _whole_assistant(record)
        return record if record["role"] != "toolResult" or isinstance(record.get("toolCallId"), str) else None
    if kind == "user":
        return {"role": "user", "content": [{"type": "text", "text": str(payload.get("text"))}], "timestamp": ts}
    if kind == "assistant":
        return _whole_assistant(
            {
                "role": "assistant",
                "content": [{"type": "text", "text": str(payload.get("text") or "")}],
                "model": str(payload.get("model") or "unknown"),
                "stopReason": "aborted" if payload.get("partial") else "stop",
                "timestamp": ts,
            }
        )
    if kind == "tool" and payload.get("status") != "interrupted":
        return {
            "role": "toolResult",
            "toolCallId": str(payload.get("call")),
            "toolName": str(payload.get("name")),
            "content": [{"type": "text", "text": str(payload.get("result") or "")}],
            "isError": payload.get("status") != "ok",
            "timestamp": ts,
        }
    return None


def _can_be_written(message: _Message) -> bool:
    """Entries come from boxes, and pi fails on a session with a message of a strange shape."""
    content = message.get("content")
    return isinstance(content, str) or (
        isinstance(content, list) and all(isinstance(block, dict) and _is_block(block) for block in content)
    )


def _is_block(block: Mapping[str, Any]) -> bool:
    match block.get("type"):
        case "text":
            return isinstance(block.get("text"), str)
        case "thinking":
            return isinstance(block.get("thinking"), str)
        case "toolCall":
            return isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
    return True


def _whole_assistant(record: _Message) -> _Message:
    """With the fields without which pi cannot load it, as a record that was cut may lack them."""
    if (
        isinstance(record.get("content"), list)
        and isinstance(record.get("usage"), dict)
        and isinstance(record.get("api"), str)
        and isinstance(record.get("provider"), str)
    ):
        return record
    return {
        "api": "unknown",
        "provider": "unknown",
        "model": "unknown",
        **record,
        "content": record["content"] if isinstance(record.get("content"), list) else [],
        "usage": record["usage"] if isinstance(record.get("usage"), dict) else _NO_USAGE,
    }


def _kept(messages: Sequence[_Line], kept_tokens: int) -> list[_Line]:
    """The end of a conversation that a compaction kept, found as pi finds it."""
    tokens = 0
    for index in range(len(messages) - 1, -1, -1):
        tokens += _tokens(json.loads(messages[index][2][: -len(_END)]))
        if tokens >= kept_tokens:
            points = [at for at in range(index, len(messages)) if messages[at][1] in _CUT_POINTS]
            if not points:  # the results at the end are larger than all that is kept: their call is kept with them
                points = [at for at in range(index, -1, -1) if messages[at][1] in _CUT_POINTS]
            return [line for line in messages[points[0] if points else index :] if line[1] != "system"]
    return [line for line in messages if line[1] != "system"]


def _tokens(message: _Message) -> int:
    role = message["role"]
    if role == "system":
        return 0
    content = message.get("content")
    if isinstance(content, str):
        return (len(content) + 3) // 4
    characters = 0
    for block in content if isinstance(content, list) else ():
        match block.get("type"):
            case "text":
                characters += len(block["text"])
            case "thinking":
                characters += len(block["thinking"])
            case "toolCall":
                characters += len(block["name"]) + len(written(block.get("arguments")))
            case "image":
                characters += 4800
    return (characters + 3) // 4


def _file(
    before: list[_Line],
    compaction: tuple[int, Mapping[str, Any]] | None,
    messages: list[_Line],
    workspace: str,
    last: str,
) -> tuple[str, bytes]:
    first_ts = (before or messages or [(compaction[0] if compaction else 0, "", b"")])[0][0]
    # An id of its own for each history: an older file of the session may still be there.
    digest = hashlib.blake2b(f"{workspace}\0{last}\0{len(before)}\0{len(messages)}".encode(), digest_size=16)
    session = str(uuid.UUID(bytes=digest.digest(), version=4))
    about = {"type": "session", "version": 3, "id": session, "timestamp": iso(first_ts), "cwd": workspace}
    file = io.BytesIO()
    file.write(orjson.dumps(about) + b"\n")
    count, parent = 0, "null"

    def add(ts: int, kind: str, name: str, value: bytes) -> None:
        nonlocal count, parent
        count += 1
        ident = f'"{count:08x}"'
        head = f'{{"type":"{kind}","id":{ident},"parentId":{parent},"timestamp":"{iso(ts)}","{name}":'
        file.write(head.encode() + value)
        parent = ident

    for ts, _, message in before:
        add(ts, "message", "message", message)
    if compaction is not None:
        ts, payload = compaction
        record = payload.get("record")
        result = record.get("result") if isinstance(record, dict) else None
        result = result if isinstance(result, dict) else {}
        tokens = result["tokensBefore"] if isinstance(result.get("tokensBefore"), int) else 0
        # What was kept begins at the first entry; a compaction that kept nothing names itself.
        more = b',"firstKeptEntryId":"%08x","tokensBefore":%d' % (1, tokens)
        add(ts, "compaction", "summary", written(str(payload.get("summary") or "")) + more + _END)
    for ts, _, message in messages:
        add(ts, "message", "message", message)
    return session, file.getvalue()
