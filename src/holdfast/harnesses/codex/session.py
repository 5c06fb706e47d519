"""Rebuilds a session file of Codex from the entries of a thread.

It has only the conversation. When Codex continues, it adds its own context (folder, date, skills), and answers an open
call with "aborted".
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from holdfast.harnesses.codex.reader import is_context
from holdfast.harnesses.session_files import iso

VERSION: Final = "0.166.0"

_Item = dict[str, Any]


def rebuild(entries: Iterable[Mapping[str, Any]], workspace: str) -> tuple[str, bytes] | None:
    """Returns the id and the file of a session with these entries, or None if there is nothing to continue."""
    records: list[tuple[str, str, Mapping[str, Any]]] = []
    called: set[str] = set()
    first = last = ""
    count = 0
    for entry in entries:
        payload = entry["payload"]
        kind = payload["type"].rpartition(".")[2]
        time = iso(entry["ts"])
        first, last = first or time, entry["id"]
        count += 1
        if kind == "compaction":
            records = [(time, "compacted", _compacted(payload))]
            called = set()
            continue
        for item in _items(kind, payload):
            call = item.get("call_id")
            if isinstance(call, str):
                if not item["type"].endswith("_output"):
                    called.add(call)
                elif call not in called:  # the call was lost, and Codex would drop a result without a call
                    records.append((time, "response_item", _call(payload, call)))
                    called.add(call)
            records.append((time, "response_item", item))
    if not records:
        return None
    # A different id for each history: an older file of the session may still exist.
    digest = hashlib.blake2b(f"{workspace}\0{last}\0{count}".encode(), digest_size=16).digest()
    session = str(uuid.UUID(bytes=digest, version=4))
    about = {
        "session_id": session,
        "id": session,
        "timestamp": first,
        "cwd": workspace,
        "originator": "codex_exec",
        "cli_version": VERSION,
        "source": "exec",
        # As Codex starts a session itself. In the older mode it writes no item at the end of a command, and so not its
        # exit code.
        "history_mode": "paginated",
    }
    numbered = enumerate(((first, "session_meta", about), *records))
    return session, b"".join(_line(ordinal, *record) for ordinal, record in numbered)


def _items(kind: str, payload: Mapping[str, Any]) -> list[_Item]:
    """Returns the records of an entry, as Codex writes them."""
    record = payload.get("record")
    if kind == "assistant":
        items = record.get("items") if isinstance(record, dict) else None
        if isinstance(items, list):
            return [item for item in items if isinstance(item, dict) and isinstance(item.get("type"), str)]
        return [_message("assistant", payload["text"])] if payload.get("text") else []
    if kind in ("user", "event"):
        if isinstance(record, dict) and record.get("type") == "message" and isinstance(record.get("content"), list):
            return [record]
        return [_message("user", payload["text"])] if kind == "user" else []
    if kind == "tool":
        if isinstance(record, dict) and str(record.get("type", "")).endswith("_output") and "call_id" in record:
            return [record]
        if payload["status"] != "interrupted":
            return [{"type": "function_call_output", "call_id": payload["call"], "output": payload["result"]}]
    return []


def _message(role: str, text: str) -> _Item:
    content = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return {"type": "message", "role": role, "content": [content]}


def _call(payload: Mapping[str, Any], call: str) -> _Item:
    arguments = payload.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    if str((payload.get("record") or {}).get("type", "")).startswith("custom"):
        return {"type": "custom_tool_call", "call_id": call, "name": payload["name"], "input": text}
    return {"type": "function_call", "call_id": call, "name": payload["name"], "arguments": text}


def _compacted(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the history that replaces all before it, without Codex's own context, which may differ in another box."""
    record = payload.get("record")
    history = record.get("replacement_history") if isinstance(record, dict) else None
    if not isinstance(history, list):
        history = [_message("user", payload["summary"])]
    kept = [item for item in history if isinstance(item, dict) and item.get("role") != "developer"]
    return {
        "message": payload["summary"],
        "replacement_history": [item for item in kept if not is_context(item)],
    }


def _line(ordinal: int, time: str, kind: str, payload: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"timestamp": time, "ordinal": ordinal, "type": kind, "payload": payload}) + b"\n"
