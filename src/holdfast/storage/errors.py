"""Errors of a storage as a whole. Errors of single requests are in `threads` and `boxes`."""

from __future__ import annotations


class StorageError(Exception):
    """The storage cannot be used. The message gives the reason and what to do."""


class CannotOpen(StorageError):
    """The storage is missing or cannot be opened."""


class UnknownSchema(CannotOpen):
    """A newer Holdfast wrote the database."""


class DatabaseDamaged(CannotOpen):
    """Nothing can be read: an essential part of the file is damaged, or it is not a database."""


class DiskFull(StorageError):
    """The disk of the database has no room for this operation."""
