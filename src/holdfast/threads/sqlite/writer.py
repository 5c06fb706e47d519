"""The one thread that writes. It takes whatever has been asked since its last commit and commits it as one.

Decisions were taken on the event loop before an operation comes here: this thread only writes them down.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson

from holdfast.threads.errors import StoreFull, StoreUnavailable, StreamError
from holdfast.threads.sqlite.record import StreamRecord
from holdfast.threads.sqlite.schema import connect
from holdfast.threads.streams import Producer

log = logging.getLogger(__name__)

FOLD_AFTER: Final = 256
"""How many small chunks of a stream are folded into large ones at a time."""
FOLD_BYTES: Final = 64 * 1024
_MAX_GROUP: Final = 4096
_CHECKPOINT_BYTES: Final = 32 * 1024 * 1024
_PAGE: Final = 4096
_ROW_COUNTS: Final = (256, 64, 16, 4, 1)


class Operation:
    """Something to write. `settle` is called on the event loop once it is durable, or has failed."""

    __slots__ = ("record", "settle")

    def __init__(self, record: StreamRecord | None, settle: Callable[[StreamError | None], None]) -> None:
        self.record = record
        self.settle = settle


class AppendOperation(Operation):
    """Bytes for the end of a stream, with what must become durable in the same instant."""

    __slots__ = ("close", "data", "end", "keys", "producer", "seq")

    def __init__(
        self,
        record: StreamRecord,
        settle: Callable[[StreamError | None], None],
        data: bytes,
        end: int,
        producer: Producer | None,
        seq: str | None,
        close: bool,
        keys: Sequence[tuple[str, int]],
    ) -> None:
        super().__init__(record, settle)
        self.data = data
        self.end = end
        self.producer = producer
        self.seq = seq
        self.close = close
        self.keys = keys


class CallOperation(Operation):
    """Any other write, as a function of the connection."""

    __slots__ = ("write",)

    def __init__(
        self,
        record: StreamRecord | None,
        settle: Callable[[StreamError | None], None],
        write: Callable[[sqlite3.Connection], None],
    ) -> None:
        super().__init__(record, settle)
        self.write = write


Settled = list[tuple[Operation, StreamError | None]]


class Writer:
    """Owns the writing connection and its thread. `on_settled` is called from that thread, once per commit."""

    def __init__(self, path: Path, on_settled: Callable[[Settled], None]) -> None:
        self._path = path
        self._on_settled = on_settled
        self._queue: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._connection = connect(path)
        # Checkpoints are ours to time (see _checkpoint), so that no writer waits for one it did not cause.
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._unchecked = 0
        """About how many bytes the write-ahead log has grown by since the last checkpoint."""
        self.submit = self._queue.put

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what was submitted, then end. Blocks."""
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
                self._on_settled(self._commit(operations))
                self._checkpoint_when_due()

    def _take(self, into: list[Operation]) -> bool:
        """Wait for an operation, then take all there are; False when told to stop."""
        operation = self._queue.get()
        while operation is not None:
            into.append(operation)
            if len(into) >= _MAX_GROUP:
                return True
            try:
                operation = self._queue.get_nowait()
            except queue.Empty:
                return True
        return False

    def _commit(self, operations: list[Operation]) -> Settled:
        error = self._try_commit(operations)
        if error is None:
            return [(operation, None) for operation in operations]
        if len(operations) == 1:
            return [(operations[0], error)]
        # One of them cannot be written. Alone, each succeeds or fails by itself.
        return [(operation, self._try_commit([operation])) for operation in operations]

    def _try_commit(self, operations: list[Operation]) -> StreamError | None:
        connection = self._connection
        try:
            if any(operation.record is not None and operation.record.broken for operation in operations):
                raise StoreUnavailable("an earlier write to this stream failed: try again")
            connection.execute("BEGIN IMMEDIATE")
            self._write(operations)
            connection.execute("COMMIT")
        except Exception as cause:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(operations) == 1 and (record := operations[0].record) is not None:
                record.broken = True
            return _as_stream_error(cause)
        return None

    def _write(self, operations: list[Operation]) -> None:
        appends: list[AppendOperation] = []
        for operation in operations:
            if isinstance(operation, AppendOperation):
                appends.append(operation)
            elif isinstance(operation, CallOperation):
                self._write_appends(appends)
                appends.clear()
                operation.write(self._connection)
        self._write_appends(appends)

    def _write_appends(self, appends: list[AppendOperation]) -> None:
        """One row per stream, not per append; one statement for many rows, as each statement costs a thread switch."""
        chunks: dict[StreamRecord, tuple[list[bytes], int]] = {}
        producers: dict[tuple[int, str], tuple[int, int]] = {}
        keys: list[tuple[int, str, int]] = []
        marks: dict[StreamRecord, AppendOperation] = {}
        for append in appends:
            record = append.record
            assert record is not None
            if append.data:
                pieces, _ = chunks.get(record) or ([], 0)
                pieces.append(append.data)
                chunks[record] = (pieces, append.end)
            if append.producer is not None:
                producers[record.id, append.producer.id] = (append.producer.epoch, append.producer.seq)
            if append.keys:
                keys.extend((record.id, key, end) for key, end in append.keys)
            if append.close or append.seq is not None:
                marks[record] = append
        if chunks:
            rows = [(record.id, end, b"".join(pieces)) for record, (pieces, end) in chunks.items()]
            self._insert('INSERT INTO chunks (stream, "end", data) VALUES', rows)
        if producers:
            self._insert(
                "INSERT INTO producers (stream, producer, epoch, seq) VALUES",
                [(*key, *state) for key, state in producers.items()],
                " ON CONFLICT (stream, producer) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq",
            )
        if keys:
            self._insert('INSERT INTO message_keys (stream, key, "end") VALUES', keys)
        for record, append in marks.items():
            self._mark(record, append)
        for record, (pieces, end) in chunks.items():
            record.loose += 1
            if record.loose >= FOLD_AFTER or sum(map(len, pieces)) > FOLD_BYTES:
                self._fold(record, end)

    def _insert(self, head: str, rows: Sequence[tuple[Any, ...]], tail: str = "") -> None:
        position = 0
        row = f" ({', '.join('?' * len(rows[0]))})"
        for count in _ROW_COUNTS:
            while len(rows) - position >= count:
                values = [value for each in rows[position : position + count] for value in each]
                self._connection.execute(head + ",".join([row] * count) + tail, values)
                position += count
        self._unchecked += _PAGE * len(rows)

    def _mark(self, record: StreamRecord, append: AppendOperation) -> None:
        if append.seq is not None:
            self._connection.execute("UPDATE streams SET last_seq = ? WHERE id = ?", (append.seq, record.id))
        if append.close:
            closed_by = orjson.dumps(asdict(append.producer)).decode() if append.producer else None
            self._connection.execute(
                "UPDATE streams SET closed = 1, closed_by = ? WHERE id = ?", (closed_by, record.id)
            )

    def _fold(self, record: StreamRecord, end: int) -> None:
        """Join small neighbouring chunks, so that reading a long stream is a few large reads."""
        connection = self._connection
        small = connection.execute(
            'SELECT "end", data FROM chunks WHERE stream = ? AND "end" > ? AND "end" <= ? ORDER BY "end"',
            (record.id, record.folded, end),
        ).fetchall()
        if len(small) > 1:
            connection.execute(
                'DELETE FROM chunks WHERE stream = ? AND "end" > ? AND "end" <= ?', (record.id, record.folded, end)
            )
            self._insert('INSERT INTO chunks (stream, "end", data) VALUES', list(_folded(record.id, small)))
        record.folded = end
        record.loose = 0

    def _checkpoint_when_due(self) -> None:
        if self._unchecked < _CHECKPOINT_BYTES:
            return
        self._unchecked = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.OperationalError as error:
            log.warning("a checkpoint failed, it will be tried again: %s", error)


def _folded(stream: int, small: Iterable[tuple[int, bytes]]) -> Iterable[tuple[int, int, bytes]]:
    pieces: list[bytes] = []
    size = last = 0
    for end, data in small:
        if pieces and size + len(data) > FOLD_BYTES:
            yield stream, last, b"".join(pieces)
            pieces, size = [], 0
        pieces.append(data)
        size += len(data)
        last = end
    if pieces:
        yield stream, last, b"".join(pieces)


def _as_stream_error(cause: Exception) -> StreamError:
    if isinstance(cause, StreamError):
        return cause
    full = isinstance(cause, sqlite3.OperationalError) and (
        getattr(cause, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))
    )
    if full:
        log.error("cannot write, the disk may be full: %s", cause)
        return StoreFull(f"nothing was written, the disk is full or failing ({cause}): free space and try again")
    log.exception("cannot write", exc_info=cause)
    return StoreUnavailable(f"nothing was written: {cause}")
