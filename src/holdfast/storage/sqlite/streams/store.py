"""The stream store on SQLite: decides on the event loop, writes on one thread, reads on a few."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.api.errors import Conflict, DiskFull, Gone, InvalidRequest, NotFound, Refused, Unavailable
from holdfast.api.errors.threads import StreamDamaged
from holdfast.api.ids import now_ms
from holdfast.storage.sqlite import reserve
from holdfast.storage.sqlite.schema import connect, prepare
from holdfast.storage.sqlite.streams import journal
from holdfast.storage.sqlite.streams.chunks import insert_chunks, join_chunks
from holdfast.storage.sqlite.streams.journal import JournalEntry, Loaded, StreamFiling
from holdfast.storage.sqlite.streams.message_keys import LookedUp, MessageKeys
from holdfast.storage.sqlite.streams.purge import Purger
from holdfast.storage.sqlite.streams.reader import Reader, Span, spans_of
from holdfast.storage.sqlite.streams.record import (
    StreamRecord,
    delete_streams,
    insert_stream,
    load_record,
    load_record_by_id,
    soft_delete_stream,
    stream_exists,
    touch_streams,
)
from holdfast.storage.sqlite.streams.writer import (
    AppendOperation,
    CallOperation,
    FilingOperation,
    Operation,
    Settled,
    Writer,
)
from holdfast.threads.protocol.framing import skip_messages
from holdfast.threads.protocol.rules import Duplicate, ExistingStream, check_same, decide_append
from holdfast.threads.store import (
    Acknowledgement,
    Appended,
    AppendRequest,
    Change,
    ChangeFeed,
    Created,
    ForkPoint,
    Keyed,
    Slice,
    StreamConfig,
    StreamInfo,
    Watcher,
    normalize_content_type,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_RECORDS: Final = 20_000
"""How many idle streams stay in memory."""
_SWEEP_SECONDS: Final = 1.0
_FORK_READ: Final = 1024 * 1024
_FILE_BYTES: Final = 4 * 1024 * 1024
"""How much the journal gathers before it is filed. Memory use and the start after a crash depend on it."""
_ENTRY_BYTES: Final = 100
"""The cost of an entry beside its data."""


class SqliteStreams:
    """Owns the database file, its writer thread and its readers. Open it with `open`, and end it with `close`."""

    def __init__(self, path: Path, *, tenant: str, clock: Callable[[], int], changes: ChangeFeed) -> None:
        self._path = path
        self._tenant = tenant
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lookup = connect(path)
        prepare(self._lookup)
        reserve.keep(path)
        left = journal.load(self._lookup)
        self._row = left.last_row
        """Number of the last settled row of the journal."""
        self._stranded: list[StreamFiling] = []
        """What the journal holds of streams that cannot be opened."""
        self._writer = Writer(path, self._row, self._settled_from_thread)
        self._reader = Reader(path)
        self._purger = Purger(path, self._lookup, self._writer, self._write, self._file)
        self._records: dict[str, StreamRecord] = {}
        self._by_id: dict[int, StreamRecord] = {}
        self._keys = MessageKeys(self._lookup, self._reader, self._by_id)
        self._doomed: set[int] = set()
        """Streams that are deleted but whose rows are removed only with the next commit."""
        self._hiding: set[int] = set()
        """Streams whose soft deletion is being written."""
        self._touched: set[StreamRecord] = set()
        self._unfiled: set[StreamRecord] = set()
        self._unfiled_bytes = 0
        self._stuck: set[int] = set()
        """Streams with damaged pages. What is appended to them stays in the journal."""
        self._filing: asyncio.Future[None] | None = None
        """Done when the filing in progress is settled."""
        self._filing_failed = False
        """There is no space to file. The sweep retries once a second, instead of every commit."""
        self._changes = changes
        (last,) = self._lookup.execute(
            "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'streams'), 0)"
        ).fetchone()
        self._next_id: int = last + 1
        self._commits = self._operations = 0
        self._closing = False
        self._restore(left)
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        tenant: str = "default",
        clock: Callable[[], int] = now_ms,
        changes: ChangeFeed | None = None,
    ) -> SqliteStreams:
        """Open the store. Its commits are announced to `changes`."""
        store = cls(path, tenant=tenant, clock=clock, changes=changes or ChangeFeed())
        store._writer.start()
        store._sweeper = asyncio.create_task(store._sweep(), name="holdfast-sweeper")
        return store

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        self._flush_touched()
        while self._has_unfiled():
            try:
                await self._file()
            except Refused as error:
                log.warning("the journal could not be filed; the next start will continue: %s", error)
                break
        self._writer.hand_over()
        await self._loop.run_in_executor(None, self._writer.stop)
        await self._loop.run_in_executor(None, self._reader.close)
        await asyncio.sleep(0)  # let the last settlements run, which are already posted to this loop
        self._lookup.close()

    # Reading

    async def head(self, path: str) -> StreamInfo:
        return self._live(path).info()

    async def touch(self, path: str) -> StreamInfo:
        record = self._live(path)
        self._touch(record)
        return record.info()

    async def read(self, path: str, start: int, limit: int) -> Slice:
        record = self._live(path)
        self._touch(record)
        if record.damaged is not None and not record.durable_tail:
            raise StreamDamaged(f"stream {path} is damaged: {record.damaged}")
        tail, closed = record.durable_tail, record.durable_closed
        if start > tail:
            raise InvalidRequest(f"offset {start} is past the end of stream {path} at {tail}")
        spans = self._spans(record, start, tail, limit)
        if all(isinstance(span, list) for span in spans):
            data = b"".join([piece for span in spans for piece in span])  # type: ignore[misc]
        else:
            try:
                data = await self._reader.read(spans, start, limit, whole_messages=record.json)
            except StreamDamaged:
                if self._live(path) is not record:
                    raise Gone(f"stream {path} was deleted during the read") from None
                raise
        if len(data) > limit:
            # What follows may not be the next bytes, because a span of an ancestor may have been read in part.
            data = data[: data.find(b"\n", max(limit, 1) - 1) + 1 if record.json else limit] or data
        return Slice(data, start, start + len(data), tail, closed)

    def _spans(self, record: StreamRecord, start: int, tail: int, limit: int) -> list[Span]:
        """Returns filed spans to read, and unfiled bytes from memory. Both are taken at once, because filing moves
        bytes.
        """
        spans: list[Span] = []
        for stream, low, high in spans_of(record.lineage, start, tail):
            owner = self._by_id.get(stream)
            filed = high if owner is None else min(high, owner.unfiled.start)
            if low < filed:
                spans.append((stream, low, filed))
            if owner is not None and filed < high:
                check = record.json and low == start
                spans.append(owner.unfiled.read(max(low, filed), high, limit, whole_messages=check))
        return spans

    async def list_paths(self, prefix: str = "") -> list[str]:
        now = self._clock()
        rows = self._lookup.execute(
            "SELECT path FROM streams WHERE tenant = ? AND path >= ? AND path < ? AND deleted = 0"
            " AND coalesce(expires_at, last_access + ttl_seconds * 1000, ?) >= ? ORDER BY path",
            (self._tenant, prefix, prefix + "\U0010ffff", now, now),
        )
        return [path for (path,) in rows]

    def watch(self, path: str, watcher: Watcher) -> Callable[[], None]:
        return self._changes.watch(self._live(path).id, watcher)

    def observe(self, watcher: Watcher) -> Callable[[], None]:
        return self._changes.observe(watcher)

    # Writing

    async def create(
        self, path: str, config: StreamConfig, data: bytes = b"", keyed: tuple[Keyed, ...] = ()
    ) -> Created:
        existing = self._find(path)
        if existing is not None:
            if existing.soft_deleted:
                raise Conflict(f"stream {path} was deleted but has forks: its path is taken until they go")
            check_same(ExistingStream(existing.path, existing.content_type, existing.closed, existing.config), config)
            await self._barrier(existing)
            return Created(existing.info(), new=False)
        fork_offset, source = 0, None
        if config.fork is not None:
            # Finding where the fork begins may require reading the source, so decide after that.
            position = await self._resolve(config.fork)
            source = self._source(config, config.fork.source)
            fork_offset = source.durable_tail if position is None else position
            if self._find(path) is not None:
                return await self.create(path, config, data, keyed)
        record = self._new_record(path, config, source, fork_offset)
        await self._submit_create(record, data, keyed)
        return Created(record.info(), new=True)

    def append(self, path: str, request: AppendRequest) -> Acknowledgement:
        return self._append(path, request, None)

    async def append_many(self, path: str, request: AppendRequest) -> Acknowledgement:
        looked_up = await self._keys.look_up(self._live(path), request.keyed) if request.keyed else None
        return self._append(path, request, looked_up)

    def _append(self, path: str, request: AppendRequest, looked_up: LookedUp | None) -> Acknowledgement:
        if self._closing:
            raise Unavailable("the server is shutting down")
        record = self._live(path)
        if record.broken:
            raise Unavailable("an earlier write to this stream failed: try again")
        if self._writer.making_room:
            raise DiskFull("the disk is full and a deletion is freeing space: try again in a moment")
        if record.damaged is not None:
            raise StreamDamaged(f"stream {path} is damaged and cannot be appended to: {record.damaged}")
        decision = decide_append(record, request, lambda producer: self._producer(record, producer))
        self._touch(record)
        if isinstance(decision, Duplicate):
            return self._repeat(record, decision)
        data, keys = self._keys.unseen(record, request.keyed, looked_up) if request.keyed else (request.data, [])
        if not data and not request.close and request.producer is None:
            return self._repeat(record, Duplicate(None, closed=record.closed))
        end = record.tail = record.tail + len(data)
        producer = request.producer
        if producer is not None:
            record.producers[producer.id] = (producer.epoch, producer.seq)
        if request.seq is not None:
            record.last_seq = request.seq
        if request.close:
            record.closed = True
            record.closed_by = producer
        if keys:
            record.accept_keys(keys)
        record.pending += 1
        operation = AppendOperation(
            record,
            JournalEntry(record.id, end, data, producer, request.seq, request.close, keys),
            Appended(end, request.close, False, producer),
        )
        self._writer.submit(operation)
        return operation.acknowledgement

    async def delete(self, path: str) -> None:
        await self._begin_delete(self._live(path))

    # Other tables in the same file

    async def write(self, write: Callable[[sqlite3.Connection], None]) -> None:
        """Run a write in the next commit, for tables beside the streams."""
        await self._write(write)

    async def _write(
        self, write: Callable[[sqlite3.Connection], None], *, size: int = 0, frees_space: bool = False
    ) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._writer.submit(CallOperation(None, _settler(future), write, size=size, frees_space=frees_space))
        await future

    async def query(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on a thread, for queries that may read many rows."""
        return await self._reader.query(work)

    def look_up(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Look up a row by its key on the event loop, which is faster than handing it to a thread."""
        return self._lookup.execute(sql, values).fetchall()

    def statistics(self) -> dict[str, int]:
        """Returns counters since the start: commits, and the operations in them."""
        return {"commits": self._commits, "operations": self._operations}

    # Records

    def _find(self, path: str) -> StreamRecord | None:
        """Returns the record of a path, including a soft-deleted one. Deletes an expired stream and returns None."""
        record = self._records.get(path)
        if record is None:
            record = load_record(self._lookup, self._tenant, path)
            if record is None or record.id in self._doomed:
                return None
            self._remember(record)
        if record.soft_deleted:
            self._release(record)  # a crash may have come between the deletion of its last fork and its own
            return None if record.id in self._doomed else record
        deadline = record.deadline()
        if deadline is not None and deadline < self._clock():
            self._begin_delete(record)
            return record if record.soft_deleted else None
        return record

    def _live(self, path: str) -> StreamRecord:
        record = self._records.get(path)
        if record is None or record.soft_deleted or record.ttl_seconds is not None or record.expires_at:
            record = self._find(path)
            if record is None:
                raise NotFound(f"there is no stream {path}")
            if record.soft_deleted:
                raise Gone(f"stream {path} was deleted")
        return record

    def _remember(self, record: StreamRecord) -> None:
        if len(self._records) >= _MAX_RECORDS:
            idle = [
                path
                for path, each in self._records.items()
                if not each.pending and not each.forks and each not in self._touched and each not in self._unfiled
            ]
            for path in idle[: _MAX_RECORDS // 2]:
                self._forget(self._records[path])
        self._records[record.path] = record
        self._by_id[record.id] = record

    def _forget(self, record: StreamRecord) -> None:
        if self._records.get(record.path) is record:
            del self._records[record.path]
        if self._by_id.get(record.id) is record:
            del self._by_id[record.id]

    def _ancestor(self, id: int) -> StreamRecord | None:
        record = self._by_id.get(id) or load_record_by_id(self._lookup, id)
        if record is not None:
            self._remember(record)
        return record

    def _touch(self, record: StreamRecord) -> None:
        if record.ttl_seconds is not None:
            record.last_access = self._clock()
            self._touched.add(record)

    def _flush_touched(self) -> None:
        rows = [(record.last_access, record.id) for record in self._touched if not record.broken]
        self._touched.clear()
        if rows:
            self._writer.submit(CallOperation(None, _ignore, lambda connection: touch_streams(connection, rows)))

    def _producer(self, record: StreamRecord, id: str) -> tuple[int, int] | None:
        known = record.producers.get(id)
        if known is None:
            known = self._lookup.execute(
                "SELECT epoch, seq FROM producers WHERE stream = ? AND producer = ?", (record.id, id)
            ).fetchone()
            if known is not None:
                record.producers[id] = known
        return known

    # Operations

    async def _barrier(self, record: StreamRecord) -> None:
        """Wait until everything accepted on this stream so far is durable."""
        if record.pending:
            await self._repeat(record, Duplicate(None, closed=False))

    def _repeat(self, record: StreamRecord, duplicate: Duplicate) -> Acknowledgement:
        """Acknowledge again what was accepted before, once it is durable."""
        appended = Appended(record.tail, closed=duplicate.closed, duplicate=True, producer=duplicate.producer)
        if not record.pending:
            return Acknowledgement.given(appended)
        record.pending += 1
        operation = AppendOperation(record, None, appended)
        self._writer.submit(operation)
        return operation.acknowledgement

    async def _resolve(self, fork: ForkPoint) -> int | None:
        """Returns the position of a fork in its source, or None for the tail."""
        source = self._live_source(fork.source)
        if fork.offset is not None and fork.offset > source.durable_tail:
            raise InvalidRequest(f"fork offset {fork.offset} is past the end of {fork.source}, {source.durable_tail}")
        if fork.offset is None and fork.sub_offset == 0:
            return None
        start = source.durable_tail if fork.offset is None else fork.offset
        if not source.json:
            position: int | None = start + fork.sub_offset
        else:
            position = await self._skip(fork.source, start, fork.sub_offset)
        if position is None or position > source.durable_tail:
            raise InvalidRequest(f"fork sub-offset {fork.sub_offset} is past the end of {fork.source}")
        return position

    async def _skip(self, path: str, position: int, messages: int) -> int | None:
        """Returns the position after `messages` more messages, or None if the stream has fewer."""
        while True:
            piece = await self.read(path, position, _FORK_READ)
            skipped = skip_messages(piece.data, messages)
            if skipped is not None:
                return position + skipped
            if piece.up_to_date:
                return None
            messages -= piece.data.count(b"\n")
            position = piece.end

    def _live_source(self, path: str) -> StreamRecord:
        record = self._find(path)
        if record is None:
            raise NotFound(f"there is no stream {path} to fork")
        if record.soft_deleted:
            raise Conflict(f"stream {path} was deleted and can no longer be forked")
        return record

    def _source(self, config: StreamConfig, path: str) -> StreamRecord:
        source = self._live_source(path)
        wanted = config.content_type
        if wanted is not None and normalize_content_type(wanted) != source.media_type:
            raise Conflict(f"stream {path} holds {source.media_type}: a fork of it cannot hold {wanted}")
        return source

    def _new_record(
        self, path: str, config: StreamConfig, source: StreamRecord | None, fork_offset: int
    ) -> StreamRecord:
        ttl, expires_at = config.ttl_seconds, config.expires_at
        if source is not None and ttl is None and expires_at is None:
            ttl, expires_at = source.ttl_seconds, source.expires_at
        inherited = source.content_type if source is not None else "application/octet-stream"
        record = StreamRecord(
            self._next_id,
            path,
            config.content_type or inherited,
            config,
            ttl_seconds=ttl,
            expires_at=expires_at,
            now=self._clock(),
            source=source.id if source is not None else None,
            fork_offset=fork_offset,
            source_lineage=source.lineage if source is not None else (),
        )
        self._next_id += 1
        if source is not None:
            source.forks += 1
        return record

    def _submit_create(self, record: StreamRecord, data: bytes, keyed: tuple[Keyed, ...]) -> Awaitable[None]:
        keys: list[tuple[str, int]] = []
        if keyed:
            data, keys = self._keys.unseen(record, keyed)
            record.accept_keys(keys)
        record.closed = record.config.closed
        record.tail += len(data)
        record.pending += 1
        self._remember(record)
        future: asyncio.Future[None] = self._loop.create_future()
        acknowledge = _settler(future)

        def write(connection: sqlite3.Connection) -> None:
            if record.source is not None and not stream_exists(connection, record.source):
                raise Unavailable(f"the stream to fork could not be created, so {record.path} was not: try again")
            insert_stream(connection, self._tenant, record)
            if data:
                insert_chunks(connection, join_chunks(record.id, record.fork_offset + len(data), [data]))
            rows = [(record.id, key, end) for key, end in keys]
            connection.executemany("INSERT INTO message_keys VALUES (?, ?, ?)", rows)

        def settle(error: Refused | None) -> None:
            record.pending -= 1
            record.keys.difference_update([key for key, _ in keys])
            if error is None:
                record.durable_tail = record.unfiled.start = record.fork_offset + len(data)
                record.durable_closed = record.config.closed
                change = Change(record.path, record.fork_offset, data, record.durable_tail, record.closed)
                self._changes.announce(record.id, change)
            else:
                self._forget(record)
                self._lose_fork(record.source)
            acknowledge(error)

        self._writer.submit(CallOperation(record, settle, write))
        return future

    # Deleting

    def _begin_delete(self, record: StreamRecord) -> Awaitable[None]:
        """Hide the stream at once. Its rows are removed with the next commit, and its bytes later in steps."""
        self._touched.discard(record)
        change = Change(record.path, record.tail, b"", record.tail, deleted=True)
        doomed = [] if record.forks else self._chain(record)
        if doomed:
            for each in doomed:
                self._forget(each)
                self._doomed.add(each.id)
        else:
            record.soft_deleted = True
            self._hiding.add(record.id)
        ids = [(each.id,) for each in doomed]

        def write(connection: sqlite3.Connection) -> None:
            if ids:
                delete_streams(connection, ids)
            else:
                soft_delete_stream(connection, record.id)

        future: asyncio.Future[None] = self._loop.create_future()
        acknowledge = _settler(future)

        def settle(error: Refused | None) -> None:
            self._doomed.difference_update(id for (id,) in ids)
            self._hiding.discard(record.id)
            if error is None:
                self._unfiled.difference_update(doomed)
                self._changes.announce(record.id, change)
                if doomed:
                    self._lose_fork(doomed[-1].source)
                else:
                    self._release(record)
            else:
                self._undo_delete(record, doomed)
            acknowledge(error)
            if error is not None and not future.cancelled():
                future.exception()  # nothing waits for the deletion of an expired stream

        self._writer.submit(CallOperation(record, settle, write, frees_space=True))
        return future

    def _undo_delete(self, record: StreamRecord, doomed: list[StreamRecord]) -> None:
        """Restore the streams after their rows could not be removed.

        A stream created in their place in the meantime cannot be written either, because the path is still taken.
        """
        if not doomed:
            record.soft_deleted = False
        for each in doomed:
            if stream_exists(self._lookup, each.id):  # otherwise its creation failed before
                self._remember(each)
            else:
                self._unfiled.discard(each)

    def _chain(self, record: StreamRecord) -> list[StreamRecord]:
        """Returns the stream with all soft-deleted ancestors that only it keeps alive."""
        doomed = [record]
        while (id := doomed[-1].source) is not None and (source := self._ancestor(id)) is not None:
            if source.forks > 1 or not source.soft_deleted or source.id in self._hiding:
                break
            doomed.append(source)
        return doomed

    def _lose_fork(self, source: int | None) -> None:
        """A fork of this stream is gone for good, or could not be created."""
        record = self._ancestor(source) if source is not None else None
        if record is not None:
            record.forks -= 1
            self._release(record)

    def _release(self, record: StreamRecord) -> None:
        """Delete a soft-deleted stream that no fork keeps alive any longer."""
        if record.soft_deleted and not record.forks and record.id not in self._hiding:
            self._begin_delete(record)

    async def _sweep(self) -> None:
        """Once a second, save sliding TTLs, delete expired streams, and remove the bytes of deleted ones."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                self._flush_touched()
                self._expire()
                await self._purger.run()
                if self._has_unfiled() and not self._writer.making_room:
                    await self._file()
            except Refused as error:
                log.warning("the sweep could not write and will try again: %s", error)
            except sqlite3.Error:
                log.exception("the sweep failed and will try again")

    def _expire(self) -> None:
        rows = self._lookup.execute(
            "SELECT path FROM streams WHERE deleted = 0 AND (expires_at IS NOT NULL OR ttl_seconds IS NOT NULL)"
            " AND coalesce(expires_at, last_access + ttl_seconds * 1000) < ? LIMIT 1000",
            (self._clock(),),
        ).fetchall()
        for (path,) in rows:
            self._find(path)

    # Settling

    def _settled_from_thread(self, settled: Settled) -> None:
        self._loop.call_soon_threadsafe(self._settled, settled)

    def _settled(self, settled: Settled) -> None:
        """Apply a commit, then acknowledge it, then notify the watchers.

        The order matters: a client with an answer can read what it wrote, and does not wait for other readers. Watchers
        are notified once per stream, however many appends the commit has.
        """
        self._commits += 1
        self._operations += len(settled)
        changes: dict[StreamRecord, list[JournalEntry]] = {}
        for operation, error in settled:
            if isinstance(operation, AppendOperation):
                record, entry = operation.record, operation.entry
                record.pending -= 1
                if error is None and entry is not None:
                    self._row = max(self._row, operation.row)
                    record.settle(entry)
                    self._unfiled_bytes += len(entry.data) + _ENTRY_BYTES
                    if record in changes:
                        changes[record].append(entry)
                    else:
                        changes[record] = [entry]
                        # Not of one that was replaced. A deletion that is not settled yet may still fail.
                        if self._by_id.get(record.id) is record or record.id in self._doomed:
                            self._unfiled.add(record)
            else:
                try:
                    operation.settle(error)
                except Exception:
                    log.exception("an operation could not be settled")
            if error is not None:
                self._forget_broken(operation)
        for operation, error in settled:
            if isinstance(operation, AppendOperation):
                try:
                    operation.acknowledgement.settle(None if error else operation.appended, error)
                except Exception:
                    log.exception("an append could not be acknowledged")
        self._announce_changes(changes)
        if self._unfiled_bytes > _FILE_BYTES and self._filing is None and not self._filing_failed:
            self._begin_filing()

    def _announce_changes(self, changes: dict[StreamRecord, list[JournalEntry]]) -> None:
        for record, entries in changes.items():
            if self._changes.is_followed(record.id):
                data = entries[0].data if len(entries) == 1 else b"".join([each.data for each in entries])
                end, close = entries[-1].end, entries[-1].close
                if data or close:
                    change = Change(record.path, end - len(data), data, end, closed=close)
                    self._changes.announce(record.id, change)

    def _forget_broken(self, operation: Operation) -> None:
        record = operation.record
        if record is None:
            return
        record.broken = True
        if self._records.get(record.path) is record:
            self._forget(record)
            self._unfiled.discard(record)
            on_disk = load_record_by_id(self._lookup, record.id)
            if on_disk is not None:
                repaired = record.as_durable(on_disk)
                self._remember(repaired)
                if not repaired.unfiled.is_empty:
                    self._unfiled.add(repaired)

    # Filing

    def _restore(self, left: Loaded) -> None:
        """Apply what the last server had no time to file. Streams that were deleted since no longer exist."""
        if left.damaged:
            log.error("rows %s of the journal are damaged and were set aside; run `holdfast check`", left.damaged)
            self._writer.submit(CallOperation(None, _ignore, lambda each: journal.set_aside(each, left.damaged)))
        for filing in left.filings:
            record = load_record_by_id(self._lookup, filing.stream)
            if record is None:
                continue
            begin = filing.end - sum(map(len, filing.pieces))
            if record.damaged is not None or (filing.pieces and begin != record.durable_tail):
                record.damaged = record.damaged or f"the append at {record.durable_tail} is lost"
                self._stranded.append(filing)
                self._remember(record)
            else:
                if filing.torn:
                    record.damaged = f"the append at {filing.end} is lost"
                record.restore(filing)
                self._remember(record)
                self._unfiled.add(record)
                self._unfiled_bytes += sum(map(len, filing.pieces)) + _ENTRY_BYTES

    def unfiled_paths(self) -> list[str]:
        """Returns the streams whose tables are behind."""
        return [record.path for record in self._unfiled if record.id not in self._doomed]

    async def _file(self) -> None:
        """Wait for the filing in progress, or for a new one."""
        await asyncio.shield(self._filing or self._begin_filing())

    def _begin_filing(self) -> asyncio.Future[None]:
        """Move everything that is settled from the journal and from memory to its tables, in one commit."""
        unfiled = [(record, record.unfiled.filing(record.id)) for record in self._unfiled]
        filings = [(record, filing) for record, filing in unfiled if not self._is_stuck(record)]
        stuck = [*self._stranded, *(filing for record, filing in unfiled if self._is_stuck(record))]
        size, self._unfiled_bytes = self._unfiled_bytes, 0
        future = self._filing = self._loop.create_future()
        acknowledge = _settler(future)

        def settle(error: Refused | None) -> None:
            self._filing = None
            self._filing_failed = error is not None
            if error is None:
                for record, filing in filings:
                    if filing in operation.kept:
                        self._stuck.add(record.id)
                        continue
                    record.unfiled.filed(filing)
                    if record.unfiled.is_empty:
                        self._unfiled.discard(record)
            else:
                self._unfiled_bytes += size
            acknowledge(error)
            if error is not None and not future.cancelled():
                future.exception()  # the sweep will retry it

        operation = FilingOperation(settle, filings, self._row, stuck, frozenset(self._doomed))
        self._writer.submit(operation)
        return future

    def _has_unfiled(self) -> bool:
        return any(not self._is_stuck(record) for record in self._unfiled)

    def _is_stuck(self, record: StreamRecord) -> bool:
        """Returns whether this stream is known to be impossible to file."""
        return record.id in self._stuck


def _settler(future: asyncio.Future[None]) -> Callable[[Refused | None], None]:
    def settle(error: Refused | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return settle


def _ignore(error: Refused | None) -> None:
    """For writes that no caller waits for and that will be repeated."""
