"""Where the file of an environment is. Consent is for a place, so nothing in a repository may decide it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.cli.run.workspace import Folder
    from holdfast.repositories.address import Address


def place_of(files: Folder | Address) -> str:
    """Returns the folder, or the address of a repository as the user gave it, without credentials."""
    from holdfast.repositories.address import Address, without_user

    if not isinstance(files, Address):
        return place_of_folder(files.path)
    return place_of_folder(Path(files.url)) if files.is_path else without_user(files.url)


def place_of_folder(folder: Path) -> str:
    """Returns the absolute path without links, or a URL of it if it is not UTF-8."""
    path = folder.resolve()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return path.as_uri()
    return str(path)
