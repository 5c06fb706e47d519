"""What the server tells about threads, keys and tokens, as data. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.threads.entries import Entry

Status = Literal["idle", "running", "completed", "failed", "cancelled"]
Scope = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The newest entry of a thread, in short."""

    id: str
    ts: int
    type: str
    text: str | None = None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LastEntry:
        return cls(value["id"], value["ts"], value["type"], value.get("text"))

    def to_json(self) -> dict[str, Any]:
        text = {} if self.text is None else {"text": self.text}
        return {"id": self.id, "ts": self.ts, "type": self.type, **text}


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread as it stood when the server was asked."""

    id: str
    title: str | None
    status: Status
    parent: str | None
    labels: dict[str, str]
    archived: bool
    entry_count: int
    created_at: int
    last_activity_at: int
    next_offset: str
    """Where the next entry will be: tail from here to see only what is new."""
    last_entry: LastEntry | None
    stream: str
    """The path of its stream, for any client of the Durable Streams protocol."""
    run: dict[str, Any] | None = None
    """Its latest run, as the server tells it: `RunInfo.from_json` reads it."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ThreadInfo:
        last = value.get("lastEntry")
        return cls(
            id=value["id"],
            title=value.get("title"),
            status=value["status"],
            parent=value.get("parent"),
            labels=value["labels"],
            archived=value["archived"],
            entry_count=value["entryCount"],
            created_at=value["createdAt"],
            last_activity_at=value["lastActivityAt"],
            next_offset=value["nextOffset"],
            last_entry=None if last is None else LastEntry.from_json(last),
            stream=value["stream"],
            run=value.get("run"),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            "parent": self.parent,
            "labels": self.labels,
            "archived": self.archived,
            "entryCount": self.entry_count,
            "createdAt": self.created_at,
            "lastActivityAt": self.last_activity_at,
            "nextOffset": self.next_offset,
            "lastEntry": None if self.last_entry is None else self.last_entry.to_json(),
            "stream": self.stream,
            "run": self.run,
        }


@dataclass(frozen=True, slots=True)
class ThreadPage:
    """Some of the threads, and where the next ones are."""

    threads: tuple[ThreadInfo, ...]
    next_cursor: str | None
    """Ask for the page at this cursor to go on; None where this is the last."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ThreadPage:
        return cls(tuple(ThreadInfo.from_json(each) for each in value["threads"]), value.get("nextCursor"))


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some entries of a thread, and where the next ones are."""

    entries: tuple[Entry, ...]
    next_offset: str
    up_to_date: bool
    """Whether this reached the end of the thread, as it was then."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EntryPage:
        return cls(tuple(Entry.from_json(each) for each in value["entries"]), value["nextOffset"], value["upToDate"])


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """These entries are on the server's disk."""

    entries: tuple[Entry, ...]
    next_offset: str | None
    """The end of the thread right after them; None where nothing was appended."""

    @property
    def entry(self) -> Entry:
        """The entry, where one was appended."""
        (entry,) = self.entries
        return entry


@dataclass(frozen=True, slots=True)
class Token:
    """A credential for one thread and one scope."""

    token: str = field(repr=False)
    thread: str
    scope: Scope
    expires_at: int

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Token:
        return cls(value["token"], value["thread"], value["scope"], value["expiresAt"])

    def to_json(self) -> dict[str, Any]:
        return {"token": self.token, "thread": self.thread, "scope": self.scope, "expiresAt": self.expires_at}


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. Its secret is told once, when it is made."""

    id: str
    name: str
    created_at: int
    revoked_at: int | None = None
    secret: str | None = field(default=None, repr=False)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Key:
        return cls(value["id"], value["name"], value["createdAt"], value.get("revokedAt"), value.get("key"))

    def to_json(self) -> dict[str, Any]:
        secret = {} if self.secret is None else {"key": self.secret}
        return {
            "id": self.id,
            "name": self.name,
            "createdAt": self.created_at,
            "revokedAt": self.revoked_at,
            **secret,
        }
