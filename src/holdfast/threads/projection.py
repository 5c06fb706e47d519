"""Keeps thread rows in step with their streams. A commit marks a thread; the next read or sweep updates its row."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace
from typing import Final

from holdfast.api.errors import DiskFull, Gone, NotFound, Refused, Unavailable
from holdfast.api.errors.threads import StreamDamaged
from holdfast.threads.access.seals import Seals
from holdfast.threads.protocol.framing import SEPARATOR, as_array, parse_json, split_messages
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import (
    RowFilter,
    RowStore,
    RunFilter,
    RunRow,
    Spending,
    SpendingFilter,
    SpendingKey,
    ThreadRow,
    fold,
)
from holdfast.threads.run_events import FINISHED
from holdfast.threads.store import Change, StreamInfo, StreamStore

log = logging.getLogger(__name__)

_FOLD_BYTES: Final = 64 * 1024
"""How much is parsed at a time on the event loop, which blocks other tasks."""
_BATCH: Final = 200
_SWEEP_SECONDS: Final = 1.0
_DEEPEST: Final = 100
"""Forks of forks."""
_FINISHED: Final = FINISHED.encode()


class Projection:
    """Owns the set of threads whose rows are behind, and the task that updates them."""

    def __init__(self, store: StreamStore, rows: RowStore, seals: Seals) -> None:
        self._store = store
        self._rows = rows
        self._seals = seals
        self._behind: set[str] = set()
        self._folding: set[str] = set()
        """Removed from `_behind` but not saved yet. A row that is read now would be the old one."""
        self._lock = asyncio.Lock()
        self._stop_observing = store.observe(self._on_change)
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find threads that changed while no server was running, and update their rows in the background."""
        self._behind.update(await self._rows.stale_ids())
        self._sweeper = asyncio.create_task(self._sweep(), name="holdfast-projection")

    async def close(self) -> None:
        self._stop_observing()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        try:
            await self.settle_all()
        except Refused as error:
            log.warning("could not update all thread rows; the next start will: %s", error)

    async def row(self, id: str) -> ThreadRow | None:
        """Returns a thread's current row, even if it cannot be saved, so a full disk does not stop readers."""
        try:
            await self.settle(id)
        except (DiskFull, Unavailable):
            return await self._folded(id)
        return await self._rows.get_row(id)

    async def rows(self, wanted: RowFilter) -> list[ThreadRow]:
        """Returns the current rows, or the last saved ones if rows cannot be saved."""
        try:
            await self.settle_all()
        except (DiskFull, Unavailable) as error:
            log.warning("thread rows are behind; the list may be out of date: %s", error)
        return await self._rows.list_rows(wanted)

    async def run(self, id: str) -> RunRow | None:
        found = await self._rows.get_run(id)
        await self._try_settling(None if found is None else found.thread)
        return await self._rows.get_run(id)

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        await self._try_settling(None)
        return await self._rows.list_runs(wanted)

    async def spending(self, wanted: SpendingFilter, by: SpendingKey = "all") -> list[Spending]:
        """Returns the sums of calls of models."""
        await self._try_settling(None)
        return await self._rows.spending(wanted, by)

    async def needed_snapshots(self) -> set[str]:
        """Returns the snapshots that forks and rewinds of threads refer to. Raises if rows cannot be brought up to
        date: a snapshot too many is better than one too few.
        """
        await self.settle_all()
        return await self._rows.needed_snapshots()

    async def unsettled(self) -> list[str]:
        """Returns the threads that have a run in progress or queued prompts."""
        await self._try_settling(None)
        return await self._rows.unsettled_ids()

    async def due_sessions(self) -> list[str]:
        """Returns the sessions that the server may have to do something about."""
        await self._try_settling(None)
        return await self._rows.due_session_ids()

    async def _try_settling(self, thread: str | None) -> None:
        try:
            await (self.settle_all() if thread is None else self.settle(thread))
        except (DiskFull, Unavailable) as error:
            log.warning("thread rows are behind; runs may be out of date: %s", error)

    async def settle(self, id: str) -> None:
        """Bring one thread's row up to date."""
        if id in self._behind or id in self._folding:
            async with self._lock:
                if id in self._behind:
                    await self._fold([id])

    async def settle_all(self) -> None:
        """Bring every row up to date with what was committed before this call.

        Later commits are left out. Otherwise, constant writers would keep this from ending.
        """
        wanted = self._behind | self._folding
        while wanted:
            async with self._lock:
                wanted &= self._behind  # the holder of the lock has folded the others
                batch = list(itertools.islice(wanted, _BATCH))
                await self._fold(batch)
                wanted.difference_update(batch)

    def _on_change(self, change: Change) -> None:
        if change.path.startswith(THREADS):
            self._behind.add(change.path[len(THREADS) :])

    async def _sweep(self) -> None:
        while True:
            try:
                await self.settle_all()
            except Refused as error:
                log.warning("thread rows are behind; the sweep will try again: %s", error)
            except Exception:
                log.exception("thread rows are behind; the sweep will try again")
            await asyncio.sleep(_SWEEP_SECONDS)

    async def _fold(self, ids: list[str]) -> None:
        """The caller must hold the lock."""
        rows, gone = [], []
        # Removed before reading, so that a commit in the meantime marks its thread again.
        self._behind.difference_update(ids)
        self._folding.update(ids)
        try:
            for id in ids:
                row = await self._folded(id)
                if row is None:
                    gone.append(id)
                else:
                    rows.append(row)
            await self._rows.save_rows(rows, gone)
        except BaseException:
            self._behind.update(ids)
            raise
        finally:
            self._folding.clear()

    async def _folded(self, id: str) -> ThreadRow | None:
        try:
            info = await self._store.head(THREADS + id)
            row = await self._rows.get_row(id)
            if row is None or row.stream != info.id:
                row = await self._begun(id, info)
            return await self._brought_up(row, info)
        except (NotFound, Gone):
            return None

    async def _begun(self, id: str, info: StreamInfo) -> ThreadRow:
        """Returns the row of a thread that has none. That of a fork begins with the row of its source, so that the
        entries that they share are not read again, however many they are.
        """
        empty = ThreadRow(id, info.id, created_at=info.created_at, last_activity_at=info.created_at)
        mark = await self._mark_of_source(info)
        if mark is None:
            return empty
        row = await self._brought_up(empty.inherit(mark), info)
        # A fork has no parent once its own `forked` says so. A stream that is forked by hand has no such entry.
        return empty if mark.lineage.fork_of is not None and row.lineage.fork_of is None else row

    async def _brought_up(self, row: ThreadRow, info: StreamInfo) -> ThreadRow:
        """Returns the row after all entries of its stream."""
        position = row.folded
        try:
            while True:
                piece = await self._store.read(info.path, position, _FOLD_BYTES)
                row = self._after(row, piece.data, position)
                position = piece.end
                if position >= info.tail:
                    break
                await asyncio.sleep(0)  # reads from memory do not yield to other tasks
        except StreamDamaged as error:
            log.error("the row of thread %s covers its stream only up to %d: %s", row.id, position, error)
        return replace(row, folded=position)

    def _after(self, row: ThreadRow, data: bytes, position: int) -> ThreadRow:
        """Returns the row after the entries in `data`, which begins at a position, with marks at the ends of runs."""
        begin = 0
        for end in run_ends(data):
            row = fold(row, parse_json(as_array(data[begin:end])), self._seals, position + begin)
            if row.can_be_marked:
                row = row.marked(position + end)
            begin = end
        return fold(row, parse_json(as_array(data[begin:])), self._seals, position + begin)

    async def _mark_of_source(self, fork: StreamInfo) -> ThreadRow | None:
        """Returns the row of the thread that this one was forked from, at that position, if there is a mark.

        The mark may be that of a thread further up: all of them have the same entries up to there.
        """
        source, position = fork.fork_source, fork.fork_offset
        for _ in range(_DEEPEST):
            if source is None or not source.startswith(THREADS):
                return None
            try:
                info = await self._store.head(source)
            except (NotFound, Gone):
                return None
            mark = await self._rows.row_at(source[len(THREADS) :], info.id, position)
            if mark is not None:
                return mark
            if info.fork_offset < position:
                return None
            source = info.fork_source
        return None


def run_ends(data: bytes) -> list[int]:
    """Returns the positions in these messages after entries that may end a run."""
    if _FINISHED not in data:
        return []
    found, at = [], 0
    for message in split_messages(data):
        at += len(message) + len(SEPARATOR)
        if _FINISHED in message and parse_json(message)["payload"]["type"] == FINISHED:
            found.append(at)
    return found
