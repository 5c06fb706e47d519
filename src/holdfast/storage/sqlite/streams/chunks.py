"""The rows with the bytes of streams, each with its own checksum.

SQLite detects a page with a damaged structure, but not a wrong byte inside it. The checksum covers the bytes and their
position.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

CHUNK_BYTES: Final = 64 * 1024
"""The approximate size of the rows of a long stream."""
_ROW_COUNTS: Final = (256, 64, 16, 4, 1)

ChunkRow = tuple[int, int, bytes, int]
"""Stream, position after the last byte, bytes, checksum."""


def checksum(stream: int, end: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(b"%d:%d" % (stream, end)))


def is_damaged(stream: int, end: int, data: bytes, expected: int | None) -> bool:
    """Returns whether a chunk does not match its checksum. Rows of the first schema version have none."""
    return expected is not None and expected != checksum(stream, end, data)


def join_chunks(stream: int, end: int, pieces: Sequence[bytes]) -> list[ChunkRow]:
    """Join consecutive pieces that end at `end` into rows of a good size."""
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
    """Split a long piece into parts of a good size at line ends, so that no message of a JSON stream is cut.

    No part is empty: two rows of a stream cannot end at the same position.
    """
    begin = 0
    while len(piece) - begin > 2 * CHUNK_BYTES:
        end = piece.find(b"\n", begin + CHUNK_BYTES, -1) + 1
        if not end:
            break
        yield piece[begin:end]
        begin = end
    yield piece[begin:] if begin else piece


def insert_chunks(connection: sqlite3.Connection, rows: Sequence[ChunkRow]) -> None:
    insert_rows(connection, 'INSERT INTO chunks (stream, "end", data, checksum) VALUES', rows)


def insert_rows(connection: sqlite3.Connection, head: str, rows: Sequence[tuple[Any, ...]], tail: str = "") -> None:
    """Insert many rows with few statements: every statement releases the interpreter lock and has to get it back."""
    position = 0
    for count in _ROW_COUNTS:
        while len(rows) - position >= count:
            row = f" ({', '.join('?' * len(rows[0]))})"
            values = [value for each in rows[position : position + count] for value in each]
            connection.execute(head + ",".join([row] * count) + tail, values)
            position += count
