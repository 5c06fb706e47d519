"""Where the file of an environment is, and how its user allows it there.

Consent is for a place, so nothing in a repository may decide it.
"""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.errors import CommandError

if TYPE_CHECKING:
    from holdfast.cli.run.workspace.folder import Folder
    from holdfast.repositories.address import Address


def place_of(files: Folder | Address) -> str:
    """Returns the folder, or the address of a repository as the user gave it, without credentials."""
    from holdfast.repositories.address import Address, without_user

    if not isinstance(files, Address):
        return place_of_folder(files.path)
    return place_of_folder(Path(files.url)) if files.is_path else f"{_who()}:{without_user(files.url)}"


def place_of_folder(folder: Path) -> str:
    """Returns the absolute path without links, or a URL of it if it is not UTF-8. The user and the machine come first:
    the same path on another machine is another folder, and users of one server decide each for themselves.
    """
    path = folder.resolve()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return f"{_who()}:{path.as_uri()}"
    return f"{_who()}:{path}"


def _who() -> str:
    user = os.getuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    return f"{name}@{os.uname().nodename}"


def allow_command(files: Folder | Address | Path, here: Path) -> str:
    """Returns the command that allows the file at a place, as its user would type it in the folder `here`."""
    from holdfast.repositories.address import Address, without_user

    if isinstance(files, Address) and not files.is_path:
        option = f" --repo {shlex.quote(without_user(files.url) + ('' if files.ref is None else f'@{files.ref}'))}"
    elif isinstance(files, Address):
        option = f" --repo {shlex.quote(files.url + ('' if files.ref is None else f'@{files.ref}'))}"
    else:
        folder = files if isinstance(files, Path) else files.path
        option = "" if folder.resolve() == here.resolve() else f" --dir {shlex.quote(str(folder))}"
    return f"holdfast env allow{option} --yes"


@contextmanager
def explaining_consent(command: str | None) -> Iterator[None]:
    """Names the command that allows the file, if the server refuses it for lack of consent."""
    try:
        yield
    except CommandError as error:
        if command is not None and error.code == "environment_not_allowed":
            error.next_step = f"look at it, then allow it: {command}"
        raise
