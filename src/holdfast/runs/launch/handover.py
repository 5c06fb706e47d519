"""The transcript for an agent that takes over from another.

The whole transcript goes into a file in the box. The agent's prompt gets the first prompt of the thread and the newest
entries, as many as fit into the model's context.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.guest.agent_reader import indented, shorten

MAX_FILE: Final = 32 * 1024 * 1024
"""Characters of the whole transcript. If it is longer, the oldest entries after the first prompt are left out."""
_CHARACTERS_PER_TOKEN: Final = 3
"""A low estimate, so that code and other languages fit too."""
_MAX_RESULT: Final = 600
_MAX_ARGUMENTS: Final = 300
_LEAST: Final = 2_000
_AT_THE_LEFT: Final = re.compile(r"\n(?!  )")


def room_for_transcript(context_window: int, max_tokens: int) -> int:
    """Returns a number of characters: half of the model's input. The other half is for the agent and its work."""
    return max(_LEAST, (context_window - max_tokens) // 2 * _CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class HandOver:
    text: str
    """For the prompt."""
    file: str | None
    """The whole transcript, or None if `text` has all of it."""


@dataclass(frozen=True, slots=True)
class _Item:
    whole: str
    short: str
    kind: str = ""
    """`prompt`, `summary` or empty."""


class Transcript:
    """Collects the entries of a thread, oldest first."""

    def __init__(self) -> None:
        self._first: _Item | None = None
        """The first prompt of the thread."""
        self._items: deque[_Item] = deque()
        """All others."""
        self._size = 0
        self._dropped = 0
        """The number of entries that did not fit into the file."""

    def take(self, entry: Mapping[str, Any]) -> None:
        item = _item_of(entry["payload"])
        if item is None:
            return
        if item.kind == "prompt" and self._first is None and not self._items:
            self._first = item
            return
        self._items.append(item)
        self._size += len(item.whole)
        while self._size > MAX_FILE and len(self._items) > 1:
            self._size -= len(self._items.popleft().whole)
            self._dropped += 1

    def drop_last_prompts(self) -> None:
        """Remove the prompts at the end, which no agent has worked on."""
        while self._items and self._items[-1].kind == "prompt":
            self._items.pop()
        if not self._items:
            self._first = None

    def hand_over(self, room: int, path: str) -> HandOver | None:
        """`room` is in characters. `path` is where the whole transcript will be in the box."""
        if self._first is None and not self._items:
            return None
        first = "" if self._first is None else _shortened(self._first.short, max(_LEAST, room // 4))
        latest = self._latest(room - len(first))
        left_out = self._dropped + len(self._items) - len(latest)
        parts = [first] if first else []
        if left_out:
            entries = "1 entry is" if left_out == 1 else f"{left_out} entries are"
            parts.append(f"[… {entries} left out here …]")
        parts += latest
        shown = {*latest, first}
        all_items = [*([] if self._first is None else [self._first]), *self._items]
        if not left_out and all(item.whole in shown for item in all_items):
            return HandOver("\n".join(parts), None)
        parts.append(
            f"[This is not all: long results are shortened{', and entries are left out' if left_out else ''}. The whole"
            f" transcript is in {path} in this machine. Read there what you need to know more about.]"
        )
        gap = [f"[… {self._dropped} entries are left out here …]"] if self._dropped else []
        begin = [] if self._first is None else [self._first.whole]
        return HandOver("\n".join(parts), "\n\n".join([*begin, *gap, *(item.whole for item in self._items)]) + "\n")

    def _latest(self, room: int) -> list[str]:
        """Returns the newest entries that fit, oldest first. A summary stands for all entries before it."""
        chosen: list[str] = []
        for item in reversed(self._items):
            text = item.short
            if len(text) + 1 > room:
                if not chosen:
                    chosen.append(_shortened(text, max(_LEAST, room)))
                break
            chosen.append(text)
            room -= len(text) + 1
            if item.kind == "summary":
                break
        return chosen[::-1]


def _item_of(payload: Mapping[str, Any]) -> _Item | None:
    kind = str(payload.get("type"))
    agent, _, event = kind.partition(".")
    text = payload.get("text")
    if kind == "chat" and isinstance(text, str):
        return _same(f"User: {text}", "prompt")
    if event == "assistant" and isinstance(text, str) and text.strip():
        return _same(f"Assistant ({agent}): {text}")
    if event == "tool":
        name, arguments, result = payload.get("name"), payload.get("arguments"), payload.get("result")
        status = "" if payload.get("status") in (None, "ok") else f" ({payload['status']})"
        return _Item(
            indented(f"Tool {name} {_text(arguments)}{status} → {_text(result)}"),
            indented(f"Tool {name} {_cut(arguments, _MAX_ARGUMENTS)}{status} → {_cut(result, _MAX_RESULT)}"),
        )
    if event == "compaction" and isinstance(payload.get("summary"), str):
        return _same(f"Summary of what came before: {payload['summary']}", "summary")
    return None


def _same(text: str, kind: str = "") -> _Item:
    entry = indented(text)
    return _Item(entry, entry, kind)


def _shortened(entry: str, most: int) -> str:
    """Cut the middle out of an entry. The lines after the gap stay indented."""
    return _AT_THE_LEFT.sub("\n  ", shorten(entry, most))


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _cut(value: object, most: int) -> str:
    text = _text(value)
    return text if len(text) <= most else f"{text[:most]}…"
