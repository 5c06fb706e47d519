"""Rebuilds a session of OpenCode from the entries of a thread, in the format of `opencode import`.

An open call stays open: OpenCode itself tells the model that it was interrupted. All ids are new, because the old
session may still be in the database.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

VERSION: Final = "1.18.33"
_HEAD: Final = 16
"""Characters of an id that determine its order: `msg_`, and twelve digits of a time or a number."""
_LONG_AGO: Final = 366 * 24 * 3_600_000
"""In milliseconds. Clocks differ by less."""
_NO_TOKENS: Final = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}

_SESSION, _MESSAGE, _PART, _POINTER, _TIME = (bytes((number,)) for number in range(5))
"""Placeholders in encoded JSON, which has these bytes nowhere else: in strings they are escaped."""
_OPEN_INFO: Final = {
    "id": orjson.Fragment(_MESSAGE),
    "sessionID": orjson.Fragment(_SESSION),
    "time": orjson.Fragment(_TIME),
}
_OPEN_PART: Final = {
    "id": orjson.Fragment(_PART),
    "messageID": orjson.Fragment(_MESSAGE),
    "sessionID": orjson.Fragment(_SESSION),
}
_OPEN_POINTER: Final = orjson.Fragment(_POINTER)

_Record = dict[str, Any]
_Part = tuple[bytes, str | None]
"""A part, encoded after a comma with placeholders for its ids, and the message that it points to."""


@dataclass(slots=True)
class _Message:
    info: bytes
    """Encoded after its first brace, with placeholders for ids and times."""
    times: Any
    parent: str
    parts: dict[str, _Part]


def rebuild(
    entries: Iterable[Mapping[str, Any]], workspace: str, provider: str, model: str
) -> tuple[str, bytes] | None:
    """Returns the id and the file of a session with these entries, or None if there is nothing to continue."""
    history = _History(workspace, provider, model)
    first = last = 0
    ident = ""
    for entry in entries:
        first, last, ident = first or entry["ts"], entry["ts"], entry["id"]
        history.take(entry["payload"], entry["ts"])
    if not history.messages:
        return None
    digest = hashlib.blake2b(f"{workspace}\0{ident}\0{len(history.messages)}".encode(), digest_size=13).hexdigest()
    session = f"ses_{digest}"
    info = {
        "id": session,
        "slug": f"resumed-{digest[:8]}",
        "projectID": "global",
        "directory": workspace,
        "title": "Resumed",
        "version": VERSION,
        "time": {"created": first, "updated": last},
    }
    file = io.BytesIO()
    file.write(b'{"info":%b,"messages":[' % orjson.dumps(info))
    for number, message in enumerate(history.renamed(session)):
        file.write(b",%b" % message if number else message)
    file.write(b"]}")
    return session, file.getvalue()


class _History:
    """The messages that the model sees, by id, oldest first."""

    def __init__(self, workspace: str, provider: str, model: str) -> None:
        self.messages: dict[str, _Message] = {}
        self._workspace = workspace
        self._provider = provider
        self._model = model
        self._user = ""
        self._made = 0

    def take(self, payload: Mapping[str, Any], ts: int) -> None:
        kind = payload["type"].rpartition(".")[2]
        record = payload.get("record")
        record = record if isinstance(record, dict) else {}
        if kind == "compaction":
            self._compact(record, payload, ts)
        elif kind == "tool":
            self._take_tool(record, payload, ts)
        elif kind in ("user", "assistant", "event") and not self._take_record(record):
            if kind == "user":
                self._say("user", payload["text"], ts)
            elif kind == "assistant" and payload.get("text"):
                self._say("assistant", payload["text"], ts)

    def renamed(self, session: str) -> Iterator[bytes]:
        """Yields the messages with new ids, in the order of the thread, and before all later messages.

        OpenCode orders messages by times and ids, and asks the model again and again until its answer follows the
        prompt. The times on a thread come from several clocks, some of which may be ahead of the box's clock.
        """
        end = session[-14:].encode()
        names = {ident: b'"msg_%012x%b"' % (number, end) for number, ident in enumerate(self.messages, 1)}
        gone = b'"msg_%012x%b"' % (0, end)
        of_session = b'"%b"' % session.encode()
        latest, count = 0, 0
        for ident, message in self.messages.items():
            latest, times = _before(latest, message.times)
            info = message.info.replace(_TIME, orjson.dumps(times)).replace(_POINTER, names.get(message.parent, gone))
            parts = []
            for _, (part, pointer) in sorted(message.parts.items()):
                count += 1
                part = part.replace(_PART, b'"prt_%012x%b"' % (count, end))
                parts.append(part if pointer is None else part.replace(_POINTER, names.get(pointer, gone)))
            whole = b'{"info":{%b,"parts":[%b]}' % (info, b"".join(parts)[1:])
            yield whole.replace(_MESSAGE, names[ident]).replace(_SESSION, of_session)

    def _take_record(self, record: _Record) -> bool:
        info, parts = record.get("info"), record.get("parts")
        if not isinstance(info, dict) or not isinstance(parts, list) or not _is_id(info.get("id"), "msg_"):
            return False
        message = self._put(info)
        if info.get("role") == "user":
            self._user = info["id"]
        for part in parts:
            if isinstance(part, dict) and _is_id(part.get("id"), "prt_") and isinstance(part.get("type"), str):
                message.parts[part["id"]] = _part(part)
        return True

    def _take_tool(self, record: _Record, payload: Mapping[str, Any], ts: int) -> None:
        if not _is_id(record.get("id"), "prt_") or not isinstance(record.get("state"), dict):
            if payload["status"] == "interrupted":
                return
            state = {
                "status": "completed",
                "input": payload.get("arguments") or {},
                "output": payload["result"],
                "title": "",
                "metadata": {},
                "time": {"start": ts, "end": ts},
            }
            record = {"id": self._id("prt_", ts), "type": "tool", "tool": payload["name"], "state": state}
            record["callID"] = payload["call"]
        message = self.messages.get(str(record.get("messageID")))
        if message is None:
            message = self._add("assistant", ts)
        message.parts[record["id"]] = _part(record)

    def _compact(self, record: _Record, payload: Mapping[str, Any], ts: int) -> None:
        """Remove everything before the summary, except what OpenCode kept unchanged."""
        asked, *_ = [message for message in record.get("messages") or () if isinstance(message, dict)] or [{}]
        kept_from = next(
            (part["tail_start_id"] for part in asked.get("parts") or () if isinstance(part.get("tail_start_id"), str)),
            None,
        )
        known = list(self.messages)
        for ident in known[: known.index(kept_from)] if kept_from in self.messages else known:
            del self.messages[ident]
        taken = [self._take_record(message) for message in record.get("messages") or () if isinstance(message, dict)]
        if taken != [True, True]:
            self._say("user", payload["summary"], ts)

    def _say(self, role: str, text: str, ts: int) -> None:
        part = {"id": self._id("prt_", ts), "type": "text", "text": text}
        self._add(role, ts).parts[part["id"]] = _part(part)

    def _add(self, role: str, ts: int) -> _Message:
        """Add a message whose record was lost."""
        ident = self._id("msg_", ts)
        model = {"providerID": self._provider, "modelID": self._model}
        info: _Record = {"id": ident, "role": role, "agent": "build", "time": {"created": ts}}
        if role == "user":
            info["model"] = model
            self._user = ident
        else:
            info |= {**model, "parentID": self._user or ident, "mode": "build", "cost": 0, "tokens": _NO_TOKENS}
            info |= {"path": {"cwd": self._workspace, "root": "/"}, "time": {"created": ts, "completed": ts}}
            info["finish"] = "stop"
        return self._put(info)

    def _put(self, info: _Record) -> _Message:
        """Returns a message with the parts of its earlier records."""
        open = {**info, **_OPEN_INFO}
        if "parentID" in info:
            open["parentID"] = _OPEN_POINTER
        known = self.messages.get(info["id"])
        message = self.messages[info["id"]] = _Message(
            orjson.dumps(open)[1:],
            info.get("time"),
            str(info.get("parentID")),
            {} if known is None else known.parts,
        )
        return message

    def _id(self, prefix: str, ts: int) -> str:
        """Returns an id that sorts by time, as in OpenCode."""
        self._made += 1
        digits = (ts * 0x1000 + self._made % 0x1000) & 0xFFFFFFFFFFFF
        return f"{prefix}{digits:012x}{self._made:014d}"


def _part(part: _Record) -> _Part:
    pointer = part.get("tail_start_id")
    if not isinstance(pointer, str):
        return b"," + orjson.dumps({**part, **_OPEN_PART}), None
    return b"," + orjson.dumps({**part, **_OPEN_PART, "tail_start_id": _OPEN_POINTER}), pointer


def _before(latest: int, times: Any) -> tuple[int, _Record]:
    """Returns the creation time, which is after that of the message before it, and all times, long in the past."""
    known = {name: time for name, time in (times if isinstance(times, dict) else {}).items() if isinstance(time, int)}
    created = max(latest + 1, known.get("created", 0))
    later = created - known.get("created", created)
    return created, {"created": created - _LONG_AGO} | {
        name: time + later - _LONG_AGO for name, time in known.items() if name != "created"
    }


def _is_id(value: Any, prefix: str) -> bool:
    return isinstance(value, str) and value.startswith(prefix) and len(value) > _HEAD
