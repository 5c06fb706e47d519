"""The only thread that writes. It commits everything that was submitted since its last commit as one transaction.

Decisions are made on the event loop; this thread only writes. It receives everything that one turn of the loop gathered
at once. If the first append of a turn woke it, it would commit that one alone, while the others wait for the next
commit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final

from holdfast.api.errors import DiskFull, Refused, Unavailable
from holdfast.storage.sqlite import reserve
from holdfast.storage.sqlite.schema import connect, is_corruption
from holdfast.storage.sqlite.streams.chunks import CHUNK_BYTES, insert_chunks, is_damaged, join_chunks
from holdfast.storage.sqlite.streams.journal import JournalEntry, StreamFiling, encode, entries_of, file, insert_row
from holdfast.storage.sqlite.streams.record import StreamRecord, stream_exists
from holdfast.threads.store import Acknowledgement, Appended

log = logging.getLogger(__name__)

FOLD_AFTER: Final = 64
"""How many small chunks of a stream are folded into large ones at a time."""
_MAX_GROUP: Final = 4096
CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
"""After a checkpoint, the write-ahead log is written from its beginning again. This is why checkpoints are frequent:
syncing bytes that already have their place on the disk takes half as long as syncing a growing file.
"""
_PAGE: Final = 4096


class OtherOperation:
    """Another kind of write. `settle` is called on the event loop once it is durable or has failed."""

    __slots__ = ("record", "settle")

    def __init__(self, record: StreamRecord | None, settle: Callable[[Refused | None], None]) -> None:
        self.record = record
        self.settle = settle


class AppendOperation:
    """An append to a stream, with everything that must become durable together with it."""

    __slots__ = ("acknowledgement", "appended", "entry", "record", "row")

    def __init__(self, record: StreamRecord, entry: JournalEntry | None, appended: Appended) -> None:
        self.record = record
        self.entry = entry
        """None if there is nothing to write, and only earlier writes are waited for."""
        self.appended = appended
        """The result, once it is durable."""
        self.acknowledgement = Acknowledgement()
        self.row = 0
        """The row of the journal that has it, once written."""


class FilingOperation(OtherOperation):
    """Moves entries from the journal into the tables that are read by stream."""

    __slots__ = ("doomed", "filings", "kept", "stuck", "up_to")

    def __init__(
        self,
        settle: Callable[[Refused | None], None],
        filings: Sequence[tuple[StreamRecord, StreamFiling]],
        up_to: int,
        stuck: Sequence[StreamFiling],
        doomed: Set[int],
    ) -> None:
        super().__init__(None, settle)
        self.filings = filings
        self.up_to = up_to
        self.stuck = stuck
        """What stays in the journal, because its streams are known to be damaged."""
        self.kept: Sequence[StreamFiling] = stuck
        """The same, with the streams whose damage was found by this filing."""
        self.doomed = doomed
        """Streams whose deletion was not settled when the filing began. If it failed, they are filed as well: their
        part of the journal is removed here.
        """


class CallOperation(OtherOperation):
    """Any other write, as a function of the connection."""

    __slots__ = ("frees_space", "size", "write")

    def __init__(
        self,
        record: StreamRecord | None,
        settle: Callable[[Refused | None], None],
        write: Callable[[sqlite3.Connection], None],
        *,
        size: int = 0,
        frees_space: bool = False,
    ) -> None:
        super().__init__(record, settle)
        self.write = write
        self.size = size
        """Approximately how many bytes beyond a page it adds to the write-ahead log."""
        self.frees_space = frees_space
        """Whether it may use the reserved space on a full disk."""


Operation = AppendOperation | OtherOperation

Settled = list[tuple[Operation, Refused | None]]


class Writer:
    """Owns the write connection and its thread. `on_settled` is called on that thread, once per commit."""

    def __init__(self, path: Path, last_row: int, on_settled: Callable[[Settled], None]) -> None:
        self._path = path
        self._on_settled = on_settled
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Operation] = []
        """Submitted in this turn of the loop, and not handed over yet."""
        self._queue: queue.SimpleQueue[list[Operation] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._connection = connect(path)
        # Checkpoints are timed by _checkpoint_when_due, so that no writer waits for one that it did not cause.
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._row = last_row
        """Number of the journal's last row."""
        self.making_room = False
        """The disk is full and something is being removed. A checkpoint would use the little space left to grow the
        file, although its end is about to be truncated. The event loop ends this state.
        """
        self._unchecked = 0
        """Approximately how many bytes the write-ahead log has grown since the last checkpoint."""

    def submit(self, operation: Operation) -> None:
        """Submit an operation, to be written with all others of this turn of the loop. Must be called on the event
        loop.
        """
        if not self._gathered:
            self._loop.call_soon(self.hand_over)
        self._gathered.append(operation)

    def hand_over(self) -> None:
        """Hand the gathered operations to the thread. Runs on the event loop, once per turn."""
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what was handed over, then stop. Blocks."""
        self._queue.put(None)
        self._thread.join()
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as error:
            log.warning("the last checkpoint failed, but nothing is lost: %s", error)
        self._connection.close()

    def _run(self) -> None:
        running = True
        while running:
            operations: list[Operation] = []
            running = self._take(operations)
            if operations:
                settled = self._commit(operations)
                if any(isinstance(error, DiskFull) for _, error in settled):
                    self._unchecked = CHECKPOINT_BYTES  # a checkpoint lets the log be reused, so it needs no more space
                self._on_settled(settled)
                self._checkpoint_when_due()

    def _take(self, into: list[Operation]) -> bool:
        """Wait for operations, then take all of them. Returns False when told to stop."""
        operations = self._queue.get()
        while operations is not None:
            into += operations
            if len(into) >= _MAX_GROUP:
                return True
            try:
                operations = self._queue.get_nowait()
            except queue.Empty:
                return True
        return False

    def _commit(self, operations: list[Operation]) -> Settled:
        error = self._try_commit(operations)
        if error is None:
            return [(operation, None) for operation in operations]
        if len(operations) == 1:
            return [(operations[0], self._make_room(operations[0], error))]
        # One of them cannot be written. Tried alone, each succeeds or fails on its own.
        return [(operation, self._make_room(operation, self._try_commit([operation]))) for operation in operations]

    def _make_room(self, operation: Operation, error: Refused | None) -> Refused | None:
        """On a full disk, retry an operation that frees space with part of the reserved space."""
        while isinstance(error, DiskFull) and self._frees_space(operation):
            if not reserve.spend(self._path, reserve.DELETE_SHARE):
                return error
            self.making_room = True
            if operation.record is not None:
                operation.record.broken = False
            error = self._try_commit([operation])
        return error

    def _frees_space(self, operation: Operation) -> bool:
        if isinstance(operation, CallOperation):
            return operation.frees_space
        # A filing empties the journal, including entries of deleted streams.
        return isinstance(operation, FilingOperation) and self.making_room

    def _try_commit(self, operations: list[Operation]) -> Refused | None:
        connection = self._connection
        try:
            if any(operation.record is not None and operation.record.broken for operation in operations):
                raise Unavailable("an earlier write to this stream failed: try again")
            appends = [operation for operation in operations if isinstance(operation, AppendOperation)]
            if len(appends) == len(operations):
                self._write_appends(appends)  # one statement, which is its own transaction
            else:
                connection.execute("BEGIN IMMEDIATE")
                self._write_appends(appends)
                self._write_others(operations)
                connection.execute("COMMIT")
        except Exception as cause:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(operations) == 1 and (record := operations[0].record) is not None:
                record.broken = True
            return _as_stream_error(cause)
        return None

    def _write_appends(self, appends: list[AppendOperation]) -> None:
        entries = [append.entry for append in appends if append.entry is not None]
        if not entries:
            return
        row = encode(entries)
        self._row += 1
        insert_row(self._connection, self._row, row)
        self._unchecked += len(row) + _PAGE
        for append in appends:
            append.row = self._row

    def _write_others(self, operations: list[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, CallOperation):
                operation.write(self._connection)
                self._unchecked += _PAGE + operation.size
            elif isinstance(operation, FilingOperation):
                self._file(operation)

    def _file(self, operation: FilingOperation) -> None:
        connection = self._connection
        filings = [
            (record, filing)
            for record, filing in operation.filings
            if record.id not in operation.doomed or stream_exists(connection, record.id)
        ]
        operation.kept = operation.stuck
        connection.execute("SAVEPOINT filing")
        try:
            file(connection, [filing for _, filing in filings], operation.up_to)
        except sqlite3.DatabaseError as error:
            if not is_corruption(error):
                raise
            connection.execute("ROLLBACK TO filing")
            operation.kept = [*operation.stuck, *self._file_each(filings, operation.up_to)]
        connection.execute("RELEASE filing")
        kept = [entry for filing in operation.kept for entry in entries_of(filing)]
        if kept:
            insert_row(connection, operation.up_to, encode(kept))
        for record, filing in filings:
            if record.damaged is None:
                self._fold_when_due(record, filing)
            self._unchecked += _PAGE + sum(map(len, filing.pieces))

    def _file_each(self, filings: Sequence[tuple[StreamRecord, StreamFiling]], up_to: int) -> list[StreamFiling]:
        """A page is damaged. File the streams that are not on it, and return the others, to keep in the journal."""
        connection = self._connection
        kept = []
        for record, filing in filings:
            connection.execute("SAVEPOINT one")
            try:
                file(connection, [filing], 0)
            except sqlite3.DatabaseError as error:
                if not is_corruption(error):
                    raise
                connection.execute("ROLLBACK TO one")
                record.damaged = f"the stream cannot be written: {error}"
                kept.append(filing)
                log.error("stream %s is damaged; its appends stay in the journal: %s", record.path, error)
            connection.execute("RELEASE one")
        file(connection, [], up_to)
        return kept

    def _fold_when_due(self, record: StreamRecord, filing: StreamFiling) -> None:
        if not filing.pieces:
            return
        record.loose += 1
        if record.loose >= FOLD_AFTER:
            self._fold(record, filing.end)

    def _fold(self, record: StreamRecord, end: int) -> None:
        """Join small neighbouring chunks, so that a long stream is read in a few large reads."""
        connection, span = self._connection, (record.id, record.folded, end)
        condition = 'WHERE stream = ? AND "end" > ? AND "end" <= ?'
        rows = connection.execute(
            f'SELECT "end", data, checksum FROM chunks {condition} ORDER BY "end"', span
        ).fetchall()
        small = [data for _, data, _ in rows]
        # Damaged bytes keep the checksum that reveals them.
        sound = not any(is_damaged(record.id, *row) for row in rows)
        if sound and any(len(data) < CHUNK_BYTES // 2 for data in small[:-1]):
            connection.execute(f"DELETE FROM chunks {condition}", span)
            insert_chunks(connection, join_chunks(record.id, end, small))
        record.folded = end
        record.loose = 0

    def _checkpoint_when_due(self) -> None:
        if self._fits() if self.making_room else self._unchecked >= CHECKPOINT_BYTES:
            self._checkpoint()

    def _fits(self) -> bool:
        """Returns whether a checkpoint would not grow the file."""
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        return bool(pages * _PAGE <= self._path.stat().st_size)

    def _checkpoint(self) -> None:
        self._unchecked = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.OperationalError as error:
            log.warning("a checkpoint failed and will be retried: %s", error)


def _as_stream_error(cause: Exception) -> Refused:
    if isinstance(cause, Refused):
        return cause
    if reserve.is_full(cause):
        log.error("cannot write, the disk may be full: %s", cause)
        return DiskFull(f"nothing was written because the disk is full or failing ({cause}): free space and try again")
    log.exception("cannot write", exc_info=cause)
    return Unavailable(f"nothing was written: {cause}")
