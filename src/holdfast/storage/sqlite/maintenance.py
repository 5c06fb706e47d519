"""What an operator does with a database: look for damage, copy it while it is in use, make the file small again."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.storage.sqlite.schema import VERSION, CannotOpen, DatabaseDamaged, UnknownSchema, connect, is_corruption
from holdfast.storage.sqlite.streams.chunks import is_damaged
from holdfast.storage.sqlite.streams.journal import RowDamaged, decode

_MOST_COMPLAINTS = 50


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written."""

    what: str
    """The path of a stream, or the part of the file."""
    detail: str


@dataclass(slots=True)
class Health:
    """What was found in a database."""

    version: int
    streams: int = 0
    bytes: int = 0
    """Of all streams."""
    unchecked: int = 0
    """Rows of the first schema, which have no checksum."""
    free_bytes: int = 0
    """Room inside the file that nothing uses."""
    damage: list[Damage] = field(default_factory=list)


def check(path: Path) -> Health:
    """Read everything and compare it with its checksums. A server may be using the database meanwhile."""
    try:
        with closing(_open_to_read(path)) as connection:
            connection.execute("BEGIN")
            return _check(connection)
    except sqlite3.DatabaseError as error:
        if not is_corruption(error):
            raise
        raise DatabaseDamaged(f"{path} is damaged, or no database ({error}): restore a backup of it") from error


def backup(path: Path, target: Path) -> None:
    """Write a copy of the database, as of one moment, to a file that is not there yet. A server may be using it."""
    with closing(_open_to_read(path)) as connection:
        _known_version(connection)
        connection.execute("PRAGMA query_only = 0")  # which would keep it from writing the other file, too
        try:
            connection.execute("VACUUM INTO ?", (str(target),))
        except sqlite3.DatabaseError as error:
            if not is_corruption(error):
                raise
            raise DatabaseDamaged(f"{path} is damaged and cannot be copied whole ({error})") from error
    target.chmod(0o600)
    _sync(target)
    _sync(target.parent)


def compact(path: Path) -> None:
    """Remove what was deleted and make the file as small as it can be. Nothing else may be using the database."""
    with closing(connect(path)) as connection:
        _known_version(connection)
        try:
            for table in ("chunks", "message_keys", "producers"):
                connection.execute(f"DELETE FROM {table} WHERE stream IN (SELECT stream FROM purges)")
            connection.execute("DELETE FROM purges")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")
        except sqlite3.DatabaseError as error:
            if not is_corruption(error):
                raise
            raise DatabaseDamaged(f"{path} is damaged and cannot be compacted ({error})") from error
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _open_to_read(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise CannotOpen(f"there is no database at {path}")
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    connection.execute("PRAGMA query_only = 1")
    return connection


def _known_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise UnknownSchema(
            f"the data was written by a newer Holdfast (schema {version}, this one knows {VERSION}): upgrade Holdfast"
        )
    return int(version)


def _check(connection: sqlite3.Connection) -> Health:
    health = Health(_known_version(connection))
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    health.free_bytes = free * page
    for (line,) in connection.execute(f"PRAGMA integrity_check({_MOST_COMPLAINTS})"):
        if line != "ok":
            health.damage.append(Damage("the file", line))
    streams = connection.execute("SELECT id, path, fork_offset FROM streams ORDER BY id").fetchall()
    has_checksums = any(row[1] == "checksum" for row in connection.execute("PRAGMA table_info(chunks)"))
    for id, stream, begins in streams:
        health.streams += 1
        _check_stream(connection, id, stream, begins, health, has_checksums=has_checksums)
    _check_journal(connection, health)
    return health


def _check_stream(
    connection: sqlite3.Connection, id: int, stream: str, begins: int, health: Health, *, has_checksums: bool
) -> None:
    position = begins
    columns = '"end", data, checksum' if has_checksums else '"end", data, NULL'
    try:
        for end, data, expected in connection.execute(
            f'SELECT {columns} FROM chunks WHERE stream = ? ORDER BY "end"', (id,)
        ):
            begin = end - len(data)
            if begin != position:
                health.damage.append(Damage(stream, f"bytes {position} to {begin} are missing"))
            if is_damaged(id, end, data, expected):
                health.damage.append(Damage(stream, f"bytes {begin} to {end} are not as they were written"))
            health.unchecked += expected is None
            health.bytes += len(data)
            position = end
    except sqlite3.DatabaseError as error:
        health.damage.append(Damage(stream, f"cannot be read from {position} on: {error}"))


def _check_journal(connection: sqlite3.Connection, health: Health) -> None:
    try:
        for number, row in connection.execute("SELECT number, entries FROM journal ORDER BY number"):
            try:
                health.bytes += sum(len(entry.data) for entry in decode(row))
            except (RowDamaged, ValueError, TypeError):
                health.damage.append(Damage("the journal", f"row {number} is not as it was written"))
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'damaged_rows'").fetchone():
            for (number,) in connection.execute("SELECT number FROM damaged_rows ORDER BY number"):
                detail = f"row {number} was damaged at an earlier start and set aside, with what it held"
                health.damage.append(Damage("the journal", detail))
    except sqlite3.DatabaseError as error:
        health.damage.append(Damage("the journal", f"cannot be read: {error}"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
