"""The database: implements the store contracts of the packages below. `sqlite/` keeps everything in one file.

Only this package knows which implementation is used. A server opens its storage here, and the commands of an operator
go by `maintenance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.storage.contract import Storage
from holdfast.storage.errors import CannotOpen, DatabaseDamaged, DiskFull, StorageError, UnknownSchema

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CannotOpen", "DatabaseDamaged", "DiskFull", "Storage", "StorageError", "UnknownSchema", "open_storage"]


async def open_storage(home: Path) -> Storage:
    """Open the storage of a home, and create it if it is missing. The caller closes it. Raises `CannotOpen`."""
    from holdfast.storage.sqlite.storage import SqliteStorage

    return await SqliteStorage.open(home)
