"""One stream in memory: the state that decides on the next append. And its row, without its bytes."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict

import orjson

from holdfast.api.errors import InvalidRequest
from holdfast.storage.sqlite.schema import is_corruption
from holdfast.storage.sqlite.streams.journal import JournalEntry, StreamFiling
from holdfast.threads.protocol.rules import deadline_of
from holdfast.threads.store import ForkPoint, Producer, StreamConfig, StreamInfo, is_json, normalize_content_type

COLUMNS = (
    "id, path, content_type, config, ttl_seconds, expires_at, last_access, created_at,"
    " closed, closed_by, last_seq, source, fork_offset, deleted"
)


def dump_config(config: StreamConfig) -> str:
    return orjson.dumps(asdict(config)).decode()


def load_config(text: str) -> StreamConfig:
    fields = orjson.loads(text)
    fork = fields.pop("fork")
    return StreamConfig(**fields, fork=ForkPoint(**fork) if fork else None)


class StreamRecord:
    """Two views of one stream: as accepted (`tail`, `closed`), which decides on appends, and as durable, which readers
    see.

    Owned by the event loop. The writer thread reads it, and writes only `broken`, `damaged`, `loose` and `folded`.
    """

    __slots__ = (
        "broken",
        "closed",
        "closed_by",
        "config",
        "content_type",
        "created_at",
        "damaged",
        "durable_closed",
        "durable_tail",
        "expires_at",
        "folded",
        "fork_offset",
        "forks",
        "greatest_key",
        "id",
        "json",
        "keys",
        "last_access",
        "last_seq",
        "lineage",
        "loose",
        "media_type",
        "path",
        "pending",
        "producers",
        "soft_deleted",
        "source",
        "tail",
        "ttl_seconds",
        "unfiled",
    )

    def __init__(
        self,
        id: int,
        path: str,
        content_type: str,
        config: StreamConfig,
        *,
        ttl_seconds: int | None,
        expires_at: int | None,
        now: int,
        tail: int = 0,
        source: int | None = None,
        fork_offset: int = 0,
        source_lineage: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.id = id
        self.path = path
        self.content_type = content_type
        self.media_type = normalize_content_type(content_type)
        self.json = is_json(content_type)
        self.config = config
        self.ttl_seconds = ttl_seconds
        self.expires_at = expires_at
        self.last_access = now
        self.created_at = now
        self.tail = self.durable_tail = max(tail, fork_offset)
        self.closed = self.durable_closed = False
        self.closed_by: Producer | None = None
        self.last_seq: str | None = None
        self.source = source
        self.fork_offset = fork_offset
        self.lineage: tuple[tuple[int, int], ...] = ((id, fork_offset), *source_lineage)
        """This stream and its ancestors, each with the position where its own bytes begin."""
        self.soft_deleted = False
        self.forks = 0
        """How many streams are forked from this one. Its bytes are kept while there are any."""
        self.producers: dict[str, tuple[int, int]] = {}
        self.keys: set[str] = set()
        """Deduplication keys that are accepted but not durable yet."""
        self.greatest_key: str | None = None
        """No key of this stream, accepted or durable, is greater. None: not looked up yet."""
        self.pending = 0
        """How many operations are being written."""
        self.broken = False
        """A write of this record failed, so what it accepted is not on disk. `as_durable` replaces it."""
        self.damaged: str | None = None
        """Why nothing more can be appended. The rest of the server keeps working."""
        self.loose = 0
        """How many small chunks were written since the last fold."""
        self.folded = self.durable_tail
        """Chunks up to this position are folded into large ones."""
        self.unfiled = Unfiled(self.durable_tail)
        """What is durable only in the journal."""

    @classmethod
    def from_row(cls, row: tuple[object, ...], lineage: tuple[tuple[int, int], ...], tail: int) -> StreamRecord:
        (id, path, content_type, config, ttl, expires_at, last_access, created_at) = row[:8]
        (closed, closed_by, last_seq, source, fork_offset, deleted) = row[8:]
        record = cls(
            id,  # type: ignore[arg-type]
            path,  # type: ignore[arg-type]
            content_type,  # type: ignore[arg-type]
            load_config(config),  # type: ignore[arg-type]
            ttl_seconds=ttl,  # type: ignore[arg-type]
            expires_at=expires_at,  # type: ignore[arg-type]
            now=last_access,  # type: ignore[arg-type]
            tail=tail,
            source=source,  # type: ignore[arg-type]
            fork_offset=fork_offset,  # type: ignore[arg-type]
            source_lineage=lineage,
        )
        record.created_at = created_at  # type: ignore[assignment]
        record.closed = record.durable_closed = bool(closed)
        record.closed_by = Producer(**orjson.loads(closed_by)) if closed_by else None  # type: ignore[arg-type]
        record.last_seq = last_seq  # type: ignore[assignment]
        record.soft_deleted = bool(deleted)
        return record

    def restore(self, filing: StreamFiling) -> None:
        """Apply what the journal holds of this stream, at startup."""
        unfiled = self.unfiled
        position = filing.end - sum(map(len, filing.pieces))
        for piece in filing.pieces:
            position += len(piece)
            unfiled.add(piece, position, None, None, False, ())
        unfiled.producers, unfiled.keys = filing.producers, filing.keys
        unfiled.last_seq, unfiled.closed, unfiled.closed_by = filing.last_seq, filing.closed, filing.closed_by
        self.durable_tail = max(self.durable_tail, filing.end)
        self.durable_closed |= filing.closed
        self.accept_durable()
        if filing.closed:
            self.closed_by = filing.closed_by
        self.last_seq = filing.last_seq or self.last_seq

    def accept_keys(self, keys: Sequence[tuple[str, int]]) -> None:
        for key, _ in keys:
            self.keys.add(key)
            if self.greatest_key is not None and key > self.greatest_key:
                self.greatest_key = key

    def settle(self, entry: JournalEntry) -> None:
        """Apply an entry that is now durable in the journal."""
        for key, _ in entry.keys:
            self.keys.discard(key)
        self.durable_tail = entry.end
        if entry.close:
            self.durable_closed = True
        self.unfiled.add(entry.data, entry.end, entry.producer, entry.seq, entry.close, entry.keys)

    def accept_durable(self) -> None:
        """Discard what was accepted but not written."""
        self.tail, self.closed = self.durable_tail, self.durable_closed
        self.producers = dict(self.unfiled.producers)

    def as_durable(self, on_disk: StreamRecord) -> StreamRecord:
        """Returns the same stream without what was accepted but not written. `on_disk` is the state in its tables."""
        record = on_disk
        record.unfiled = self.unfiled
        record.durable_tail, record.durable_closed = self.durable_tail, self.durable_closed
        record.last_access = self.last_access
        record.forks = self.forks
        record.loose, record.folded, record.damaged = self.loose, self.folded, self.damaged
        record.accept_durable()
        if self.unfiled.closed:
            record.closed_by = self.unfiled.closed_by
        record.last_seq = self.unfiled.last_seq or record.last_seq
        return record

    def deadline(self) -> int | None:
        return deadline_of(self.ttl_seconds, self.expires_at, self.last_access)

    def info(self) -> StreamInfo:
        return StreamInfo(
            id=self.id,
            path=self.path,
            content_type=self.content_type,
            tail=self.durable_tail,
            closed=self.durable_closed,
            ttl_seconds=self.ttl_seconds,
            expires_at=self.expires_at,
            created_at=self.created_at,
            fork_source=self.config.fork.source if self.config.fork else None,
            fork_offset=self.fork_offset,
        )


def load_record(connection: sqlite3.Connection, tenant: str, path: str) -> StreamRecord | None:
    return _load(connection, "tenant = ? AND path = ?", (tenant, path))


def load_record_by_id(connection: sqlite3.Connection, id: int) -> StreamRecord | None:
    return _load(connection, "id = ?", (id,))


def _load(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> StreamRecord | None:
    row = connection.execute(f"SELECT {COLUMNS} FROM streams WHERE {where}", values).fetchone()
    if row is None:
        return None
    lineage = []
    source = row[11]
    while source is not None:
        ancestor = connection.execute("SELECT fork_offset, source FROM streams WHERE id = ?", (source,)).fetchone()
        lineage.append((source, ancestor[0]))
        source = ancestor[1]
    tail, damaged = 0, None
    try:
        (tail,) = connection.execute(
            'SELECT coalesce(max("end"), 0) FROM chunks WHERE stream = ?', (row[0],)
        ).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_corruption(error):
            raise
        damaged = f"the end of the stream cannot be found: {error}"
    record = StreamRecord.from_row(row, tuple(lineage), tail)
    record.damaged = damaged
    (record.forks,) = connection.execute("SELECT count(*) FROM streams WHERE source = ?", (row[0],)).fetchone()
    return record


def stream_exists(connection: sqlite3.Connection, id: int) -> bool:
    return connection.execute("SELECT 1 FROM streams WHERE id = ?", (id,)).fetchone() is not None


def insert_stream(connection: sqlite3.Connection, tenant: str, record: StreamRecord) -> None:
    connection.execute(
        "INSERT INTO streams (id, tenant, path, content_type, config, ttl_seconds, expires_at, last_access, created_at,"
        " closed, source, fork_offset) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.id,
            tenant,
            record.path,
            record.content_type,
            dump_config(record.config),
            record.ttl_seconds,
            record.expires_at,
            record.last_access,
            record.created_at,
            record.config.closed,
            record.source,
            record.fork_offset,
        ),
    )


def touch_streams(connection: sqlite3.Connection, rows: Sequence[tuple[int, int]]) -> None:
    """Save when streams were last used: time and id of each."""
    connection.executemany("UPDATE streams SET last_access = ? WHERE id = ?", rows)


def delete_streams(connection: sqlite3.Connection, ids: Sequence[tuple[int]]) -> None:
    """Remove the rows of streams, and note that their bytes must be removed."""
    connection.executemany("DELETE FROM streams WHERE id = ?", ids)
    connection.executemany("INSERT OR IGNORE INTO purges (stream) VALUES (?)", ids)


def soft_delete_stream(connection: sqlite3.Connection, id: int) -> None:
    connection.execute("UPDATE streams SET deleted = 1 WHERE id = ?", (id,))


class Unfiled:
    """The part of a stream that is durable in the journal, but not yet in the tables that are read by stream.

    It is kept in memory, with its state, and owned by the event loop.
    """

    __slots__ = ("closed", "closed_by", "ends", "keys", "last_seq", "pieces", "producers", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """The stream is in its table up to this position."""
        self.pieces: list[bytes] = []
        self.ends: list[int] = []
        self.producers: dict[str, tuple[int, int]] = {}
        self.keys: dict[str, int] = {}
        self.last_seq: str | None = None
        self.closed = False
        self.closed_by: Producer | None = None

    def add(
        self,
        data: bytes,
        end: int,
        producer: Producer | None,
        seq: str | None,
        close: bool,
        keys: Sequence[tuple[str, int]],
    ) -> None:
        if data:
            self.pieces.append(data)
            self.ends.append(end)
        if producer is not None:
            self.producers[producer.id] = (producer.epoch, producer.seq)
        if seq is not None:
            self.last_seq = seq
        if close:
            self.closed, self.closed_by = True, producer
        if keys:
            self.keys.update(keys)

    def filing(self, stream: int) -> StreamFiling:
        """Returns all of it as it is now. Later entries are left to the next filing."""
        return StreamFiling(
            stream,
            self.ends[-1] if self.ends else self.start,
            list(self.pieces),
            dict(self.producers),
            dict(self.keys),
            self.last_seq,
            self.closed,
            self.closed_by,
        )

    def filed(self, filing: StreamFiling) -> None:
        """Discard what has been filed."""
        del self.pieces[: len(filing.pieces)]
        del self.ends[: len(filing.pieces)]
        self.start = filing.end
        for key in filing.keys:
            del self.keys[key]
        for id, state in filing.producers.items():
            if self.producers[id] == state:
                del self.producers[id]
        if self.last_seq == filing.last_seq:
            self.last_seq = None
        if filing.closed:
            self.closed, self.closed_by = False, None

    @property
    def is_empty(self) -> bool:
        return not (self.pieces or self.producers or self.keys or self.closed or self.last_seq is not None)

    def read(self, low: int, high: int, limit: int, *, whole_messages: bool) -> list[bytes]:
        """Returns the bytes from `low` (not before `start`) to `high`, stopping after about `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        for index in range(bisect_right(self.ends, low), len(self.pieces)):
            data, end = self.pieces[index], self.ends[index]
            begin = end - len(data)
            if begin >= high or size >= limit:
                break
            first, last = max(low - begin, 0), min(end, high) - begin
            if first and whole_messages and data[first - 1] != 0x0A:
                raise InvalidRequest("the offset is not at the start of a message of this stream")
            if last - first > limit - size and (newline := data.find(b"\n", first + limit - size - 1, last)) >= 0:
                last = newline + 1  # one append can be many times longer than the limit
            pieces.append(data[first:last])
            size += last - first
        return pieces
