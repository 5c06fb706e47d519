"""Threads and their entries. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from holdfast.api.document import Document, Limits
from holdfast.api.entries import Entry
from holdfast.api.limits import EntryId, Labels, Printable, StrictBool, ThreadId, Title
from holdfast.api.run_info import RunInfo


class ThreadStatus(StrEnum):
    IDLE = "idle"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewThread(Document):
    id: ThreadId | None = None
    title: Title | None = None
    parent: ThreadId | None = None
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadChange(Document):
    """What is left out stays."""

    title: Title | None = None
    labels: Labels | None = None
    archived: StrictBool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEntry(Document):
    """The newest entry of a thread, in short."""

    id: str
    ts: int
    type: str
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo(Document):
    """A thread as it stood when the server was asked."""

    id: str
    title: str | None
    status: ThreadStatus
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
    run: RunInfo | None
    """Its latest run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPage(Document):
    """Some of the threads, and where the next ones are."""

    threads: tuple[ThreadInfo, ...]
    next_cursor: str | None
    """Ask for the page at this cursor to go on. None on the last page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPage(Document):
    """Some entries of a thread, and where the next ones are."""

    entries: tuple[Entry, ...]
    next_offset: str
    up_to_date: bool
    """Whether this reached the end of the thread, as it was then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChat(Document):
    text: Annotated[str, Limits(min_length=1)]
    author_id: Printable | None = None
    id: EntryId | None = None
    """A second chat with the same id is not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chatted(Document):
    entry: Entry
    next_offset: str
