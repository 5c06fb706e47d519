"""One connection to the database file on its own thread, so that a slow disk never blocks the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from holdfast.api.errors import DiskFull, Refused, Unavailable
from holdfast.storage.sqlite import reserve
from holdfast.storage.sqlite.schema import connect, make, prepare

T = TypeVar("T")

_FULL: Final = 2
_NORMAL: Final = 1


class Database:
    """A connection for tables without their own writer. The file is opened or created on first use.

    The caller that creates it closes it, usually with `async with`. Every method raises `DiskFull` if the disk is
    full, and `Unavailable` for other SQLite errors.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="holdfast-database")
        self._connection: sqlite3.Connection | None = None
        self._synchronous = _FULL

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closing twice does nothing."""
        await asyncio.to_thread(self._worker.shutdown, wait=True)
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._run(lambda: work(self._opened()))

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction. It is on disk when this returns."""
        return await self._run(lambda: self._transact(work, _FULL))

    async def change_soon(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction that is visible at once but may be lost in a power cut, because it does not wait for a
        sync.
        """
        return await self._run(lambda: self._transact(work, _NORMAL))

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except sqlite3.Error as error:
            raise _as_stream_error(error) from error

    def _transact(self, work: Callable[[sqlite3.Connection], T], synchronous: int) -> T:
        connection = self._opened()
        if synchronous != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        connection.execute("BEGIN IMMEDIATE")
        try:
            done = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # on a full disk, SQLite may have ended it already
                connection.execute("ROLLBACK")
            raise
        return done

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            make(self._path)
            with ExitStack() as opening:
                connection = opening.enter_context(closing(connect(self._path)))
                prepare(connection)
                opening.pop_all()
            self._connection = connection
        return self._connection


def _as_stream_error(error: sqlite3.Error) -> Refused:
    if reserve.is_full(error):
        return DiskFull(f"nothing was written because the disk is full or failing ({error}): free space and try again")
    return Unavailable(f"the database failed: {error}")
