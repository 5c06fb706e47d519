"""What an operator does with the storage of a home: look for damage, copy it while it is in use, make it small again.

Every function raises `CannotOpen` where there is no storage, or none that can be opened; `DiskFull`; and `StorageError`
for other failures. It loads nothing until a function is called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.storage.sqlite import DATABASE


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written."""

    what: str
    """The path of a stream, or the part of the file."""
    detail: str


@dataclass(slots=True)
class Health:
    """What was found in a storage."""

    version: int
    streams: int = 0
    bytes: int = 0
    """Of all streams."""
    unchecked: int = 0
    """Rows of the first schema, which have no checksum."""
    free_bytes: int = 0
    """Room inside the file that nothing uses."""
    damage: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Glance:
    """What a few seconds tell of a storage."""

    version: int
    """Of its tables."""
    newest: int
    """The version of the tables that this Holdfast knows."""
    damage: str | None


def database_file(home: Path) -> Path:
    """Returns where the database of a home is, or will be."""
    return home / DATABASE


def is_there(home: Path) -> bool:
    """Whether a server has ever been started on this home."""
    return database_file(home).is_file()


def check(home: Path) -> Health:
    """Read everything and compare it with its checksums. A server may be using the storage meanwhile."""
    from holdfast.storage.sqlite import maintenance

    return maintenance.check(database_file(home))


def glance(home: Path) -> Glance:
    """Read as much as a few seconds allow. A server may be using the storage meanwhile."""
    from holdfast.storage.sqlite import maintenance

    return maintenance.glance(database_file(home))


def backup(home: Path, target: Path) -> None:
    """Copy the storage and its root secret, as of one moment, to a folder. A server may be using the storage."""
    from holdfast.storage.sqlite import maintenance

    maintenance.backup(home, target)


def compact(home: Path) -> None:
    """Remove what was deleted and make the storage as small as it can be. No server may be using it."""
    from holdfast.storage.sqlite import maintenance

    maintenance.compact(database_file(home))


def library_version() -> tuple[int, ...]:
    """Returns the version of SQLite that this Python has."""
    from holdfast.storage.sqlite import maintenance

    return maintenance.library_version()
