"""`holdfast check`: reads everything in a home's database and reports damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.console import Cell, write_field, write_json, write_line
from holdfast.cli.terminal.sizes import describe_size
from holdfast.storage import CannotOpen, DiskFull, StorageError, maintenance


def check(home: HomeOption = None, as_json: JsonOption = False) -> Exit:
    """Read all threads and compare them with their checksums. Exits with 1 if something is damaged.

    The server may keep running: damage to one thread does not stop the others.
    """
    folder = home_or_default(home)
    with explaining(folder):
        health = maintenance.check(folder)
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
            write_field("unchecked", f"{health.unchecked} rows were written by an older version and have no checksum")
        for each in health.damage:
            write_line("  ", Cell(f"✗ {each.what}", "red"), f" {each.detail}")
        if not health.damage:
            write_field("damage", "none")
    if health.damage and not as_json:
        raise CommandError(
            f"{maintenance.database_file(folder)} is damaged in {len(health.damage)} places",
            next_step="holdfast down, then restore a backup; or delete the threads named above",
        )
    return Exit.FAILURE if health.damage else Exit.OK


@contextmanager
def explaining(home: Path) -> Iterator[None]:
    """Turn errors of a home's storage into errors of the command."""
    try:
        yield
    except CannotOpen as error:
        exit = Exit.FAILURE if maintenance.is_there(home) else Exit.NOT_FOUND
        raise CommandError(str(error), exit=exit) from None
    except DiskFull as error:
        raise CommandError(str(error), next_step="free some space on the disk", exit=Exit.DISK_FULL) from None
    except StorageError as error:
        raise CommandError(str(error)) from None
