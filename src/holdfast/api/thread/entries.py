"""Entries, the records on a thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.api.document import Document


@dataclass(frozen=True, slots=True)
class Entry(Document):
    """One record on a thread: `{id, ts, authorId?, payload{type, …}}`. `id` is its dedup key."""

    id: str
    ts: int
    """UTC milliseconds."""
    payload: dict[str, Any]
    author_id: str | None = None

    @property
    def type(self) -> str:
        """`chat`, `<harness>.<event>` or `signal.<scope>.<name>`."""
        return str(self.payload.get("type", ""))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Entry:
        return cls(value["id"], value["ts"], value["payload"], value.get("authorId"))

    def to_json(self) -> dict[str, Any]:
        author = {} if self.author_id is None else {"authorId": self.author_id}
        return {"id": self.id, "ts": self.ts, **author, "payload": self.payload}


def is_passing(kind: str) -> bool:
    """Returns whether an entry of this type only says that something goes on: live text, which the complete message
    repeats, or a heartbeat. Counts of entries leave these out.
    """
    return kind.endswith((".delta", ".heartbeat"))


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """These entries are on the server's disk."""

    entries: tuple[Entry, ...]
    next_offset: str | None
    """The end of the thread right after them. None if nothing was appended."""

    @property
    def entry(self) -> Entry:
        """The only entry, if exactly one was appended."""
        (entry,) = self.entries
        return entry
