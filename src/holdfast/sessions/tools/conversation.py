"""Reads what was said in a session: prompts, and the messages of its agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors import InvalidRequest
from holdfast.runs.run_log import RunLog

MAX_MESSAGE: Final = 32 * 1024
"""Characters of one message. The thread has all of it."""


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    role: str
    """`user` or `assistant`."""
    content: str
    created_at: int

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "role": self.role, "content": self.content, "createdAt": self.created_at}


def message_of(entry: Mapping[str, Any]) -> Message | None:
    """Returns what an entry says, or None if it is neither a chat nor a message of an agent."""
    payload = entry["payload"]
    kind, text = str(payload.get("type", "")), payload.get("text")
    if not isinstance(text, str) or not text.strip():
        return None
    if kind == "chat":
        role = "assistant" if payload.get("role") == "assistant" else "user"
    elif kind.endswith(".assistant") and not kind.startswith("signal."):
        role = "assistant"
    else:
        return None
    shown = (
        text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}\n[… {len(text) - MAX_MESSAGE} more characters …]"
    )
    return Message(str(entry["id"]), role, shown, int(entry["ts"]))


async def read_messages(log: RunLog, thread: str, limit: int, after: str | None) -> list[Message]:
    """Returns the latest messages of a thread, or the first ones after an entry, oldest first."""
    since = 0
    if after is not None:
        position = await log.position_after(thread, after)
        if position is None:
            raise InvalidRequest(f"there is no message {after[:128]!r}: use the id of a message as after")
        since = position
    latest: deque[Message] = deque(maxlen=limit)
    async for entry in log.entries(thread, since):
        message = message_of(entry)
        if message is not None:
            latest.append(message)
            if after is not None and len(latest) == limit:
                break
    return list(latest)
