"""What a run's workspace begins with: the files of a folder here, packed as a tar archive.

Of a git repository: what git tracks or would track, and its history; what is ignored stays here. Links are packed as
links and never followed. Credentials that git keeps in its configuration stay here too.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.client.git_credentials import is_configuration, without_credentials
from holdfast.client.host_git import READ_ONLY, read_environment
from holdfast.guest.tree import HostileArchive, Walker, open_folder

MOST_BYTES: Final = 1024 * 1024 * 1024
"""What a server takes."""
_MOST_FILES: Final = 500_000
_MOST_FILES_UNNAMED: Final = 10_000
_MOST_BYTES_UNNAMED: Final = 256 * 1024 * 1024
_GIT_SECONDS: Final = 60.0
_LIST: Final = (*READ_ONLY, "ls-files", "-z", "--cached", "--others", "--exclude-standard")


@dataclass(frozen=True, slots=True)
class Folder:
    """What to pack: a folder, and whether git says what belongs to it."""

    path: Path
    repository: bool
    """The folder is the top of a git repository, whose history goes with it."""
    named: bool = True
    """Somebody said that it is this one, by name or by `git init`. Else it is bounded: it may be any folder."""


@dataclass(frozen=True, slots=True)
class Packed:
    files: int
    size: int
    """Bytes of the archive."""
    left_out: tuple[str, ...]
    """What stays here although it was asked for, in words."""


def find_repository(start: Path) -> Path | None:
    """The git repository around a folder."""
    for folder in (start, *start.parents):
        if (folder / ".git").exists():
            return folder
    return None


def choose_folder(directory: Path | None, here: Path, user_home: Path) -> Folder | None:
    """`--dir`, or the repository around the current folder, or that folder.

    None where that is the user's home or above it: not a project, and full of what is nobody's business.
    """
    if directory is None:
        found = find_repository(here)
        if found is not None:
            return Folder(found, repository=True)
        return None if user_home.is_relative_to(here) else Folder(here, repository=False, named=False)
    path = directory.expanduser().absolute()
    if not path.is_dir():
        raise CommandError(
            f"{directory} is not a folder", next_step="give --dir a folder that is there", exit=Exit.NOT_FOUND
        )
    return Folder(path, repository=(path / ".git").exists())


def pack(folder: Folder, into: IO[bytes], *, moved: Callable[[int], None] = lambda _: None) -> Packed:
    """Write the archive. The same files make the same archive."""
    files = size = 0
    left_out: list[str] = []
    with (
        tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as archive,
        _open_folders(folder.path) as folders,
    ):
        for name in sorted(set(_names(folder, left_out))):
            if _add(archive, folders, folder.path, name):
                files += 1
            if not folder.named and (files > _MOST_FILES_UNNAMED or into.tell() > _MOST_BYTES_UNNAMED):
                raise CommandError(
                    f"{folder.path} is no git repository, and large ({files:,} files, {into.tell() >> 20:,} MB so far)",
                    next_step="--dir . takes all of it; else give --dir a smaller folder, or begin with --empty",
                    exit=Exit.USAGE,
                )
            if files > _MOST_FILES or into.tell() > MOST_BYTES:
                raise CommandError(
                    f"{folder.path} is too large for a workspace ({files:,} files, over {into.tell() >> 20:,} MB)",
                    next_step="give --dir a smaller folder, ignore what can be made again, or begin with --empty",
                    exit=Exit.USAGE,
                )
            moved(into.tell())
    size = into.tell()
    return Packed(files, size, tuple(left_out))


def _names(folder: Folder, left_out: list[str]) -> Iterator[str]:
    """Paths relative to the folder: files, links, and folders that would be empty."""
    top = find_repository(folder.path)
    listed = None if top is None else _listed(folder.path)
    if listed is None:
        yield from _walk(folder.path, "")
        return
    for name in listed:
        inner = folder.path / name
        if not _is_folder(folder.path, name):
            yield name
        elif os.path.lexists(inner / ".git"):
            # A repository within: git names it and does not look inside.
            yield from (f"{name.rstrip('/')}/{each}" for each in _names(Folder(inner, repository=True), []))
        else:
            # A submodule that was never fetched.
            yield name.rstrip("/")
            yield from _walk(inner, f"{name.rstrip('/')}/")
    if not folder.repository:
        return
    history = folder.path / ".git"
    if history.is_dir() and not history.is_symlink():
        yield from _walk(history, ".git/")
    elif folder.path == top and history.is_file() and _leads_out(folder.path, history):
        left_out.append("the history, which this working tree has elsewhere")
    else:
        yield ".git"


def _leads_out(folder: Path, link: Path) -> bool:
    """A working tree's `.git` is a file that names the place of its history."""
    with contextlib.suppress(OSError, ValueError):
        target = link.read_text().removeprefix("gitdir:").strip()
        return not (folder / target).resolve().is_relative_to(folder.resolve())
    return True


def _listed(folder: Path) -> list[str] | None:
    """What git tracks, or would; None where there is no git, or it does not want to say."""
    try:
        done = subprocess.run(
            _LIST,
            cwd=folder,
            env=read_environment(os.environ),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise CommandError(f"git did not list the files of {folder} within {_GIT_SECONDS:g} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0]
        raise CommandError(
            f"git does not list the files of {folder}: {said}",
            next_step="make `git status` work there, or begin with --empty",
        )
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder, followlinks=False):
        below = os.path.relpath(place, folder)
        base = prefix if below == "." else f"{prefix}{below}/"
        linked = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in (*names, *linked):
            yield base + name
        if not names and not folders and below != ".":
            yield base.rstrip("/")


def _parts(name: str) -> tuple[bytes, ...]:
    return tuple(part for part in os.fsencode(name).split(b"/") if part)


def _is_folder(top: Path, name: str) -> bool:
    """Whether a name is that of a folder, through folders alone."""
    if not (top / name).is_dir():
        return False
    with _open_folders(top) as folders, contextlib.suppress(OSError, HostileArchive):
        folders.to(_parts(name))
        return True
    return False


@contextlib.contextmanager
def _open_folders(top: Path) -> Iterator[Walker]:
    """Opens folders step by step, through no link: git tracks names whose folders became links, which lead anywhere."""
    root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folders = Walker(root, open_folder)
    try:
        yield folders
    finally:
        folders.close()
        os.close(root)


def _add(archive: tarfile.TarFile, folders: Walker, top: Path, name: str) -> bool:
    """Add one file, link or empty folder. What vanished meanwhile, what is behind a link, sockets and devices are left
    out."""
    *above, last = _parts(name)
    try:
        folder = folders.to(tuple(above))
        found = os.lstat(last, dir_fd=folder)
    except (OSError, HostileArchive):
        return False
    info = tarfile.TarInfo(name)
    info.mtime, info.mode = int(found.st_mtime), stat.S_IMODE(found.st_mode) & 0o755 | 0o600
    if stat.S_ISLNK(found.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, _target(folder, last), 0o777
        archive.addfile(info)
        return True
    if stat.S_ISDIR(found.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(info)
        return False
    if not stat.S_ISREG(found.st_mode) or (name.startswith(".git/") and name.endswith(".lock")):
        return False
    try:
        descriptor = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        raise CommandError(
            f"{top / name} cannot be read",
            next_step="make it readable, ignore it, or begin with --empty",
            exit=Exit.FAILURE,
        ) from None
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        opened = os.fstat(file.fileno())
        if not stat.S_ISREG(opened.st_mode):
            return False
        if is_configuration(name):
            content = without_credentials(file.read())
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            return True
        info.size = opened.st_size
        # A file that is written to meanwhile has as many bytes here as its head says.
        archive.addfile(info, _Exactly(file, info.size))  # type: ignore[arg-type]
    return True


def _target(folder: int, name: bytes) -> str:
    return os.fsdecode(os.readlink(name, dir_fd=folder))


class _Exactly:
    """So many bytes of a file, and zeros where it became shorter."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int) -> bytes:
        wanted = min(size, self._left)
        self._left -= wanted
        return self._file.read(wanted).ljust(wanted, b"\0")
