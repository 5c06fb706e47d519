"""The journal: what was appended lately, for all streams together, in the order of commits.

A commit writes one row here, however many streams it touches: a few pages at the end of one table, where a row per
stream would be a page per stream, and several times as much to sync. What has gathered is filed into the tables that
are read by stream, many commits at a time, and removed here in the same transaction. Until then it is read from memory
(`unfiled`), also after a crash, when it is loaded from here.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

import orjson

from holdfast.storage.sqlite.streams.chunks import insert_chunks, insert_rows, join_chunks
from holdfast.threads.streams import Producer

_LENGTH: Final = 4
_CHECKED: Final = b"\xff"
"""A row that begins so has a checksum next. One of the first schema begins with a length, which is never so great."""


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
    torn: bool = False
    """Something between these pieces, or before them, is lost."""


class JournalEntry(NamedTuple):
    """One append, as the journal keeps it."""

    stream: int
    end: int
    data: bytes
    producer: Producer | None
    seq: str | None
    close: bool
    keys: Sequence[tuple[str, int]]


class RowDamaged(Exception):
    """A row of the journal is not as it was written."""


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
    row = b"".join([len(head).to_bytes(_LENGTH, "big"), head, *[entry.data for entry in entries]])
    return b"".join([_CHECKED, zlib.crc32(row).to_bytes(_LENGTH, "big"), row])


def decode(row: bytes) -> list[JournalEntry]:
    """The entries of a row. Raises `RowDamaged` where it is not as it was written."""
    if row.startswith(_CHECKED):
        expected, row = row[1 : 1 + _LENGTH], row[1 + _LENGTH :]
        if zlib.crc32(row).to_bytes(_LENGTH, "big") != expected:
            raise RowDamaged
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
    """Entries in the order of their commits, by stream. What comes after a gap is left out, and the stream is torn."""
    filings: dict[int, StreamFiling] = {}
    for entry in entries:
        filing = filings.setdefault(entry.stream, StreamFiling(entry.stream))
        begin = entry.end - len(entry.data)
        filing.torn |= bool(filing.pieces) and begin != filing.end
        if filing.torn:
            continue
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


def entries_of(filing: StreamFiling) -> list[JournalEntry]:
    """A filing as entries that gather to it again: for one that cannot be filed, and stays in the journal."""
    stream, end = filing.stream, filing.end
    entries = [JournalEntry(stream, end, b"".join(filing.pieces), None, filing.last_seq, False, [*filing.keys.items()])]
    for id, (epoch, seq) in filing.producers.items():
        entries.append(JournalEntry(stream, end, b"", Producer(id, epoch, seq), None, False, ()))
    if filing.closed:
        entries.append(JournalEntry(stream, end, b"", filing.closed_by, None, True, ()))
    return entries


def insert_row(connection: sqlite3.Connection, number: int, row: bytes) -> None:
    connection.execute("INSERT INTO journal (number, entries) VALUES (?, ?)", (number, row))


def file(connection: sqlite3.Connection, filings: Sequence[StreamFiling], up_to: int) -> None:
    """Move what these rows hold to where it is read by stream. Part of a transaction that the caller has begun."""
    insert_chunks(
        connection, [row for filing in filings for row in join_chunks(filing.stream, filing.end, filing.pieces)]
    )
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


class Loaded(NamedTuple):
    """What a crash left in the journal."""

    filings: list[StreamFiling]
    last_row: int
    damaged: list[int]
    """Numbers of rows that cannot be read."""


def load(connection: sqlite3.Connection) -> Loaded:
    entries: list[JournalEntry] = []
    damaged: list[int] = []
    number = 0
    for number, row in connection.execute("SELECT number, entries FROM journal ORDER BY number"):
        try:
            entries += decode(row)
        except (RowDamaged, ValueError, TypeError):
            damaged.append(number)
    return Loaded(gather(entries), number, damaged)


def set_aside(connection: sqlite3.Connection, damaged: Sequence[int]) -> None:
    """Take damaged rows out of the journal, and keep them for whoever wants to look."""
    for number in damaged:
        connection.execute(
            "INSERT OR REPLACE INTO damaged_rows (number, entries)"
            " SELECT number, entries FROM journal WHERE number = ?",
            (number,),
        )
        connection.execute("DELETE FROM journal WHERE number = ?", (number,))
