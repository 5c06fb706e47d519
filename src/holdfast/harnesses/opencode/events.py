"""Selects the events of one turn from those of OpenCode's server: of its session, and without repetitions.

Decisions without effects. Used in boxes, by the driver of a run and the host of a session.
"""

from __future__ import annotations

import json

from holdfast.harnesses.opencode.server import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ASKED = ("permission.asked", "question.asked")
_MAX_SEEN = 100_000
_TOLD = frozenset(
    (
        "message.updated",
        "message.removed",
        "message.part.updated",
        "message.part.delta",
        "message.part.removed",
        "session.compacted",
        "session.error",
        "session.idle",
        "session.status",
    )
)


class Event:
    """An event of the server."""

    __slots__ = ("about", "kind", "told")

    def __init__(self, kind: str, about: dict[str, Any], told: bytes | None) -> None:
        self.kind = kind
        self.about = about
        self.told = told
        """The event as a line for the reader, or None if it has nothing new for it."""


class TurnEvents:
    """The events of one turn. `began` is its time in UTC milliseconds."""

    def __init__(self, session: str, began: float) -> None:
        self.session = session
        self._began = began
        self.open: set[str] = set()
        """Incomplete messages of the model."""
        self._once: set[tuple[str, str]] = set()

    def take(self, line: bytes) -> Event | None:
        """Returns what an event tells about this turn, or None if it is of another session."""
        event = parse_object(line)
        kind, about = event.get("type"), event.get("properties")
        if not isinstance(about, dict):
            return None
        if kind in ASKED:
            return Event(str(kind), about, None)
        if kind not in _TOLD or about.get("sessionID", self.session) != self.session:
            return None
        if kind == "message.updated" and self._is_early(about):
            line = json.dumps(event).encode()
        told = None if self._is_repeated(str(kind), about) else line
        return Event(str(kind), about, told)

    def own(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns those of a session's messages that belong to this turn. A session has those of the turns before."""
        return [each for each in messages if self._is_own(each.get("info"))]

    def _is_own(self, info: Any) -> bool:
        times = info.get("time") if isinstance(info, dict) else None
        created = times.get("created") if isinstance(times, dict) else None
        return isinstance(created, (int, float)) and created >= self._began

    def _is_early(self, about: dict[str, Any]) -> bool:
        """Returns whether the first event of an answer already says that it is complete, which is then too early.

        OpenCode reports the current state when it sends an event. The parts of the answer still follow, and then the
        same event again.
        """
        info = about.get("info") or {}
        times = info.get("time")
        if info.get("role") != "assistant" or not isinstance(times, dict):
            return False
        if not self._is_own(info) or self._seen_before("answer", str(info.get("id"))):
            return False
        return times.pop("completed", None) is not None

    def _is_repeated(self, kind: str, about: dict[str, Any]) -> bool:
        """Returns whether this is a repeated user message, or partial output of a tool, whose end repeats all of it."""
        if kind == "message.updated":
            info = about.get("info") or {}
            ident = str(info.get("id"))
            if info.get("role") == "user":
                return self._seen_before("user", ident)
            if "completed" in (info.get("time") or {}):
                self.open.discard(ident)
                return self._seen_before("whole", ident)
            self.open.add(ident)
        elif kind == "message.part.updated":
            part = about.get("part") or {}
            if part.get("type") == "tool" and (part.get("state") or {}).get("status") == "running":
                return self._seen_before("running", str(part.get("id")))
        return False

    def _seen_before(self, what: str, ident: str) -> bool:
        if (what, ident) in self._once:
            return True
        if len(self._once) > _MAX_SEEN:
            self._once.clear()
        self._once.add((what, ident))
        return False
