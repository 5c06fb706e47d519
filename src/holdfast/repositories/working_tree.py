"""Reads and writes the files of a checkout, never through a link and never outside of it.

Every folder is opened one step at a time from the top, and no link is followed, so nothing that a box brought, or that
another program puts there meanwhile, leads a write elsewhere. A file is replaced whole, by a rename.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.guest.init.tree import MAKE_FILE, HostileArchive, open_folder, walk, write_file
from holdfast.repositories.changes import LINK_MODE

FOLDER: Final = "040000"
"""The mode of what is neither a file nor a link."""
_MOST_BYTES: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a path."""

    mode: str
    content: bytes
    """Of a file, or the target of a link."""


class Blocked(Exception):
    """The path cannot be reached: a part of it is a link, or no folder."""


class WorkingTree:
    """A folder, kept open. Use it in a `with` block."""

    def __init__(self, top: Path, spare: Path, *, modes: bool = True) -> None:
        """`spare` is a folder for files that are not complete yet. `modes`: whether the file system has them."""
        self._top = top
        self._spare = spare
        self._modes = modes
        self._root = -1

    def __enter__(self) -> WorkingTree:
        self._root = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def find(self, path: bytes) -> Found | None:
        """Returns what is at a path. Raises `Blocked`."""
        *above, name = path.split(b"/")
        try:
            with self._folder(tuple(above)) as folder:
                about = os.lstat(name, dir_fd=folder)
                if stat.S_ISLNK(about.st_mode):
                    return Found(LINK_MODE, os.readlink(name, dir_fd=folder))
                if not stat.S_ISREG(about.st_mode):
                    return Found(FOLDER, b"")
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                with os.fdopen(file, "rb") as opened:
                    content = opened.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except (HostileArchive, NotADirectoryError) as error:
            raise Blocked(str(error)) from None
        if len(content) > _MOST_BYTES:
            raise Blocked(f"it is larger than {_MOST_BYTES >> 20} MB")
        executable = self._modes and bool(about.st_mode & 0o100)
        return Found("100755" if executable else "100644", content)

    def files_below(self, path: bytes) -> set[bytes]:
        """Returns the paths of everything in a folder that is no folder itself. Raises `Blocked`."""
        found: set[bytes] = set()
        waiting = [path]
        while waiting:
            here = waiting.pop()
            try:
                with self._folder(tuple(here.split(b"/"))) as folder:
                    for name in map(os.fsencode, os.listdir(folder)):  # noqa: PTH208
                        inner = here + b"/" + name
                        if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                            waiting.append(inner)
                        else:
                            found.add(inner)
            except (HostileArchive, OSError) as error:
                raise Blocked(str(error)) from None
        return found

    def write(self, path: bytes, mode: str, content: bytes) -> None:
        """Put a file or a link in place of what is there, which is no folder. Raises `Blocked`."""
        *above, name = path.split(b"/")
        half = self._half(path)
        try:
            with self._folder(tuple(above), make=True) as folder:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=folder)  # an empty folder
                spare = os.open(self._spare, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    # Beside the file only if the spare folder is on another file system.
                    for place in (spare, folder):
                        _write(place, half, mode, content)
                        try:
                            os.rename(half, name, src_dir_fd=place, dst_dir_fd=folder)
                            break
                        except OSError as error:
                            os.unlink(half, dir_fd=place)
                            if error.errno != errno.EXDEV or place == folder:
                                raise
                finally:
                    os.close(spare)
        except (HostileArchive, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            raise Blocked(str(error)) from None

    def remove(self, path: bytes) -> None:
        """Remove a file or a link, and the folders that become empty, as git does. Raises `Blocked`."""
        *above, name = path.split(b"/")
        try:
            with self._folder(tuple(above)) as folder, contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            while above:
                inner = above.pop()
                with self._folder(tuple(above)) as folder:
                    os.rmdir(inner, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise Blocked(str(error)) from None
        except HostileArchive as error:
            raise Blocked(str(error)) from None

    def _half(self, path: bytes) -> bytes:
        """Returns the name of a file that is not complete yet. The same for each path, so a second try replaces it."""
        return f".holdfast-{hashlib.sha256(path).hexdigest()[:16]}".encode()

    @contextlib.contextmanager
    def _folder(self, parts: tuple[bytes, ...], *, make: bool = False) -> Iterator[int]:
        step = _open_or_make if make else open_folder
        folder = walk(self._root, parts, step)
        try:
            yield folder
        finally:
            os.close(folder)


def _write(folder: int, name: bytes, mode: str, content: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    if mode == LINK_MODE:
        os.symlink(content, name, dir_fd=folder)
        return
    descriptor = os.open(name, MAKE_FILE, 0o777 if mode == "100755" else 0o666, dir_fd=folder)
    try:
        write_file(descriptor, content)
    finally:
        os.close(descriptor)


def _open_or_make(folder: int, parts: Sequence[bytes]) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(parts[-1], dir_fd=folder)
    return open_folder(folder, parts)
