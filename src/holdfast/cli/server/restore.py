"""`holdfast restore`: makes a home of a backup. Never overwrites one."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from pathlib import Path
from typing import Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.parsing.parameters import Argument
from holdfast.cli.server.backup import NODE, copy_tenants, copy_workspaces, full
from holdfast.cli.server.check import explaining
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.console import hint, write_field, write_json
from holdfast.cli.terminal.sizes import describe_size
from holdfast.storage import maintenance


def restore(
    source: Annotated[Path, Argument(metavar="DIR", help="A backup, made by holdfast backup.", show_default=False)],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a home of a backup, after reading all of it. Refuses if the home exists and is not empty.

    Boxes are not part of a backup: threads continue in new boxes, with the files that they began with.

    \b
    holdfast down && mv ~/.local/share/holdfast ~/holdfast-before
    holdfast restore ~/backups/monday && holdfast up
    """
    folder = home_or_default(home)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(
            f"{folder} already exists and is not empty",
            next_step=f"holdfast down, then move it away: mv {shlex.quote(str(folder))} …; or choose another --home",
            exit=Exit.CONFLICT,
        )
    partial = folder.with_name(f".{folder.name}.restoring")
    shutil.rmtree(partial, ignore_errors=True)  # of a restore that was killed
    try:
        with explaining(source):
            before = maintenance.check(source)
        if before.damage:
            raise CommandError(
                f"{source} is damaged in {len(before.damage)} places, and was not restored",
                next_step=f"holdfast check --home {shlex.quote(str(source))}, or restore an older backup",
            )
        partial.mkdir(mode=0o700, parents=True)
        if (source / NODE).is_file():
            shutil.copy2(source / NODE, partial / NODE)
        with explaining(source):
            maintenance.backup(source, partial)
            copy_workspaces(source, partial)
            health = maintenance.check(partial)
            health.damage += copy_tenants(source, partial)
        if health.damage or health.streams != before.streams:
            raise CommandError(
                f"the copy in {partial} differs from {source}", next_step="check the disk, and try again"
            )
        if folder.exists():
            folder.rmdir()
        os.rename(partial, folder)  # noqa: PTH104 - fails if the folder has files by now
    except CommandError as error:
        raise full(folder) if error.exit is Exit.DISK_FULL else error from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full(folder) from None
        raise CommandError(
            f"cannot write {folder}: {error.strerror or error}", next_step="choose another --home"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    size = maintenance.database_file(folder).stat().st_size
    if as_json:
        write_json({"home": str(folder), "streams": health.streams, "bytes": size})
    else:
        write_field("restored", f"{folder}  {health.streams} streams, {describe_size(size)}")
        write_field("serve it", hint(f"holdfast up --home {shlex.quote(str(folder))}"))
