"""Reserved disk space beside the database, for starts and deletions on a full disk.

After a crash, SQLite rebuilds the index of its log, which may need more space than is free. Without it, not even reads
work. SQLite also has to write in order to delete. So a file is kept that can be shrunk several times.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SIZES: Final = (4 * 1024 * 1024, 1024 * 1024, 256 * 1024)
"""The first size that fits is used."""
_SHARE: Final = 64 * 1024
"""Released for one start. The index of a log grows by half of this."""
DELETE_SHARE: Final = 512 * 1024
"""Released for one step of a deletion."""


def is_full(cause: BaseException) -> bool:
    """Whether a write failed because the disk is full. An index that cannot be mapped is an I/O error to SQLite."""
    name = getattr(cause, "sqlite_errorname", "")
    return isinstance(cause, sqlite3.OperationalError) and name.startswith(("SQLITE_FULL", "SQLITE_IOERR"))


def keep(database: Path) -> None:
    """Reserve space if there is any. Blocks for a moment."""
    with contextlib.suppress(OSError), _open(database) as descriptor:
        for size in _SIZES:
            with contextlib.suppress(OSError):
                os.posix_fallocate(descriptor, 0, size)
                return


def spend(database: Path, share: int = _SHARE) -> bool:
    """Release some of the space. Returns whether there was any left."""
    try:
        with _open(database) as descriptor:
            size = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, max(0, size - share))
            return size > 0
    except OSError:
        return False


@contextlib.contextmanager
def _open(database: Path) -> Iterator[int]:
    descriptor = os.open(f"{database}-reserve", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
