"""The rows that hold the bytes of streams, each with a checksum of its own.

SQLite notices a page whose structure is damaged, but not a wrong byte in the middle of one. The checksum covers the
bytes and where they belong.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

CHUNK_BYTES: Final = 64 * 1024
"""About how large the rows are that a long stream is read by."""
_ROW_COUNTS: Final = (256, 64, 16, 4, 1)

ChunkRow = tuple[int, int, bytes, int]
"""Stream, the position after the last byte, bytes, checksum."""


def checksum(stream: int, end: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(b"%d:%d" % (stream, end)))


def is_damaged(stream: int, end: int, data: bytes, expected: int | None) -> bool:
    """Rows of the first schema have no checksum."""
    return expected is not None and expected != checksum(stream, end, data)


def join_chunks(stream: int, end: int, pieces: Sequence[bytes]) -> list[ChunkRow]:
    """Pieces that lie one after another and end there, as rows of a good size."""
    rows: list[ChunkRow] = []
    position = end - sum(map(len, pieces))
    gathered: list[bytes] = []
    size = 0

    def finish() -> None:
        data = b"".join(gathered)
        rows.append((stream, position, data, checksum(stream, position, data)))

    for piece in chain.from_iterable(map(_split, pieces)):
        if gathered and size + len(piece) > CHUNK_BYTES:
            position += size
            finish()
            gathered, size = [], 0
        gathered.append(piece)
        size += len(piece)
    if gathered:
        position += size
        finish()
    return rows


def _split(piece: bytes) -> Iterator[bytes]:
    """A long piece in parts of a good size, each up to the end of a line: of a JSON stream, no message is cut."""
    begin = 0
    while len(piece) - begin > 2 * CHUNK_BYTES and (end := piece.find(b"\n", begin + CHUNK_BYTES) + 1):
        yield piece[begin:end]
        begin = end
    yield piece[begin:] if begin else piece


def insert_chunks(connection: sqlite3.Connection, rows: Sequence[ChunkRow]) -> None:
    insert_rows(connection, 'INSERT INTO chunks (stream, "end", data, checksum) VALUES', rows)


def insert_rows(connection: sqlite3.Connection, head: str, rows: Sequence[tuple[Any, ...]], tail: str = "") -> None:
    """Many rows by few statements: every statement gives up the interpreter lock and has to get it back."""
    position = 0
    for count in _ROW_COUNTS:
        while len(rows) - position >= count:
            row = f" ({', '.join('?' * len(rows[0]))})"
            values = [value for each in rows[position : position + count] for value in each]
            connection.execute(head + ",".join([row] * count) + tail, values)
            position += count
