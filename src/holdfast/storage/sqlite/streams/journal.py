"""The journal: recent appends to all streams, in commit order.

A commit writes one row here, however many streams it touches: a few pages at the end of one table. One row per stream
would be one page per stream, and several times as much to sync. The gathered entries are later filed into the tables
that are read by stream, many commits at a time, and removed from here in the same transaction. Until then they are read
from memory (`Unfiled`), into which they are loaded after a crash.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

import orjson

from holdfast.storage.sqlite.streams.chunks import insert_chunks, insert_rows, join_chunks
from holdfast.threads.store import Producer

_LENGTH: Final = 4
_CHECKED: Final = b"\xff"
"""The prefix of a row with a checksum. A row of the first schema version begins with a length, which is never this
large.
"""


@dataclass(slots=True)
class StreamFiling:
    """What is to be filed for one stream."""

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
    """Something between or before these pieces is lost."""


class JournalEntry(NamedTuple):
    """One append in the journal."""

    stream: int
    end: int
    data: bytes
    producer: Producer | None
    seq: str | None
    close: bool
    keys: Sequence[tuple[str, int]]


class RowDamaged(Exception):
    """A row of the journal differs from what was written."""


def encode(entries: Sequence[JournalEntry]) -> bytes:
    """Encode entries as a head that describes them, followed by all their bytes."""
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
    """Returns the entries of a row. Raises `RowDamaged` if it differs from what was written."""
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
    """Group entries in commit order by stream. Entries after a gap are left out, and the stream is marked as torn."""
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
    """Returns a filing as entries again, for a stream that cannot be filed and stays in the journal."""
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
    """Move filings to the tables that are read by stream. Runs in a transaction that the caller began."""
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
    """Move damaged rows out of the journal, and keep them for inspection."""
    for number in damaged:
        connection.execute(
            "INSERT OR REPLACE INTO damaged_rows (number, entries)"
            " SELECT number, entries FROM journal WHERE number = ?",
            (number,),
        )
        connection.execute("DELETE FROM journal WHERE number = ?", (number,))
