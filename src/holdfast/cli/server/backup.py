"""`holdfast backup`: copies the durable data of a home, while its server runs."""

from __future__ import annotations

import errno
import shlex
import shutil
from pathlib import Path
from typing import Annotated, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.parsing.parameters import Argument
from holdfast.cli.server.check import explaining
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.console import hint, write_field, write_json
from holdfast.cli.terminal.sizes import describe_size
from holdfast.storage import maintenance

_NODE: Final = "node"
"""The file with the home's name, to which the boxes in the database belong."""


def backup(
    target: Annotated[Path, Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy all threads, keys and settings to a folder, as of one moment. The server may keep running.

    The copy is a home: `holdfast up --home DIR` serves it. It does not contain the files of boxes.
    """
    folder = home_or_default(home)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CommandError(
            f"{target} already exists and is not empty", next_step="choose another folder", exit=Exit.CONFLICT
        )
    try:
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        try:
            if (folder / _NODE).is_file():
                shutil.copy2(folder / _NODE, partial / _NODE)
            with explaining(folder):
                maintenance.backup(folder, partial)
                health = maintenance.check(partial)
            if target.exists():
                target.rmdir()
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except CommandError as error:
        if error.exit is Exit.DISK_FULL:
            raise _full(target) from None
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(target) from None
        raise CommandError(
            f"cannot write {target}: {error.strerror or error}", next_step="choose a folder that you may write to"
        ) from None
    size = maintenance.database_file(target).stat().st_size
    if as_json:
        damage = [{"what": each.what, "detail": each.detail} for each in health.damage]
        write_json({"backup": str(target), "bytes": size, "streams": health.streams, "damage": damage})
    else:
        write_field("backup", f"{target}  {health.streams} streams, {describe_size(size)}")
        write_field("serve it", hint(f"holdfast up --home {shlex.quote(str(target))} --port 0"))
    if health.damage:
        raise CommandError(
            f"the copy is as damaged as the original, in {len(health.damage)} places", next_step="holdfast check"
        )


def _full(target: Path) -> CommandError:
    return CommandError(
        f"cannot write {target}: the disk is full",
        next_step="free some space, or choose a folder on another disk",
        exit=Exit.DISK_FULL,
    )
