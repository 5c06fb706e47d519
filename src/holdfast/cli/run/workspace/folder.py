"""Packs a local folder as a tar archive, for the workspace of a run.

From a git repository it packs what git tracks or would track, and the history, but no ignored files. Links are packed
as links and never followed. Credentials in git's configuration are left out.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.client.host_git import READ_ONLY, is_configuration, read_environment, without_credentials
from holdfast.guest.init.tree import HostileArchive, Walker, open_folder

MOST_BYTES: Final = 1024 * 1024 * 1024
"""The server's limit."""
_MOST_FILES: Final = 500_000
_MOST_FILES_UNNAMED: Final = 10_000
_MOST_BYTES_UNNAMED: Final = 256 * 1024 * 1024
_GIT_SECONDS: Final = 60.0
_LIST: Final = (*READ_ONLY, "ls-files", "-z", "--cached", "--others", "--exclude-standard")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder to pack."""

    path: Path
    repository: bool
    """Whether the folder is the top of a git repository, whose history is packed too."""
    named: bool = True
    """Whether the user chose it, with `--dir` or `git init`. Otherwise it may be any folder, so its size is limited."""


@dataclass(frozen=True, slots=True)
class Packed:
    files: int
    size: int
    """Bytes of the archive."""
    left_out: tuple[str, ...]
    """Descriptions of what was left out."""


def find_repository(start: Path) -> Path | None:
    """The git repository that contains a folder."""
    for folder in (start, *start.parents):
        if (folder / ".git").exists():
            return folder
    return None


def choose_folder(directory: Path | None, here: Path, user_home: Path) -> Folder | None:
    """Return `--dir`, or the repository that contains the current folder, or that folder.

    Returns None if that is the user's home or above it, which is not a project and full of private files.
    """
    if directory is None:
        found = find_repository(here)
        if found is not None:
            return Folder(found, repository=True)
        return None if user_home.is_relative_to(here) else Folder(here, repository=False, named=False)
    path = directory.expanduser().absolute()
    if not path.is_dir():
        raise CommandError(
            f"{directory} is not a folder", next_step="give --dir an existing folder", exit=Exit.NOT_FOUND
        )
    return Folder(path, repository=(path / ".git").exists())


def pack(folder: Folder, into: IO[bytes]) -> Packed:
    """Write the archive. The same files always result in the same archive."""
    return pack_all({"": folder}, into)


def pack_all(parts: Mapping[str, Folder], into: IO[bytes]) -> Packed:
    """Write an archive of several folders, each below a path of its own, or at the top (`""`). Raises `CommandError` if
    one of them has files where another is to be.
    """
    files = 0
    left_out: list[str] = []
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, folder in parts.items():
            files += _pack_one(archive, path, folder, parts.keys() - {path}, files, left_out, into)
    return Packed(files, into.tell(), tuple(left_out))


def _pack_one(
    archive: tarfile.TarFile,
    path: str,
    folder: Folder,
    others: Collection[str],
    files: int,
    left_out: list[str],
    into: IO[bytes],
) -> int:
    before = files
    with _open_folders(folder.path) as folders:
        for name in sorted(set(_names(folder, left_out))):
            other = None if path else next((each for each in others if _meet(name, each)), None)
            if other is not None and not _is_folder(folder.path, name):  # an empty folder is in nobody's way
                raise CommandError(
                    f"{folder.path} has {name}, where the environment has a repository: {other}",
                    next_step='give the repository another folder: repositories = [{ url = "…", path = "…" }]',
                    exit=Exit.USAGE,
                )
            if _add(archive, folders, folder.path, name, f"{path}/" if path else ""):
                files += 1
            if not folder.named and (files > _MOST_FILES_UNNAMED or into.tell() > _MOST_BYTES_UNNAMED):
                raise CommandError(
                    f"{folder.path} is not a git repository, and large ({files:,} files, {into.tell() >> 20:,} MB)",
                    next_step="take all of it with --dir ., choose a smaller folder with --dir, or start with --empty",
                    exit=Exit.USAGE,
                )
            if files > _MOST_FILES or into.tell() > MOST_BYTES:
                raise CommandError(
                    f"{folder.path} is too large for a workspace ({files:,} files, over {into.tell() >> 20:,} MB)",
                    next_step="choose a smaller folder with --dir, ignore generated files, or start with --empty",
                    exit=Exit.USAGE,
                )
    return files - before


def _meet(name: str, folder: str) -> bool:
    """Returns whether a name is that of a folder, in it, or above it as something else than a folder."""
    name = name.rstrip("/")
    return name == folder or name.startswith(f"{folder}/") or folder.startswith(f"{name}/")


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
            # A nested repository: git lists its folder, but not the files in it.
            yield from (f"{name.rstrip('/')}/{each}" for each in _names(Folder(inner, repository=True), []))
        else:
            # A submodule that was never checked out.
            yield name.rstrip("/")
            yield from _walk(inner, f"{name.rstrip('/')}/")
    if not folder.repository:
        return
    history = folder.path / ".git"
    if history.is_dir() and not history.is_symlink():
        yield from _walk(history, ".git/")
    elif folder.path == top and history.is_file() and _leads_out(folder.path, history):
        left_out.append("the history, which is outside this working tree")
    else:
        yield ".git"


def _leads_out(folder: Path, link: Path) -> bool:
    """Returns whether the `.git` file of a working tree names a history outside the folder."""
    with contextlib.suppress(OSError, ValueError):
        target = link.read_text().removeprefix("gitdir:").strip()
        return not (folder / target).resolve().is_relative_to(folder.resolve())
    return True


def _listed(folder: Path) -> list[str] | None:
    """The files that git tracks or would track, or None if there is no git. Raises `CommandError` if git fails."""
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
        reason = done.stderr.decode("utf-8", "replace").strip().split("\n")[0]
        raise CommandError(
            f"git does not list the files of {folder}: {reason}",
            next_step="make `git status` work there, or start with --empty",
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
    """Returns whether a name is that of a folder, reached without following links."""
    if not (top / name).is_dir():
        return False
    with _open_folders(top) as folders, contextlib.suppress(OSError, HostileArchive):
        folders.to(_parts(name))
        return True
    return False


@contextlib.contextmanager
def _open_folders(top: Path) -> Iterator[Walker]:
    """Open folders step by step without following links: git may list names whose folders have become links."""
    root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folders = Walker(root, open_folder)
    try:
        yield folders
    finally:
        folders.close()
        os.close(root)


def _add(archive: tarfile.TarFile, folders: Walker, top: Path, name: str, prefix: str = "") -> bool:
    """Add one file, link or empty folder. Returns whether it is a file or link that was added.

    Files that vanished meanwhile, files behind links, sockets and devices are left out.
    """
    *above, last = _parts(name)
    try:
        folder = folders.to(tuple(above))
        found = os.lstat(last, dir_fd=folder)
    except (OSError, HostileArchive):
        return False
    info = tarfile.TarInfo(prefix + name)
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
            f"cannot read {top / name}",
            next_step="make it readable, ignore it, or start with --empty",
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
        # The size in the archive's header must match, even if the file changes meanwhile.
        archive.addfile(info, _FixedSize(file, info.size))  # type: ignore[arg-type]
    return True


def _target(folder: int, name: bytes) -> str:
    return os.fsdecode(os.readlink(name, dir_fd=folder))


class _FixedSize:
    """A fixed number of bytes of a file, padded with zeros if the file has become shorter."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int) -> bytes:
        wanted = min(size, self._left)
        self._left -= wanted
        return self._file.read(wanted).ljust(wanted, b"\0")
