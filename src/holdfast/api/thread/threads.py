"""Threads and their entries. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from holdfast.api.document import Document, Limits
from holdfast.api.limits import EntryId, Labels, Printable, StrictBool, ThreadId, Title
from holdfast.api.model.budgets import Cost
from holdfast.api.run.info import RunInfo
from holdfast.api.thread.entries import Entry


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
    """Omitted fields stay as they are."""

    title: Title | None = None
    labels: Labels | None = None
    archived: StrictBool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEntry(Document):
    """A summary of the newest entry of a thread."""

    id: str
    ts: int
    type: str
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSource(Document):
    """Where a thread was forked from."""

    thread: str
    turn: int
    """The last turn that both have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo(Document):
    """A thread at the time of the request."""

    id: str
    title: str | None
    status: ThreadStatus
    parent: str | None
    """The thread that started it as its child."""
    labels: dict[str, str]
    archived: bool
    entry_count: int
    """Without live text and heartbeats."""
    created_at: int
    last_activity_at: int
    next_offset: str
    """The offset of the next entry: tail from here to see only new entries."""
    last_entry: LastEntry | None
    stream: str
    """The path of its stream, for any client of the Durable Streams protocol."""
    run: RunInfo | None
    """Its latest run."""
    cost: Cost | None = None
    """All calls of models on it. None if there were none."""
    fork_of: ForkSource | None = None
    """The thread that it was forked from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPage(Document):
    """One page of threads."""

    threads: tuple[ThreadInfo, ...]
    next_cursor: str | None
    """The cursor of the next page. None on the last page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPage(Document):
    """One page of entries."""

    entries: tuple[Entry, ...]
    next_offset: str
    up_to_date: bool
    """Whether this page reached the end of the thread at that time."""


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
