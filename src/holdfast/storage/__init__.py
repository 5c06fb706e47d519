"""The database: implements the store contracts of other packages. `sqlite/` keeps everything in one file.

Only this package knows which implementation is used. Servers open their storage here; operator commands use
`maintenance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.storage.contract import Storage
from holdfast.storage.errors import CannotOpen, DatabaseDamaged, DiskFull, StorageError, UnknownSchema

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CannotOpen", "DatabaseDamaged", "DiskFull", "Storage", "StorageError", "UnknownSchema", "open_storage"]


async def open_storage(home: Path) -> Storage:
    """Open the storage of a home, creating it if it is missing. The caller closes it. Raises `CannotOpen`."""
    from holdfast.storage.sqlite.storage import SqliteStorage

    return await SqliteStorage.open(home)
