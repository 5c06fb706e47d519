"""The journal: what was appended lately, for all streams together, in the order of commits.

A commit writes one row here, however many streams it touches: a few pages at the end of one table, where a row per
stream would be a page per stream, and several times as much to sync. What has gathered is filed into the tables that
are read by stream, many commits at a time, and removed here in the same transaction. Until then it is read from memory
(`unfiled`), also after a crash, when it is loaded from here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from holdfast.threads.streams import Producer

CHUNK_BYTES: Final = 64 * 1024
"""About how large the rows are that a long stream is read by."""
_ROW_COUNTS: Final = (256, 64, 16, 4, 1)
_LENGTH: Final = 4


@dataclass(slots=True)
class StreamFiling:
    """What is to be filed of one stream."""

    stream: int
    end: int = 0
    """Position after the last piece."""
    pieces: list[bytes] = field(default_factory=list)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    last_seq: str | None = None
    closed: bool = False
    closed_by: Producer | None = None


class JournalEntry(NamedTuple):
    """One append, as the journal keeps it."""

    stream: int
    end: int
    data: bytes
    producer: Producer | None
    seq: str | None
    close: bool
    keys: Sequence[tuple[str, int]]


def encode(entries: Sequence[JournalEntry]) -> bytes:
    """A head that says what is whose, then all the bytes one after another."""
    head = orjson.dumps(
        [
            (
                entry.stream,
                entry.end,
                len(entry.data),
                None if entry.producer is None else (entry.producer.id, entry.producer.epoch, entry.producer.seq),
                entry.seq,
                entry.close,
                entry.keys,
            )
            for entry in entries
        ]
    )
    return b"".join([len(head).to_bytes(_LENGTH, "big"), head, *[entry.data for entry in entries]])


def decode(row: bytes) -> list[JournalEntry]:
    position = _LENGTH + int.from_bytes(row[:_LENGTH], "big")
    entries = []
    for stream, end, size, producer, seq, close, keys in orjson.loads(row[_LENGTH:position]):
        data = row[position : position + size]
        position += size
        entries.append(
            JournalEntry(stream, end, data, None if producer is None else Producer(*producer), seq, close, keys)
        )
    return entries


def gather(entries: Iterable[JournalEntry]) -> list[StreamFiling]:
    """Entries in the order of their commits, by stream."""
    filings: dict[int, StreamFiling] = {}
    for entry in entries:
        filing = filings.setdefault(entry.stream, StreamFiling(entry.stream))
        if entry.data:
            filing.pieces.append(entry.data)
            filing.end = entry.end
        if entry.producer is not None:
            filing.producers[entry.producer.id] = (entry.producer.epoch, entry.producer.seq)
        filing.keys.update(entry.keys)
        if entry.seq is not None:
            filing.last_seq = entry.seq
        if entry.close:
            filing.closed, filing.closed_by = True, entry.producer
    return list(filings.values())


def insert_row(connection: sqlite3.Connection, number: int, row: bytes) -> None:
    connection.execute("INSERT INTO journal (number, entries) VALUES (?, ?)", (number, row))


def file(connection: sqlite3.Connection, filings: Sequence[StreamFiling], up_to: int) -> None:
    """Move what these rows hold to where it is read by stream. Part of a transaction that the caller has begun."""
    chunks = [row for filing in filings for row in join_chunks(filing.stream, filing.end, filing.pieces)]
    insert_rows(connection, 'INSERT INTO chunks (stream, "end", data) VALUES', chunks)
    insert_rows(
        connection,
        "INSERT INTO producers (stream, producer, epoch, seq) VALUES",
        [(filing.stream, id, *state) for filing in filings for id, state in filing.producers.items()],
        " ON CONFLICT (stream, producer) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq",
    )
    insert_rows(
        connection,
        'INSERT INTO message_keys (stream, key, "end") VALUES',
        [(filing.stream, key, end) for filing in filings for key, end in filing.keys.items()],
    )
    for filing in filings:
        if filing.last_seq is not None:
            connection.execute("UPDATE streams SET last_seq = ? WHERE id = ?", (filing.last_seq, filing.stream))
        if filing.closed:
            closed_by = orjson.dumps(asdict(filing.closed_by)).decode() if filing.closed_by else None
            connection.execute("UPDATE streams SET closed = 1, closed_by = ? WHERE id = ?", (closed_by, filing.stream))
    connection.execute("DELETE FROM journal WHERE number <= ?", (up_to,))


def load(connection: sqlite3.Connection) -> tuple[list[StreamFiling], int]:
    """What a crash left in the journal, by stream, and the number of its last row."""
    rows = connection.execute("SELECT number, entries FROM journal ORDER BY number").fetchall()
    return gather(entry for _, row in rows for entry in decode(row)), rows[-1][0] if rows else 0


def join_chunks(stream: int, end: int, pieces: Sequence[bytes]) -> list[tuple[int, int, bytes]]:
    """Pieces that lie one after another and end there, as rows of a good size."""
    rows: list[tuple[int, int, bytes]] = []
    position = end - sum(map(len, pieces))
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        if gathered and size + len(piece) > CHUNK_BYTES:
            position += size
            rows.append((stream, position, b"".join(gathered)))
            gathered, size = [], 0
        gathered.append(piece)
        size += len(piece)
    if gathered:
        rows.append((stream, position + size, b"".join(gathered)))
    return rows


def insert_rows(connection: sqlite3.Connection, head: str, rows: Sequence[tuple[Any, ...]], tail: str = "") -> None:
    """Many rows by few statements: every statement gives up the interpreter lock and has to get it back."""
    position = 0
    for count in _ROW_COUNTS:
        while len(rows) - position >= count:
            row = f" ({', '.join('?' * len(rows[0]))})"
            values = [value for each in rows[position : position + count] for value in each]
            connection.execute(head + ",".join([row] * count) + tail, values)
            position += count
