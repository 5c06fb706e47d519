"""Sessions that an agent wrote on someone's own machine, read as entries of a thread.

The reader of a harness reads the records, so an imported session has the same entries as a run, and is rebuilt in a box
in the same way. A session file is untrusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.api.errors.runs import InvalidRun
from holdfast.guest.agent_reader import Reader

MOST_ENTRIES: Final = 20_000
_KEPT: Final = ("user", "assistant", "call", "tool", "compaction", "event")
_HINTS: Final = {
    "opencode": "make the file with: opencode export SESSION > FILE",
}

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ImportedSession:
    entries: tuple[tuple[int, dict[str, Any]], ...]
    """The time and the payload of each, oldest first."""

    @property
    def title(self) -> str | None:
        """The beginning of the first prompt."""
        for _, payload in self.entries:
            text = payload.get("text")
            if payload["type"].endswith(".user") and isinstance(text, str) and text.strip():
                return text.strip().splitlines()[0][:80]
        return None


def read_with(reader: Reader, records: Iterable[tuple[int, Record]]) -> ImportedSession:
    """Let a reader read records, each with its time. Raises `InvalidRun` if there is nothing in them."""
    found: list[tuple[int, dict[str, Any]]] = []
    last = 0

    def keep(ts: int, payloads: list[dict[str, Any]]) -> None:
        found.extend((ts, each) for each in payloads if each["type"].rpartition(".")[2] in _KEPT)
        if len(found) > MOST_ENTRIES:
            raise InvalidRun(f"the session has more than {MOST_ENTRIES:,} messages: too many to import")

    for ts, record in records:
        last = max(last, ts)
        keep(last, reader.read(json.dumps(record).encode()))
    keep(last, reader.close())
    if not any(payload["type"].endswith((".user", ".assistant")) for _, payload in found):
        raise not_a_session(reader.agent, "it has no messages")
    return ImportedSession(tuple(found))


def lines_of(agent: str, data: bytes) -> Iterator[dict[str, Any]]:
    """Yields the records of a file with one JSON object in each line. The last line may be cut off."""
    lines = data.splitlines()
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines) - 1 and number:
                return  # the agent was killed while it wrote
            raise not_a_session(agent, f"line {number + 1} is not JSON") from None
        if isinstance(value, dict):
            yield value


def time_of(value: object, otherwise: int = 0) -> int:
    """Returns UTC milliseconds, from milliseconds or an ISO time."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 52:
        return int(value)
    if isinstance(value, str):
        try:
            return int(datetime.fromisoformat(value).timestamp() * 1000)
        except (ValueError, OverflowError):
            return otherwise
    return otherwise


def find_agent(data: bytes) -> str | None:
    """Returns the agent that wrote a session file, by its first records."""
    head = data.lstrip()[:4096]
    if head.startswith(b"{") and b'"info"' in head[:200]:
        return "opencode"
    for line in data.splitlines()[:20]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict):
            continue
        if record.get("type") == "session" and "cwd" in record:
            return "pi"
        if record.get("type") == "session_meta" and "payload" in record:
            return "codex"
        if "sessionId" in record and "type" in record:
            return "claude"
    return None


def not_a_session(agent: str, why: str) -> InvalidRun:
    return InvalidRun(f"this is not a session file of {agent}: {why}", hint=_HINTS.get(agent))
