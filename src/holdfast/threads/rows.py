"""A thread's row: what lists and headers show. It is a cache, computed from the thread's entries alone."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from holdfast.api.errors import InvalidRequest
from holdfast.api.model.budgets import Cost
from holdfast.api.run.info import RunStatus
from holdfast.api.session.sessions import SessionState
from holdfast.api.thread.entries import is_passing
from holdfast.api.thread.threads import ThreadStatus
from holdfast.threads.access.seals import Origin, Seals
from holdfast.threads.checkpoints import NO_LINEAGE, Lineage
from holdfast.threads.delegation import DELEGATION_SIGNALS
from holdfast.threads.lineage import FORKED, LINEAGE_SIGNALS, fold_lineage
from holdfast.threads.model_events import CALL, ModelCall, call_of, dollars
from holdfast.threads.run_events import Run, ThreadRuns, concerns_runs, end_id, fold_run, is_control

_PREVIEW: Final = 200


_STATUSES: Final = {status.value: status for status in ThreadStatus}
_STATUS_OF_RUN: Final = {
    RunStatus.RUNNING: ThreadStatus.RUNNING,
    RunStatus.COMPLETED: ThreadStatus.COMPLETED,
    RunStatus.FAILED: ThreadStatus.FAILED,
    RunStatus.CANCELLED: ThreadStatus.CANCELLED,
    RunStatus.ORPHANED: ThreadStatus.FAILED,
}


@dataclass(frozen=True, slots=True)
class ThreadRow:
    id: str
    stream: int
    """Id of the folded stream. Another stream at the same path starts a new row."""
    folded: int = 0
    """Position up to which the stream is included in this row."""
    title: str | None = None
    status: ThreadStatus = ThreadStatus.IDLE
    parent: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    archived: bool = False
    entry_count: int = 0
    """Without live text and heartbeats."""
    created_at: int = 0
    last_activity_at: int = 0
    last_entry: dict[str, Any] | None = None
    runs: ThreadRuns = field(default_factory=ThreadRuns)
    lineage: Lineage = NO_LINEAGE
    """The thread that it was forked from. The thread that started it as its child is `parent`."""
    touched: dict[str, Run] = field(default_factory=dict, compare=False, repr=False)
    """Runs that changed since the row was saved. Each has a row of its own."""
    calls: tuple[ModelCall, ...] = field(default=(), compare=False, repr=False)
    """Calls of models since the row was saved. Each has a row of its own."""
    marks: tuple[ThreadRow, ...] = field(default=(), compare=False, repr=False)
    """The row at the end of each run since the row was saved. The row of a fork begins with one of them."""

    @property
    def can_be_marked(self) -> bool:
        """Whether its last entry has ended its latest run."""
        run, last = self.runs.latest, self.last_entry
        if run is None or run.live:
            return False
        return last is not None and last["id"] == end_id(run.run)

    def marked(self, position: int) -> ThreadRow:
        """Returns the row with a mark at this position, up to which it is folded."""
        mark = replace(self, folded=position, touched={}, calls=(), marks=())
        return replace(self, marks=(*self.marks, mark))

    def inherit(self, mark: ThreadRow) -> ThreadRow:
        """Returns this row, of a new fork, after all entries that it shares with its source. `mark` is the row of the
        source there.

        The result is the same as folding these entries. On a fork, none of them is the server's own entry for this
        thread: its runs are shown and not acted on, no prompt waits, and it is no session.
        """
        runs = mark.runs
        latest = runs.latest
        if latest is not None:
            origin = Origin.FORK if latest.origin is Origin.HERE else latest.origin
            latest = replace(latest, origin=origin, again=False, repeats=False)
        sessions = {agent: replace(each, whole=False) for agent, each in runs.sessions.items()}
        return replace(
            mark,
            id=self.id,
            stream=self.stream,
            created_at=self.created_at,
            last_activity_at=max(self.created_at, mark.last_activity_at),
            lineage=NO_LINEAGE,
            runs=replace(runs, latest=latest, sessions=sessions, waiting=(), delegation=None, session=None),
        )


def fold(row: ThreadRow, entries: Iterable[dict[str, Any]], seals: Seals, since: int = 0) -> ThreadRow:
    """Returns the row after these entries. The first begins at position `since`. `seals` tells which are authentic."""
    count = 0
    last: dict[str, Any] | None = None
    activity = row.last_activity_at
    runs = row.runs
    touched = dict(row.touched)
    calls = list(row.calls)
    for entry in entries:
        last = entry
        activity = max(activity, entry["ts"])
        kind = entry["payload"]["type"]
        count += not is_passing(kind)
        if kind in LINEAGE_SIGNALS:
            lineage, after = fold_lineage(row.lineage, runs, entry, seals.origin(row.id, entry))
            if kind == FORKED and lineage is not row.lineage:
                row = replace(row, parent=None)  # its source is the child of that thread
            row = replace(row, lineage=lineage)
            if after.latest is not None and after.latest is not runs.latest:
                if after.latest.origin is not Origin.FORK:
                    touched[after.latest.run] = after.latest
                row = replace(row, status=_STATUS_OF_RUN[after.latest.status])
            runs = after
        elif kind.startswith("signal.thread.") and kind not in DELEGATION_SIGNALS:
            row = _apply_signal(row, kind[len("signal.thread.") :], entry["payload"])
        elif concerns_runs(kind, entry["payload"], runs):
            origin = seals.origin(row.id, entry) if is_control(entry["payload"]) else Origin.UNPROVEN
            after = fold_run(runs, entry, origin, since)
            if after.latest is not None and after.latest is not runs.latest:
                if after.latest.origin is not Origin.FORK:  # the thread that launched the run reports it
                    touched[after.latest.run] = after.latest
                if runs.latest is None or after.latest.status is not runs.latest.status:
                    row = replace(row, status=_STATUS_OF_RUN[after.latest.status])
            runs = after
        elif kind == CALL and seals.origin(row.id, entry) is Origin.HERE and (call := call_of(entry)) is not None:
            calls.append(call)
    if last is None:
        return row
    return replace(
        row,
        entry_count=row.entry_count + count,
        last_activity_at=activity,
        last_entry=_preview(last),
        runs=runs,
        touched=touched,
        calls=tuple(calls),
    )


def _apply_signal(row: ThreadRow, name: str, payload: dict[str, Any]) -> ThreadRow:
    """Clients with an API key may write signals too, so ignore malformed ones."""
    match name:
        case "created":
            return replace(
                row,
                title=_text(payload.get("title")),
                parent=_text(payload.get("parent")),
                labels=_labels(payload.get("labels")),
            )
        case "renamed":
            return replace(row, title=_text(payload.get("title")))
        case "labelled":
            return replace(row, labels=_labels(payload.get("labels")))
        case "archived":
            return replace(row, archived=payload.get("archived") is not False)
        case "status_changed":
            status = _STATUSES.get(_text(payload.get("status")) or "")
            return row if status is None else replace(row, status=status)
    return row


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {key: each for key, each in value.items() if isinstance(each, str)}


def _preview(entry: dict[str, Any]) -> dict[str, Any]:
    preview = {"id": entry["id"], "ts": entry["ts"], "type": entry["payload"]["type"]}
    text = entry["payload"].get("text")
    if isinstance(text, str):
        preview["text"] = text[:_PREVIEW]
    return preview


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows to list, and where to continue."""

    parent: str | None = None
    fork_of: str | None = None
    status: ThreadStatus | None = None
    labels: tuple[tuple[str, str | None], ...] = ()
    """Label names with the wanted value; None matches any value."""
    archived: bool | None = False
    """None matches both."""
    limit: int = 50
    after: tuple[int, str] | None = None
    """Last activity and id of the last row seen."""
    session: tuple[SessionState, ...] | None = None
    """Only sessions in one of these states."""
    words: tuple[str, ...] = ()
    """All of them are in the title or the id. Case does not count, at least of ASCII letters."""


def format_cursor(row: ThreadRow) -> str:
    return base64.urlsafe_b64encode(f"{row.last_activity_at}:{row.id}".encode()).decode().rstrip("=")


def parse_cursor(cursor: str) -> tuple[int, str]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        activity, _, id = text.partition(":")
        if id and activity.isascii() and activity.isdigit() and len(activity) < 17:
            return int(activity), id
    except (binascii.Error, ValueError):
        pass
    raise InvalidRequest(f"invalid cursor {cursor[:64]!r}: use a next_cursor that this server returned")


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run and its thread."""

    thread: str
    run: Run


@dataclass(frozen=True, slots=True)
class RunFilter:
    thread: str | None = None
    status: RunStatus | None = None
    agent: str | None = None
    limit: int = 50
    after: str | None = None
    """Id of the last run seen."""
    turn: int | None = None
    """The number of a run on its thread."""


@dataclass(frozen=True, slots=True)
class SpendingFilter:
    """Which calls of models to add up. What is None does not matter."""

    runs: tuple[str, ...] | None = None
    threads: tuple[str, ...] | None = None
    tree: str | None = None
    """A thread, and all threads below it."""
    since: int | None = None
    """UTC milliseconds."""
    limit: int = 1000


SpendingKey = Literal["all", "run", "thread", "model", "day"]


@dataclass(frozen=True, slots=True)
class Spending:
    """The sum of calls of models."""

    key: str = ""
    """The run, thread, model or day (`2026-11-17`, UTC) of these calls; empty for all."""
    calls: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    nanos: int = 0
    """The cost of the calls with a known price, in billionths of a dollar."""
    unpriced: int = 0
    """Calls whose price is unknown."""
    estimated: int = 0
    """Calls whose usage was estimated, because the answer was cut off or reported none."""

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


def cost_of(spent: Spending) -> Cost:
    """Returns a sum as it is shown: in dollars."""
    return Cost(
        key=spent.key,
        calls=spent.calls,
        input=spent.input,
        output=spent.output,
        cache_read=spent.cache_read,
        cache_write=spent.cache_write,
        reasoning=spent.reasoning,
        cost=dollars(spent.nanos),
        unpriced=spent.unpriced,
        estimated=spent.estimated,
    )


class RowStore(Protocol):
    """The contract of a row store. It is a cache of the streams, so nothing is lost if it is lost."""

    async def get_row(self, id: str) -> ThreadRow | None: ...

    async def row_at(self, id: str, stream: int, position: int) -> ThreadRow | None:
        """Returns the mark of a thread at a position, or None if there is none. `stream` is that of the thread now."""
        ...

    async def list_rows(self, wanted: RowFilter) -> list[ThreadRow]:
        """Returns rows by latest activity, newest first."""
        ...

    async def stale_ids(self) -> list[str]:
        """Returns threads whose row is missing or behind the stream, and rows whose thread no longer exists."""
        ...

    async def save_rows(self, rows: list[ThreadRow], gone: list[str]) -> None:
        """Save these rows with the runs they touched, their calls and their marks. Delete the `gone` rows with all of
        these.
        """
        ...

    async def get_run(self, id: str) -> RunRow | None: ...

    async def list_runs(self, wanted: RunFilter) -> list[RunRow]:
        """Returns runs, newest first."""
        ...

    async def spending(self, wanted: SpendingFilter, by: SpendingKey) -> list[Spending]:
        """Returns the sums of calls by this key, the highest cost first; by `all`, exactly one. Days come in order."""
        ...

    async def needed_snapshots(self) -> set[str]:
        """Returns the snapshots that forks and rewinds of threads refer to."""
        ...

    async def unsettled_ids(self) -> list[str]:
        """Returns the threads that have a run in progress or queued prompts."""
        ...

    async def due_session_ids(self) -> list[str]:
        """Returns the sessions that the server may have to do something about."""
        ...
