"""Reading spans of streams, on threads of their own, each with a connection of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from holdfast.threads.errors import InvalidRequest
from holdfast.threads.sqlite.schema import connect

_THREADS: Final = 2


class Reader:
    """A small pool of reading connections. SQLite readers never wait for the writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def read(
        self, lineage: tuple[tuple[int, int], ...], start: int, tail: int, limit: int, *, json: bool
    ) -> bytes:
        """The bytes from `start` up to `tail`, across the ancestors of a fork, stopping after `limit` bytes."""
        spans = _spans(lineage, start, tail)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, spans, start, limit, json)

    def _read(self, spans: list[tuple[int, int, int]], start: int, limit: int, json: bool) -> bytes:
        connection = self._connection()
        pieces: list[bytes] = []
        size = 0
        for stream, low, high in spans:
            rows = connection.execute(
                'SELECT "end", data FROM chunks WHERE stream = ? AND "end" > ? ORDER BY "end"', (stream, low)
            )
            for end, data in rows:
                begin = end - len(data)
                if begin >= high:
                    break
                if begin < low:
                    if json and low == start and data[low - begin - 1] != 0x0A:
                        raise InvalidRequest("the offset is not at the start of a message of this stream")
                    data = data[low - begin :]
                    begin = low
                if end > high:
                    data = data[: high - begin]
                pieces.append(data)
                size += len(data)
                if size >= limit:
                    rows.close()
                    return b"".join(pieces)
        return b"".join(pieces)

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


def _spans(lineage: tuple[tuple[int, int], ...], start: int, tail: int) -> list[tuple[int, int, int]]:
    """Which bytes come from which stream: (stream, from, to), in order. The lineage has the youngest first."""
    spans = []
    high = tail
    for stream, begins in lineage:
        low = max(begins, start)
        if low < high:
            spans.append((stream, low, high))
        high = min(high, begins)
    spans.reverse()
    return spans
