"""The one thread that writes. It takes whatever has been asked since its last commit and commits it as one.

Decisions were taken on the event loop before an operation comes here: this thread only writes them down. It is handed
what one turn of the loop gathered, all together: woken by the first append of a turn, it would commit that one alone
while its neighbours, already received, wait for the next commit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from holdfast.api.errors import DiskFull, Refused, Unavailable
from holdfast.storage.sqlite import reserve
from holdfast.storage.sqlite.schema import connect, is_corruption
from holdfast.storage.sqlite.streams.chunks import CHUNK_BYTES, insert_chunks, is_damaged, join_chunks
from holdfast.storage.sqlite.streams.journal import JournalEntry, StreamFiling, encode, entries_of, file, insert_row
from holdfast.storage.sqlite.streams.record import StreamRecord
from holdfast.threads.acknowledgement import Acknowledgement
from holdfast.threads.streams import Appended

log = logging.getLogger(__name__)

FOLD_AFTER: Final = 64
"""How many small chunks of a stream are folded into large ones at a time."""
_MAX_GROUP: Final = 4096
CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
"""After a checkpoint the write-ahead log is written from its beginning again. That is the point of doing it often: to
sync bytes that have their place on the disk takes half as long as to sync a file that grows."""
_PAGE: Final = 4096


class OtherOperation:
    """Something else to write. `settle` is called on the event loop once it is durable, or has failed."""

    __slots__ = ("record", "settle")

    def __init__(self, record: StreamRecord | None, settle: Callable[[Refused | None], None]) -> None:
        self.record = record
        self.settle = settle


class AppendOperation:
    """Bytes for the end of a stream, with what must become durable in the same instant."""

    __slots__ = ("acknowledgement", "appended", "entry", "record", "row")

    def __init__(self, record: StreamRecord, entry: JournalEntry | None, appended: Appended) -> None:
        self.record = record
        self.entry = entry
        """None: nothing to write, only to wait until what came before is written."""
        self.appended = appended
        """The answer, once it is durable."""
        self.acknowledgement = Acknowledgement()
        self.row = 0
        """The journal's row that it is in, once written."""


class FilingOperation(OtherOperation):
    """Moves what the journal holds into the tables that are read by stream."""

    __slots__ = ("filings", "kept", "up_to")

    def __init__(
        self,
        settle: Callable[[Refused | None], None],
        filings: Sequence[tuple[StreamRecord, StreamFiling]],
        up_to: int,
        kept: list[StreamFiling],
    ) -> None:
        super().__init__(None, settle)
        self.filings = filings
        self.up_to = up_to
        self.kept = kept
        """What stays in the journal: it belongs to streams that are damaged."""


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
        """About how many bytes more than a page it adds to the write-ahead log."""
        self.frees_space = frees_space
        """On a full disk, it may have the room that is kept for this."""


Operation = AppendOperation | OtherOperation

Settled = list[tuple[Operation, Refused | None]]


class Writer:
    """Owns the writing connection and its thread. `on_settled` is called from that thread, once per commit."""

    def __init__(self, path: Path, last_row: int, on_settled: Callable[[Settled], None]) -> None:
        self._path = path
        self._on_settled = on_settled
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Operation] = []
        """Submitted in this turn of the loop, and not handed over yet."""
        self._queue: queue.SimpleQueue[list[Operation] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._connection = connect(path)
        # Checkpoints are ours to time (see _checkpoint_when_due), so that no writer waits for one it did not cause.
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._row = last_row
        """Number of the journal's last row."""
        self.making_room = False
        """The disk is full, and something is being removed. A checkpoint would take the little room there is to make
        the file larger, while the end of the file is about to be cut off. The event loop ends this state."""
        self._unchecked = 0
        """About how many bytes the write-ahead log has grown by since the last checkpoint."""

    def submit(self, operation: Operation) -> None:
        """Have this written with all else that this turn of the loop submits. Called on the event loop."""
        if not self._gathered:
            self._loop.call_soon(self.hand_over)
        self._gathered.append(operation)

    def hand_over(self) -> None:
        """Give the thread what was gathered. Called on the event loop, by itself once per turn."""
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what was handed over, then end. Blocks."""
        self._queue.put(None)
        self._thread.join()
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as error:
            log.warning("the last checkpoint failed, nothing is lost: %s", error)
        self._connection.close()

    def _run(self) -> None:
        running = True
        while running:
            operations: list[Operation] = []
            running = self._take(operations)
            if operations:
                settled = self._commit(operations)
                if any(isinstance(error, DiskFull) for _, error in settled):
                    self._unchecked = CHECKPOINT_BYTES  # what room there is goes to a log that can be begun again
                self._on_settled(settled)
                self._checkpoint_when_due()

    def _take(self, into: list[Operation]) -> bool:
        """Wait for operations, then take all there are; False when told to stop."""
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
        # One of them cannot be written. Alone, each succeeds or fails by itself.
        return [(operation, self._make_room(operation, self._try_commit([operation]))) for operation in operations]

    def _make_room(self, operation: Operation, error: Refused | None) -> Refused | None:
        """Try again what would free space, on a full disk, with a part of what is kept for that."""
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
        # A filing empties the journal, also of what belonged to streams that are deleted.
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
        connection.execute("SAVEPOINT filing")
        try:
            file(connection, [filing for _, filing in operation.filings], operation.up_to)
        except sqlite3.DatabaseError as error:
            if not is_corruption(error):
                raise
            connection.execute("ROLLBACK TO filing")
            self._file_each(operation)
        connection.execute("RELEASE filing")
        kept = [entry for filing in operation.kept for entry in entries_of(filing)]
        if kept:
            insert_row(connection, operation.up_to, encode(kept))
        for record, filing in operation.filings:
            if record.damaged is None:
                self._fold_when_due(record, filing)
            self._unchecked += _PAGE + sum(map(len, filing.pieces))

    def _file_each(self, operation: FilingOperation) -> None:
        """Some page is damaged. The streams that have nothing on it are filed, the others stay in the journal."""
        connection = self._connection
        for record, filing in operation.filings:
            connection.execute("SAVEPOINT one")
            try:
                file(connection, [filing], 0)
            except sqlite3.DatabaseError as error:
                if not is_corruption(error):
                    raise
                connection.execute("ROLLBACK TO one")
                record.damaged = f"it cannot be written to: {error}"
                operation.kept.append(filing)
                log.error("stream %s is damaged, what was appended to it stays in the journal: %s", record.path, error)
            connection.execute("RELEASE one")
        file(connection, [], operation.up_to)

    def _fold_when_due(self, record: StreamRecord, filing: StreamFiling) -> None:
        if not filing.pieces:
            return
        record.loose += 1
        if record.loose >= FOLD_AFTER:
            self._fold(record, filing.end)

    def _fold(self, record: StreamRecord, end: int) -> None:
        """Join small neighbouring chunks, so that reading a long stream is a few large reads."""
        connection, span = self._connection, (record.id, record.folded, end)
        condition = 'WHERE stream = ? AND "end" > ? AND "end" <= ?'
        rows = connection.execute(
            f'SELECT "end", data, checksum FROM chunks {condition} ORDER BY "end"', span
        ).fetchall()
        small = [data for _, data, _ in rows]
        # Damaged bytes keep the checksum that gives them away.
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
        """Whether a checkpoint leaves the file no larger than it is."""
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        return bool(pages * _PAGE <= self._path.stat().st_size)

    def _checkpoint(self) -> None:
        self._unchecked = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.OperationalError as error:
            log.warning("a checkpoint failed, it will be tried again: %s", error)


def _as_stream_error(cause: Exception) -> Refused:
    if isinstance(cause, Refused):
        return cause
    if reserve.is_full(cause):
        log.error("cannot write, the disk may be full: %s", cause)
        return DiskFull(f"nothing was written, the disk is full or failing ({cause}): free space and try again")
    log.exception("cannot write", exc_info=cause)
    return Unavailable(f"nothing was written: {cause}")
