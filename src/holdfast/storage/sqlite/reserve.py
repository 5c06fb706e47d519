"""A little room that is kept beside the database, for a start and for deletes on a full disk.

After a crash SQLite makes the index of its log anew, and may need more room for it than the crash left free. Without
that room not even a read is served. To delete something, SQLite has to write as well. So a file is kept that can be
made smaller, several times.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SIZES: Final = (4 * 1024 * 1024, 1024 * 1024, 256 * 1024)
"""As much as there is room for."""
_SHARE: Final = 64 * 1024
"""For one start. The index of a log grows by half of this."""
DELETE_SHARE: Final = 512 * 1024
"""For one step of a delete."""


def is_full(cause: BaseException) -> bool:
    """Whether a write failed for want of room. Where an index cannot be mapped, SQLite calls that an I/O error."""
    name = getattr(cause, "sqlite_errorname", "")
    return isinstance(cause, sqlite3.OperationalError) and name.startswith(("SQLITE_FULL", "SQLITE_IOERR"))


def keep(database: Path) -> None:
    """Take the room where there is some. Blocks for a moment."""
    with contextlib.suppress(OSError), _open(database) as descriptor:
        for size in _SIZES:
            with contextlib.suppress(OSError):
                os.posix_fallocate(descriptor, 0, size)
                return


def spend(database: Path, share: int = _SHARE) -> bool:
    """Give some of it back to the disk; says whether there was any left."""
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
