"""Operator commands for the storage of a home: check it for damage, back it up while in use, and compact it.

Every function raises `CannotOpen` if there is no storage or it cannot be opened, `DiskFull`, or `StorageError` for
other failures. Modules are loaded when a function is called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.storage.sqlite import DATABASE


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that differs from what was written."""

    what: str
    """The path of a stream, or the part of the file."""
    detail: str


@dataclass(slots=True)
class Health:
    """The result of a check."""

    version: int
    streams: int = 0
    bytes: int = 0
    """Size of all streams."""
    unchecked: int = 0
    """Rows of the first schema version, which have no checksum."""
    free_bytes: int = 0
    """Unused space inside the file."""
    damage: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """The result of a quick check."""

    version: int
    """The schema version of the database."""
    newest: int
    """The schema version that this Holdfast supports."""
    damage: str | None


def database_file(home: Path) -> Path:
    """Returns the path of a home's database, even if it does not exist yet."""
    return home / DATABASE


def is_there(home: Path) -> bool:
    """Returns whether a server was ever started on this home."""
    return database_file(home).is_file()


def check(home: Path) -> Health:
    """Read everything and compare it with its checksums. A server may use the storage at the same time."""
    from holdfast.storage.sqlite import maintenance

    return maintenance.check(database_file(home))


def quick_check(home: Path) -> QuickCheck:
    """Read as much as possible in a few seconds. A server may use the storage at the same time."""
    from holdfast.storage.sqlite import maintenance

    return maintenance.quick_check(database_file(home))


def backup(home: Path, target: Path) -> None:
    """Copy a consistent state of the storage and its root secret to a folder. A server may use the storage."""
    from holdfast.storage.sqlite import maintenance

    maintenance.backup(home, target)


def compact(home: Path) -> None:
    """Remove deleted data and make the storage as small as possible. No server may use it."""
    from holdfast.storage.sqlite import maintenance

    maintenance.compact(database_file(home))


def library_version() -> tuple[int, ...]:
    """Returns the version of the SQLite library."""
    from holdfast.storage.sqlite import maintenance

    return maintenance.library_version()
