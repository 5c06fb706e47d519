"""One connection to the database file, on a thread of its own: a disk never holds up the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from holdfast.storage.sqlite.schema import connect, make, prepare

T = TypeVar("T")


class Database:
    """Made where it is missing. Owned by who made it, who closes it."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"holdfast-{name}")
        self._connection: sqlite3.Connection | None = None

    async def close(self) -> None:
        """Closing twice does nothing."""
        await asyncio.to_thread(self._worker.shutdown, wait=True)
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, lambda: work(self._opened()))

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In a transaction that takes the write lock first."""

        def change() -> T:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                done = work(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return done

        return await asyncio.get_running_loop().run_in_executor(self._worker, change)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            make(self._path)
            with ExitStack() as opening:
                connection = opening.enter_context(closing(connect(self._path)))
                prepare(connection)
                # A power cut may take back the last moments. It ends what they tell of, too.
                connection.execute("PRAGMA synchronous = NORMAL")
                opening.pop_all()
            self._connection = connection
        return self._connection
