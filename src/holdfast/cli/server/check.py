"""`holdfast check`: reads everything in a home's database and says what is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.discovery import the_home
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.terminal.console import Cell, write_field, write_json, write_line
from holdfast.cli.terminal.sizes import describe_size


def check(home: HomeOption = None, as_json: JsonOption = False) -> Exit:
    """Read all threads and compare them with their checksums. Exits with 1 where something is damaged.

    The server may run meanwhile, and goes on: damage of one thread does not stop the others.
    """
    from holdfast.storage.sqlite import maintenance

    database = the_home(home) / "holdfast.db"
    with explaining(database):
        health = maintenance.check(database)
    if as_json:
        damage = [{"what": each.what, "detail": each.detail} for each in health.damage]
        write_json(
            {
                "ok": not damage,
                "schema": health.version,
                "streams": health.streams,
                "bytes": health.bytes,
                "freeBytes": health.free_bytes,
                "withoutChecksum": health.unchecked,
                "damage": damage,
            }
        )
    else:
        write_field("streams", f"{health.streams}, {describe_size(health.bytes)}")
        write_field("schema", str(health.version))
        write_field("free room", describe_size(health.free_bytes))
        if health.unchecked:
            write_field("unchecked", f"{health.unchecked} rows are of an older version and have no checksum")
        for each in health.damage:
            write_line("  ", Cell(f"✗ {each.what}", "red"), f" {each.detail}")
        if not health.damage:
            write_field("damage", "none")
    if health.damage and not as_json:
        raise CommandError(
            f"{database} is damaged in {len(health.damage)} places",
            next_step="holdfast down, then put a backup in its place; or delete the threads named above",
        )
    return Exit.FAILURE if health.damage else Exit.OK


@contextmanager
def explaining(database: Path) -> Iterator[None]:
    """What goes wrong with a database, as the end of a command."""
    from holdfast.storage.sqlite.schema import CannotOpen

    try:
        yield
    except CannotOpen as error:
        exit = Exit.FAILURE if database.is_file() else Exit.NOT_FOUND
        raise CommandError(str(error), exit=exit) from None
    except sqlite3.OperationalError as error:
        full = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
        raise CommandError(
            f"{database}: {error}",
            next_step="free some space on the disk" if full else None,
            exit=Exit.DISK_FULL if full else Exit.FAILURE,
        ) from None
