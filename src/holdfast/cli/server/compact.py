"""`holdfast compact`: makes the database of a home as small as possible."""

from __future__ import annotations

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.server.check import explaining
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.console import write_field, write_json
from holdfast.cli.terminal.sizes import describe_size
from holdfast.storage import maintenance


def compact(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Give all free space in the database back to the disk. The server must not run. Needs as much free disk space.

    A server gives space back automatically after deletes, except for the first 8 MB, and except in databases that an
    older version of Holdfast created: compact those once.
    """
    from holdfast.server.home import Home, HomeInUse

    folder = home_or_default(home)
    database = maintenance.database_file(folder)
    if not maintenance.is_there(folder):
        raise CommandError(f"there is no database at {database}", exit=Exit.NOT_FOUND)
    before = database.stat().st_size
    try:
        with Home(folder), explaining(folder):
            maintenance.compact(folder)
    except HomeInUse as error:
        raise CommandError(
            str(error), next_step="holdfast down, then holdfast compact again", exit=Exit.CONFLICT
        ) from None
    after = database.stat().st_size
    if as_json:
        write_json({"database": str(database), "bytesBefore": before, "bytes": after})
    else:
        write_field("compacted", f"{describe_size(before)} to {describe_size(after)}")
