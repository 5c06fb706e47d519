"""`holdfast backup`: copies the durable data of a home, while its server runs."""

from __future__ import annotations

import errno
import hashlib
import os
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

NODE: Final = "node"
"""The file with the home's name, to which the boxes in the database belong."""
TENANTS: Final = "tenants"
"""The folder with the homes of tenants. `server.tenants`, which takes longer to load, has the same."""
_WORKSPACES: Final = "workspaces"
_PIECE: Final = 1024 * 1024


def backup(
    target: Annotated[Path, Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy all threads, keys, settings and workspaces to a folder, as of one moment. The server may keep running.

    The copy is checked. `holdfast restore DIR` makes a home of it. It contains neither the files of boxes nor
    checkpoints.
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
            if (folder / NODE).is_file():
                shutil.copy2(folder / NODE, partial / NODE)
            with explaining(folder):
                maintenance.backup(folder, partial)
                # After the database: a workspace is stored before a thread refers to it.
                copy_workspaces(folder, partial)
                health = maintenance.check(partial)
                health.damage += copy_tenants(folder, partial)
            if target.exists():
                target.rmdir()
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except CommandError as error:
        if error.exit is Exit.DISK_FULL:
            raise full(target) from None
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full(target) from None
        raise CommandError(
            f"cannot write {target}: {error.strerror or error}", next_step="choose a folder that you may write to"
        ) from None
    size = maintenance.database_file(target).stat().st_size
    if as_json:
        damage = [{"what": each.what, "detail": each.detail} for each in health.damage]
        write_json({"backup": str(target), "bytes": size, "streams": health.streams, "damage": damage})
    else:
        write_field("backup", f"{target}  {health.streams} streams, {describe_size(size)}")
        write_field("not in it", "the files of boxes, and checkpoints")
        write_field("use it", hint(f"holdfast restore {shlex.quote(str(target))} --home NEW-FOLDER"))
    if health.damage:
        raise CommandError(
            f"the copy is as damaged as the original, in {len(health.damage)} places", next_step="holdfast check"
        )


def copy_workspaces(source: Path, target: Path) -> None:
    """Copy the archives that workspaces start with. Each is named by the digest of its content, which is checked."""
    found = sorted((source / _WORKSPACES).glob("[0-9a-f]*")) if (source / _WORKSPACES).is_dir() else []
    if found:
        (target / _WORKSPACES).mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in found:
        copy = target / _WORKSPACES / path.name
        digest = hashlib.sha256()
        with path.open("rb") as reading, copy.open("xb") as writing:
            while piece := reading.read(_PIECE):
                digest.update(piece)
                writing.write(piece)
            writing.flush()
            os.fsync(writing.fileno())
        if digest.hexdigest() != path.name:
            raise CommandError(
                f"the workspace {path} is damaged: its content is not what its name says",
                next_step="remove the file: only the diffs of threads that began with it are lost",
            )


def copy_tenants(source: Path, target: Path) -> list[maintenance.Damage]:
    """Copy the homes of all tenants, as that of the server is copied. Returns what is damaged."""
    damage: list[maintenance.Damage] = []
    for folder in sorted((source / TENANTS).glob("[a-z]*")):
        if not maintenance.is_there(folder):
            continue
        copy = target / TENANTS / folder.name
        copy.mkdir(mode=0o700, parents=True)
        if (folder / NODE).is_file():
            shutil.copy2(folder / NODE, copy / NODE)
        maintenance.backup(folder, copy)
        copy_workspaces(folder, copy)
        for each in maintenance.check(copy).damage:
            damage.append(maintenance.Damage(f"{TENANTS}/{folder.name}: {each.what}", each.detail))
    return damage


def full(target: Path) -> CommandError:
    return CommandError(
        f"cannot write {target}: the disk is full",
        next_step="free some space, or choose a folder on another disk",
        exit=Exit.DISK_FULL,
    )
