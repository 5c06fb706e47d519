"""Copies a tree of files that a box may be changing. Uses only descriptors and follows no link.

Runs in a child of the launcher, with the standard library only, as the user that boxes run as. The walk opens each
folder from the descriptor of its parent and never goes back up, so a box cannot lead it elsewhere. All files are then
checked again: the copy is valid only if no file changed after it was copied. Otherwise the copy could show a state that
never existed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from _blake2 import blake2b  # hashlib would import much more
from collections.abc import Iterator
from typing import Any

DEEPEST = 4000
"""Levels of nested folders. Each is open while its contents are copied."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CLONE = 0x4004_9409
"""FICLONE: the two files share their blocks until one is written."""
_PIECE = 1 << 24
_LONGEST_PATH = 4000


class Changed(Exception):
    """The source changed during the copy."""


class TooDeep(Exception):
    """Folders are nested more deeply than the limit of open folders."""


def copy(source: int, target: int) -> int:
    """Fill a new folder with the contents of another. Both are descriptors. Returns the number of names.

    Keeps holes, links, hard links, times, modes and attributes, including an overlay's marks for deleted files. Raises
    `Changed`, `TooDeep`, or `OSError` if a file cannot be read.
    """
    copying = _Copying(target)
    try:
        copying.folder(source)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE):
            raise Changed from None  # deleted or replaced since it was listed
        raise
    if _survey(source) != copying.seen.digest():
        raise Changed
    return copying.count


class _Copying:
    def __init__(self, target: int) -> None:
        self.count = 0
        self.seen = blake2b()
        """A hash over everything copied, as it was just before."""
        self._target = target
        self._linked: dict[tuple[int, int], bytes] = {}
        """The first path in the target of each file with several names."""

    def folder(self, source: int) -> None:
        made = os.dup(self._target)
        for step in _walk(source):
            self.seen.update(step.mark)
            if step.leaves:
                self._finish(step.folder, made, step.about)
                os.close(made)
                made = step.above
            elif step.name is not None:
                self.count += 1
                if stat.S_ISDIR(step.about.st_mode):
                    os.mkdir(step.name, 0o700, dir_fd=made)
                    step.above = made
                    made = os.open(step.name, _FOLDER, dir_fd=made)
                else:
                    self._entry(step, made)

    def _entry(self, step: _Step, made: int) -> None:
        name, about = step.name, step.about
        assert name is not None
        identity = (about.st_dev, about.st_ino)
        if about.st_nlink > 1 and self._link(identity, name, made):
            return
        if stat.S_ISREG(about.st_mode):
            self._file(step, made)
        elif stat.S_ISLNK(about.st_mode):
            os.symlink(_target_of(name, step.folder), name, dir_fd=made)
        else:  # a pipe, a socket, or an overlay's mark for a deleted file
            os.mknod(name, about.st_mode, about.st_rdev, dir_fd=made)
            os.chmod(name, stat.S_IMODE(about.st_mode), dir_fd=made)
        os.utime(name, ns=(about.st_atime_ns, about.st_mtime_ns), dir_fd=made, follow_symlinks=False)
        if about.st_nlink > 1 and len(step.path) < _LONGEST_PATH:
            self._linked[identity] = step.path

    def _link(self, identity: tuple[int, int], name: bytes, made: int) -> bool:
        first = self._linked.get(identity)
        if first is None:
            return False
        try:
            # A path, but only of folders that this process created, where no box can change them.
            os.link(first, name, src_dir_fd=self._target, dst_dir_fd=made, follow_symlinks=False)
        except PermissionError:  # through a folder that no longer has permissions
            return False
        return True

    def _file(self, step: _Step, made: int) -> None:
        assert step.name is not None
        source = os.open(step.name, _READ, dir_fd=step.folder)
        try:
            if _mark(step.name, os.fstat(source)) != step.mark:
                raise Changed
            target = os.open(step.name, _MAKE, 0o600, dir_fd=made)
            try:
                _copy_content(source, target, step.about.st_size)
                _copy_attributes(source, target)
                os.fchmod(target, stat.S_IMODE(step.about.st_mode))
            finally:
                os.close(target)
        finally:
            os.close(source)

    @staticmethod
    def _finish(source: int, target: int, about: os.stat_result) -> None:
        _copy_attributes(source, target)
        os.fchmod(target, stat.S_IMODE(about.st_mode))
        os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))


def _copy_content(source: int, target: int, size: int) -> None:
    try:
        fcntl.ioctl(target, _CLONE, source)
        return
    except OSError:
        pass  # not supported by this file system
    at = 0
    while at < size:
        try:
            begin = os.lseek(source, at, os.SEEK_DATA)
            end = min(os.lseek(source, begin, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # only a hole follows
        os.lseek(source, begin, os.SEEK_SET)
        os.lseek(target, begin, os.SEEK_SET)
        at = begin
        while at < end:
            done = os.sendfile(target, source, None, min(end - at, _PIECE))
            if done == 0:
                raise Changed  # shorter than before
            at += done
    os.ftruncate(target, size)


def _copy_attributes(source: int, target: int) -> None:
    for name in os.listxattr(source):
        value = os.getxattr(source, name)
        try:
            os.setxattr(target, name, value)
        except OSError:
            if name.startswith("user."):  # a box cannot set others
                raise


# --- the walk ---------------------------------------------------------------------------------------------------------


class _Step:
    """One name in an open folder, or the end of a folder if there is no name."""

    __slots__ = ("about", "above", "folder", "leaves", "mark", "name", "path")

    def __init__(self, folder: int, name: bytes | None, path: bytes, about: os.stat_result, *, leaves: bool) -> None:
        self.folder = folder
        self.name = name
        self.path = path
        self.about = about
        self.leaves = leaves
        self.mark = _mark(name or b"/", about)
        self.above = -1
        """For the caller: the folder to return to at the end of this one."""


def _walk(root: int) -> Iterator[_Step]:
    """Yields each name once, and each folder again at its end. Closes descriptors as the walk proceeds."""
    stack: list[tuple[int, Any, bytes, _Step]] = []
    folder = os.dup(root)
    try:
        about = os.fstat(folder)
        names, path, entered = iter(_names(folder)), b"", _Step(folder, None, b"", about, leaves=True)
        while True:
            name = next(names, None)
            if name is None:
                entered.folder = folder
                yield entered
                os.close(folder)
                folder = -1
                if not stack:
                    return
                folder, names, path, entered = stack.pop()
                continue
            inner = path + b"/" + name if path else name
            step = _Step(folder, name, inner, os.lstat(name, dir_fd=folder), leaves=False)
            yield step
            if stat.S_ISDIR(step.about.st_mode):
                if len(stack) >= DEEPEST:
                    raise TooDeep
                below = os.open(name, _FOLDER, dir_fd=folder)
                stack.append((folder, names, path, entered))
                folder = below
                about = os.fstat(folder)
                if _mark(name, about) != step.mark:
                    raise Changed
                entered = _Step(folder, None, inner, about, leaves=True)
                entered.above = step.above
                names, path = iter(_names(folder)), inner
    finally:
        for each in (folder, *(held for held, _, _, _ in stack)):
            if each >= 0:
                os.close(each)


def _target_of(name: bytes, folder: int) -> bytes:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Changed from None  # no longer a link
        raise


def _names(folder: int) -> list[bytes]:
    return sorted(map(os.fsencode, os.listdir(folder)))


def _mark(name: bytes, about: os.stat_result) -> bytes:
    """Returns bytes that change whenever a file does: only the kernel sets its change time."""
    fields = (about.st_dev, about.st_ino, about.st_mode, about.st_nlink, about.st_size, about.st_ctime_ns)
    return b"%d:%s:%d:%d:%d:%d:%d:%d;" % (len(name), name, *fields)


def _survey(root: int) -> bytes:
    seen = blake2b()
    try:
        for step in _walk(root):
            seen.update(step.mark)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
            raise Changed from None
        raise
    return seen.digest()
