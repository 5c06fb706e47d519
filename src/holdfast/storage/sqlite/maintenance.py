"""Checks, backs up and compacts a database file. See `holdfast.storage.maintenance`."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.storage.errors import CannotOpen, DatabaseDamaged, DiskFull, StorageError, UnknownSchema
from holdfast.storage.maintenance import Damage, Health, QuickCheck
from holdfast.storage.sqlite import DATABASE, SECRET, reserve
from holdfast.storage.sqlite.schema import VERSION, connect, is_corruption
from holdfast.storage.sqlite.streams.chunks import is_damaged
from holdfast.storage.sqlite.streams.journal import RowDamaged, decode

_MOST_COMPLAINTS: Final = 50
_GLANCE_SECONDS: Final = 3.0


def library_version() -> tuple[int, ...]:
    return sqlite3.sqlite_version_info


def check(path: Path) -> Health:
    damaged = "is damaged or not a database ({error}): restore a backup"
    with _explaining(path, damaged), closing(_open_to_read(path)) as connection:
        connection.execute("BEGIN")
        return _check(connection)


def quick_check(path: Path) -> QuickCheck:
    deadline = time.monotonic() + _GLANCE_SECONDS
    version, damage = 0, None
    try:
        with closing(_open_to_read(path)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            with suppress(sqlite3.OperationalError):  # it was not read completely
                (line,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                damage = None if line == "ok" else str(line).replace("\n", ": ")
    except sqlite3.Error as error:
        damage = str(error)
    return QuickCheck(version, VERSION, damage)


def backup(home: Path, target: Path) -> None:
    path, copy = home / DATABASE, target / DATABASE
    if (home / SECRET).is_file():
        shutil.copy2(home / SECRET, target / SECRET)
    damaged = "is damaged and cannot be copied completely ({error})"
    with _explaining(path, damaged), closing(_open_to_read(path)) as connection:
        _known_version(connection)
        connection.execute("PRAGMA query_only = 0")  # which would also keep it from writing the other file
        connection.execute("VACUUM INTO ?", (str(copy),))
    copy.chmod(0o600)
    _sync(copy)
    _sync(target)


def compact(path: Path) -> None:
    with _explaining(path, "is damaged and cannot be compacted ({error})"), closing(connect(path)) as connection:
        _known_version(connection)
        for table in ("chunks", "message_keys", "producers"):
            connection.execute(f"DELETE FROM {table} WHERE stream IN (SELECT stream FROM purges)")
        connection.execute("DELETE FROM purges")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _explaining(path: Path, damaged: str) -> Iterator[None]:
    """Turn SQLite errors into storage errors."""
    try:
        yield
    except sqlite3.Error as error:
        is_full = reserve.is_full(error)
        # SQLite also takes the disk for full when it copies a row whose damaged head promises more than there can be.
        found = quick_check(path).damage if is_full else None
        if is_corruption(error) or found is not None:
            raise DatabaseDamaged(f"{path} {damaged.format(error=found or error)}") from error
        if is_full:
            raise DiskFull(f"{path}: {error}") from error
        raise StorageError(f"{path}: {error}") from error


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
    _check_file(connection, health)
    streams = _streams(connection, health)
    has_checksums = any(row[1] == "checksum" for row in connection.execute("PRAGMA table_info(chunks)"))
    for id, stream, begins in streams:
        health.streams += 1
        _check_stream(connection, id, stream, begins, health, has_checksums=has_checksums)
    _check_journal(connection, health)
    return health


def _check_file(connection: sqlite3.Connection, health: Health) -> None:
    """Let SQLite check its own structures. Some damage stops that: then each table is checked by itself."""
    try:
        _complain(connection, str(_MOST_COMPLAINTS), "the file", health)
    except sqlite3.DatabaseError as error:
        health.damage.append(Damage("the file", str(error)))
        for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            try:
                _complain(connection, f"'{table}'", f"the table {table}", health)
            except sqlite3.DatabaseError as problem:
                health.damage.append(Damage(f"the table {table}", str(problem)))


def _complain(connection: sqlite3.Connection, scope: str, what: str, health: Health) -> None:
    for (line,) in connection.execute(f"PRAGMA integrity_check({scope})"):
        if line != "ok" and len(health.damage) < _MOST_COMPLAINTS:
            health.damage.append(Damage(what, line))


def _streams(connection: sqlite3.Connection, health: Health) -> list[tuple[int, str, int]]:
    """All streams, or those that can be read."""
    found: list[tuple[int, str, int]] = []
    try:
        for row in connection.execute("SELECT id, path, fork_offset FROM streams ORDER BY id"):
            found.append(row)
    except sqlite3.DatabaseError as error:
        health.damage.append(Damage("the list of streams", f"cannot be read after {len(found)} streams: {error}"))
    return found


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
                health.damage.append(Damage(stream, f"bytes {begin} to {end} differ from what was written"))
            health.unchecked += expected is None
            health.bytes += len(data)
            position = end
    except sqlite3.DatabaseError as error:
        health.damage.append(Damage(stream, f"cannot be read after {position}: {error}"))


def _check_journal(connection: sqlite3.Connection, health: Health) -> None:
    try:
        for number, row in connection.execute("SELECT number, entries FROM journal ORDER BY number"):
            try:
                health.bytes += sum(len(entry.data) for entry in decode(row))
            except (RowDamaged, ValueError, TypeError):
                health.damage.append(Damage("the journal", f"row {number} differs from what was written"))
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'damaged_rows'").fetchone():
            for (number,) in connection.execute("SELECT number FROM damaged_rows ORDER BY number"):
                detail = f"row {number} was found damaged at an earlier start and set aside with its contents"
                health.damage.append(Damage("the journal", detail))
    except sqlite3.DatabaseError as error:
        health.damage.append(Damage("the journal", f"cannot be read: {error}"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
