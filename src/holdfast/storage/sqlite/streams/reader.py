"""Reads and queries on separate threads, each with its own connection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import orjson

from holdfast.api.errors import InvalidRequest
from holdfast.api.errors.threads import StreamDamaged
from holdfast.storage.sqlite.schema import connect, is_corruption
from holdfast.storage.sqlite.streams.chunks import is_damaged

T = TypeVar("T")

_THREADS: Final = 2


DiskSpan = tuple[int, int, int]
"""Stream, start, end."""
Span = DiskSpan | list[bytes]
"""A span to read, or bytes that are already in memory."""


class Reader:
    """A small pool of read connections. SQLite readers never wait for the writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def query(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query that sees every commit from before this call."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(self._connection()))

    async def read(self, spans: Sequence[Span], start: int, limit: int, *, whole_messages: bool) -> bytes:
        """Returns the bytes of these spans, one after another, stopping after about `limit` bytes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._read, spans, start, limit, whole_messages)

    def _read(self, spans: Sequence[Span], start: int, limit: int, whole_messages: bool) -> bytes:
        try:
            return self._read_spans(spans, start, limit, whole_messages)
        except sqlite3.DatabaseError as error:
            if not is_corruption(error):
                raise
            raise StreamDamaged(f"this stream cannot be read after {start}: {error}") from error

    def _read_spans(self, spans: Sequence[Span], start: int, limit: int, whole_messages: bool) -> bytes:
        pieces: list[bytes] = []
        size = 0
        for span in spans:
            if isinstance(span, list):
                pieces += span
                size += sum(map(len, span))
            else:
                size += self._read_chunks(span, start, limit - size, whole_messages, pieces)
            if size >= limit:
                break
        return b"".join(pieces)

    def _read_chunks(self, span: DiskSpan, start: int, limit: int, whole_messages: bool, into: list[bytes]) -> int:
        stream, low, high = span
        size = 0
        position = low
        rows = self._connection().execute(
            'SELECT "end", data, checksum FROM chunks WHERE stream = ? AND "end" > ? ORDER BY "end"', (stream, low)
        )
        for end, data, expected in rows:
            begin = end - len(data)
            if begin >= high:
                break
            if begin > position:
                break
            if is_damaged(stream, end, data, expected):
                raise StreamDamaged(f"bytes {begin} to {end} of this stream differ from what was written")
            position = end
            if end > high:
                data = data[: high - begin]
            if begin < low:
                if whole_messages and low == start and data[low - begin - 1] != 0x0A:
                    raise InvalidRequest("the offset is not at the start of a message of this stream")
                data = data[low - begin :]
            into.append(data)
            size += len(data)
            if size >= limit:
                break
        rows.close()
        if size < limit and position < high:
            raise StreamDamaged(f"the bytes of this stream after {position} are missing")
        return size

    async def find_keys(self, stream: int, keys: Sequence[str], *, up_to: int) -> list[str]:
        """Returns which of these keys are in the table, for messages that end at or before `up_to`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._find_keys, stream, keys, up_to)

    def _find_keys(self, stream: int, keys: Sequence[str], up_to: int) -> list[str]:
        try:
            rows = self._connection().execute(
                'SELECT key FROM message_keys WHERE stream = ? AND "end" <= ?'
                " AND key IN (SELECT value FROM json_each(?))",
                (stream, up_to, orjson.dumps(keys).decode()),
            )
            return [key for (key,) in rows]
        except sqlite3.DatabaseError as error:
            if not is_corruption(error):
                raise
            raise StreamDamaged(f"the keys of this stream cannot be read: {error}") from error

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self._path)
            self._connections.append(connection)
        return connection

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        for connection in self._connections:
            connection.close()


def spans_of(lineage: Sequence[tuple[int, int]], start: int, tail: int) -> list[DiskSpan]:
    """Returns which bytes come from which stream, in order. The lineage begins with the youngest."""
    spans = []
    high = tail
    for stream, begins in lineage:
        low = max(begins, start)
        if low < high:
            spans.append((stream, low, high))
        high = min(high, begins)
    spans.reverse()
    return spans
