"""Removes deleted data in small steps, and returns the space to the disk.

Each step is short, because appends wait for the commit that it is part of. On a full disk appends fail anyway, so the
steps are large, because many small ones would write far more than one large one.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

from holdfast.storage.sqlite import reserve
from holdfast.storage.sqlite.schema import is_corruption
from holdfast.storage.sqlite.streams.writer import CHECKPOINT_BYTES, Writer

log = logging.getLogger(__name__)

_TABLES: Final = (("chunks", '"end"', 16), ("message_keys", "key", 2000), ("producers", "producer", 2000))
"""Tables with rows of streams, the column that orders them, and how many rows one step removes: about a megabyte."""
_RUN_SECONDS: Final = 1.0
_STEP_PAGES: Final = 128
_LARGE_STEP: Final = 64
_KEPT_PAGES: Final = 2048
"""How many free pages stay in the file. The journal takes and frees pages all the time."""
_STEP_BYTES: Final = 256 * 1024
"""Approximately what one step adds to the write-ahead log."""


class Write(Protocol):
    """Runs a function on the connection in the next commit."""

    def __call__(
        self, write: Callable[[sqlite3.Connection], None], *, size: int = 0, frees_space: bool = False
    ) -> Awaitable[None]: ...


class Purger:
    """Runs the steps on the event loop. The store owns it, and runs it once a second."""

    def __init__(
        self,
        path: Path,
        lookup: sqlite3.Connection,
        writer: Writer,
        write: Write,
        file: Callable[[], Awaitable[None]],
    ) -> None:
        self._path = path
        self._lookup = lookup
        self._writer = writer
        self._write = write
        self._file = file

    async def run(self) -> None:
        """Remove deleted data for about half of the time; the other half is left to other writers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RUN_SECONDS
        purged = False
        if self._writer.making_room:
            await self._file()  # the journal may hold a good part of what was deleted
        while loop.time() < deadline and (step := self._next_step()) is not None:
            purged = True
            began = loop.time()
            await self._write(step, size=_STEP_BYTES, frees_space=True)
            await asyncio.sleep(loop.time() - began)
        if self._writer.making_room and self._next_step() is None:
            self._writer.making_room = False
            await self._write(lambda _: None, size=CHECKPOINT_BYTES)
        if purged:
            reserve.keep(self._path)

    def _next_step(self) -> Callable[[sqlite3.Connection], None] | None:
        stream, making_room = next_purge(self._lookup), self._writer.making_room
        if stream is None and not has_room_to_give_back(self._lookup, disk_is_full=making_room):
            return None
        if making_room:
            return lambda connection: make_room(connection, stream)
        return give_back_some if stream is None else lambda connection: purge_some(connection, stream)


def purge_some(connection: sqlite3.Connection, stream: int, *, times: int = 1) -> None:
    """Remove part of a deleted stream. After the last part, also remove the note about it."""
    try:
        for table, column, rows in _TABLES:
            limit = rows * times
            beyond = connection.execute(
                f"SELECT {column} FROM {table} WHERE stream = ? ORDER BY {column} LIMIT 1 OFFSET ?", (stream, limit)
            ).fetchone()
            if beyond is not None:
                connection.execute(f"DELETE FROM {table} WHERE stream = ? AND {column} < ?", (stream, beyond[0]))
                return
            connection.execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))
    except sqlite3.DatabaseError as error:
        if not is_corruption(error):
            raise
        log.error("a deleted stream is damaged; run `holdfast compact` to free its space: %s", error)
    connection.execute("DELETE FROM purges WHERE stream = ?", (stream,))


def next_purge(connection: sqlite3.Connection) -> int | None:
    """Returns a deleted stream that still has data, or None."""
    row = connection.execute("SELECT stream FROM purges LIMIT 1").fetchone()
    return None if row is None else int(row[0])


def has_room_to_give_back(connection: sqlite3.Connection, *, disk_is_full: bool) -> bool:
    """Whether the file can be shrunk. Files created by the first version can only be shrunk by `holdfast compact`."""
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return bool(mode) and free > (0 if disk_is_full else _KEPT_PAGES + _STEP_PAGES)


def give_back_some(connection: sqlite3.Connection, *, times: int = 1) -> None:
    """Move pages from the end of the file into free space. The next checkpoint truncates the file."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    for _ in range(min(free, _STEP_PAGES * times)):
        # One page per statement: Python stops after the first row without columns, whatever number is requested.
        connection.execute("PRAGMA incremental_vacuum(1)")


def make_room(connection: sqlite3.Connection, stream: int | None) -> None:
    """Run a large step on a full disk, where appends fail anyway. Many small ones would write far more."""
    if stream is not None:
        purge_some(connection, stream, times=_LARGE_STEP)
    give_back_some(connection, times=_LARGE_STEP // 8)
