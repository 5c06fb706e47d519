"""What can go wrong with a storage as a whole. Failures of one request are errors of `threads` and `boxes`."""

from __future__ import annotations


class StorageError(Exception):
    """The storage cannot be used. The message says why, and what to do."""


class CannotOpen(StorageError):
    """The storage is missing, or cannot be opened."""


class UnknownSchema(CannotOpen):
    """The database was written by a newer Holdfast."""


class DatabaseDamaged(CannotOpen):
    """Nothing can be read: the file is damaged where everything depends on it, or is no database."""


class DiskFull(StorageError):
    """There is no room to do this on the disk of the database."""
