"""The entries of a turn as messages of the hub, and back. The runner and the hub both use this module.

An entry is what a runner would append to the thread itself: `{"id", "ts", "payload"}`, encoded. Live text is a message
with its text, and is put together again at the hub. Of everything else, the entry itself is in the message, as the
runner encoded it, because it has the agent's own record, which must come through unchanged.
"""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DELTA = "message.part.text-delta"
TOOL = "message.part.tool-update"
ENTRY = "message.entry"
FINALIZE = "message.finalize"
TURN_MESSAGES = frozenset((DELTA, TOOL, ENTRY, FINALIZE))
"""Messages that are an entry of the thread."""
_REASONS = {"completed": "end_turn", "cancelled": "canceled"}
_DELTA_FIELDS = {"type", "message", "text", "thinking"}


def message_of(turn: str, entry: bytes) -> "tuple[str, dict[str, Any]]":
    """Returns type and fields of the message for an encoded entry of a turn."""
    found = json.loads(entry)
    payload = found["payload"]
    kind = str(payload["type"])
    text = entry.decode()
    if kind == "signal.run.finished":
        fields = {"turnId": turn, "reason": _REASONS.get(payload.get("status"), "error"), "entry": text}
        error = payload.get("error")
        if isinstance(error, dict):
            fields["error"] = str(error.get("message", ""))
        return FINALIZE, fields
    if kind.endswith(".delta") and set(payload) <= _DELTA_FIELDS:
        fields = {"turnId": turn, "delta": payload.get("text", ""), "messageId": payload["message"]}
        if payload.get("thinking"):
            fields["thinking"] = payload["thinking"]
        return DELTA, {**fields, "entryId": found["id"], "ts": found["ts"]}
    if kind.endswith((".call", ".tool")):
        status = "running" if kind.endswith(".call") else "completed" if payload.get("status") == "ok" else "error"
        return TOOL, {
            "turnId": turn,
            "callId": str(payload.get("call", "")),
            "toolName": str(payload.get("name", "")),
            "status": status,
            "entry": text,
        }
    return ENTRY, {"turnId": turn, "entry": text}


def entry_of(agent: str, type: str, fields: "dict[str, Any]") -> "str | None":
    """Returns the encoded entry of a message of a turn, or None if the message has none. The caller checks it, as all
    that comes from a box.
    """
    if type != DELTA:
        return fields.get("entry")
    if "entryId" not in fields:
        return None
    payload = {"type": agent + ".delta", "message": fields.get("messageId", "")}
    for name, value in (("text", fields["delta"]), ("thinking", fields.get("thinking"))):
        if value:
            payload[name] = value
    entry = {"id": fields["entryId"], "ts": fields.get("ts", 0), "payload": payload}
    return json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
