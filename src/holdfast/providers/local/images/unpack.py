"""One layer of an image out of a tar stream into a folder, in the form in which an overlay takes it.

Every place is walked one component at a time from the folder, never through a link, so nothing that the archive puts
there can lead a later entry outside; layers below are not there at all. What marks a deletion in an archive (`.wh.`)
becomes what marks one in an overlay that an ordinary user may mount.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.boxes.errors import BadArchive, HostileArchive, NoSpace
from holdfast.providers.local.ground import Ground
from holdfast.providers.local.images.limits import ArchiveLimits
from holdfast.providers.local.images.tar import Entry, Kind, TarReader, components, shown

OPAQUE: Final = "user.overlay.opaque"
_WHITEOUT: Final = b".wh."
_OPAQUE_MARK: Final = b".wh..wh..opq"
_OWN_DEVICES: Final = (b"dev", b"run")
"""A box has these of its own, whatever its image holds there."""
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOM_EVERY: Final = 64 << 20


def unpack_layer(
    reader: TarReader, entries: Iterable[Entry], folder: Path, ground: Ground, limits: ArchiveLimits
) -> None:
    """What a reader gives, into a new folder. Raises `HostileArchive`, `BadArchive`, `NoSpace`.

    What is there then is the caller's to remove.

    Everything becomes the box user's own, who can always read and write it: there is one user in a box. Setuid and
    setgid bits are dropped. Devices and pipes are left out below /dev and /run, and refused elsewhere.
    """
    ground.make_folder(folder)
    root = os.open(folder, _OPEN_FOLDER)
    unpacking = _Unpacking(root, reader, ground, limits)
    try:
        for entry in entries:
            unpacking.put(entry)
        unpacking.finish()
    finally:
        unpacking.close()
        os.close(root)


@dataclass(slots=True)
class _Folder:
    mode: int = 0o755
    modified: int | None = None
    attributes: dict[bytes, bytes] = field(default_factory=dict)


class _Unpacking:
    def __init__(self, root: int, reader: TarReader, ground: Ground, limits: ArchiveLimits) -> None:
        self._root = root
        self._reader = reader
        self._limits = limits
        self._owner = (ground.uid, ground.gid) if os.geteuid() == 0 else None
        self._parent: int | None = None
        self._parent_parts: tuple[bytes, ...] = ()
        self._folders: dict[tuple[bytes, ...], _Folder] = {}
        """With what they get in the end: until then they must be writable."""
        self._written = _ROOM_EVERY

    def close(self) -> None:
        if self._parent is not None:
            os.close(self._parent)
            self._parent = None

    def put(self, entry: Entry) -> None:
        try:
            self._put(entry)
        except OSError as error:
            if error.errno in (28, 122):  # ENOSPC, EDQUOT
                raise NoSpace(f"no room is left for {entry.shown}") from None
            raise BadArchive(f"{entry.shown}: {(error.strerror or str(error)).lower()}") from None

    def _put(self, entry: Entry) -> None:
        if entry.kind in (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE, Kind.PIPE):
            if entry.parts[0] in _OWN_DEVICES:
                return
            raise HostileArchive(f"{entry.shown}: a device or a pipe has no place in an image")
        if entry.kind is Kind.FOLDER and not entry.parts:
            self._folders[()] = _Folder(entry.mode, entry.modified, entry.attributes)
            return
        name = entry.parts[-1]
        if any(part.startswith(_WHITEOUT) for part in entry.parts[:-1]):
            raise HostileArchive(f"{entry.shown}: a way through a mark of deletion")
        parent = self._folder_for(entry.parts[:-1])
        if name.startswith(_WHITEOUT):
            self._mark(parent, entry, name)
        elif entry.kind is Kind.FOLDER:
            self._folder_for(entry.parts)
            self._folders[entry.parts] = _Folder(entry.mode, entry.modified, entry.attributes)
        elif entry.kind is Kind.FILE:
            self._file(parent, name, entry)
        elif entry.kind is Kind.LINK:
            self._clear(parent, name)
            os.symlink(entry.target, name, dir_fd=parent)
            self._give(parent, name)
            os.utime(name, (entry.modified, entry.modified), dir_fd=parent, follow_symlinks=False)
        else:
            self._hard_link(parent, name, entry)

    # --- marks of deletion ---

    def _mark(self, parent: int, entry: Entry, name: bytes) -> None:
        if entry.kind is not Kind.FILE or entry.size:
            raise HostileArchive(f"{entry.shown}: a mark of deletion that is no empty file")
        if name == _OPAQUE_MARK:
            os.setxattr(parent, OPAQUE, b"y")
            return
        gone = name[len(_WHITEOUT) :]
        if gone in (b"", b".", b"..") or gone.startswith(_WHITEOUT):
            raise HostileArchive(f"{entry.shown}: a mark of deletion of no name")
        there = _kind_of(parent, gone)
        # It is about layers below: what this layer puts there stays.
        if there is None:
            os.mknod(gone, stat.S_IFCHR | 0o600, 0, dir_fd=parent)
            self._give(parent, gone)
        elif stat.S_ISDIR(there):
            folder = _open_folder(parent, gone)
            try:
                os.setxattr(folder, OPAQUE, b"y")
            finally:
                os.close(folder)

    # --- things ---

    def _folder_for(self, parts: tuple[bytes, ...]) -> int:
        """The folder at this place, open, made where it is missing. Valid until the next call."""
        if self._parent is not None and self._parent_parts == parts:
            return self._parent
        self.close()
        at = os.open(".", _OPEN_FOLDER, dir_fd=self._root)
        try:
            for number, part in enumerate(parts, 1):
                try:
                    below = _open_folder(at, part)
                except FileNotFoundError:
                    below = self._make_folder(at, parts[:number], opaque=False)
                except NotADirectoryError:
                    below = self._replace_by_folder(at, parts[:number])
                at, above = below, at
                os.close(above)
        except BaseException:
            os.close(at)
            raise
        self._parent, self._parent_parts = at, parts
        return at

    def _make_folder(self, parent: int, parts: tuple[bytes, ...], *, opaque: bool) -> int:
        os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._give(parent, parts[-1])
        self._folders.setdefault(parts, _Folder())
        folder = _open_folder(parent, parts[-1])
        if opaque:
            os.setxattr(folder, OPAQUE, b"y")
        return folder

    def _replace_by_folder(self, parent: int, parts: tuple[bytes, ...]) -> int:
        """A folder where this layer had marked a deletion hides what is below; one where it had a file is a lie."""
        about = os.lstat(parts[-1], dir_fd=parent)
        if not (stat.S_ISCHR(about.st_mode) and about.st_rdev == 0):
            raise HostileArchive(f"{shown(b'/'.join(parts))}: a folder where there is a file")
        os.unlink(parts[-1], dir_fd=parent)
        return self._make_folder(parent, parts, opaque=True)

    def _file(self, parent: int, name: bytes, entry: Entry) -> None:
        self._clear(parent, name)
        file = os.open(name, _MAKE_FILE, 0o600, dir_fd=parent)
        try:
            while piece := self._reader.content():
                self._make_sure_of_room(file, len(piece))
                view = memoryview(piece)
                while view:
                    view = view[os.write(file, view) :]
            if self._owner is not None:
                os.fchown(file, *self._owner)
            os.fchmod(file, (entry.mode & 0o777) | 0o600)
            _set_attributes(file, entry.attributes)
            os.utime(file, (entry.modified, entry.modified))
        finally:
            os.close(file)

    def _make_sure_of_room(self, file: int, count: int) -> None:
        self._written += count
        if self._written >= _ROOM_EVERY:
            self._written = 0
            about = os.fstatvfs(file)
            if about.f_bavail * about.f_frsize < self._limits.spare + _ROOM_EVERY:
                raise NoSpace("the disk is nearly full: the image is not imported", hint="holdfast image list, remove")

    def _hard_link(self, parent: int, name: bytes, entry: Entry) -> None:
        there = components(entry.target, self._limits)
        if not there or there == entry.parts:
            raise HostileArchive(f"{entry.shown}: a hard link to itself")
        if any(part.startswith(_WHITEOUT) for part in there):
            raise HostileArchive(f"{entry.shown}: a hard link to a mark of deletion")
        try:
            source = _walk(self._root, there[:-1])
        except (FileNotFoundError, NotADirectoryError):
            raise HostileArchive(f"{entry.shown}: a hard link to what is not in the layer") from None
        try:
            kind = _kind_of(source, there[-1])
            if kind is None:
                raise HostileArchive(f"{entry.shown}: a hard link to what is not in the layer")
            if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
                raise HostileArchive(f"{entry.shown}: a hard link to what is no file")
            self._clear(parent, name)
            os.link(there[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _clear(self, parent: int, name: bytes) -> None:
        """Make room: what is there loses this name and keeps its content, whoever else may have it."""
        there = _kind_of(parent, name)
        if there is None:
            return
        if stat.S_ISDIR(there):
            raise HostileArchive(f"{shown(name)}: a file where there is a folder")
        os.unlink(name, dir_fd=parent)

    def _give(self, parent: int, name: bytes) -> None:
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)

    def finish(self) -> None:
        """Give folders their modes and times, the deepest first."""
        self.close()
        for parts in sorted(self._folders, key=len, reverse=True):
            wanted = self._folders[parts]
            folder = _walk(self._root, parts)
            try:
                _set_attributes(folder, wanted.attributes)
                os.fchmod(folder, (wanted.mode & 0o1777) | 0o700)
                if wanted.modified is not None:
                    os.utime(folder, (wanted.modified, wanted.modified))
            finally:
                os.close(folder)


def _set_attributes(descriptor: int, attributes: dict[bytes, bytes]) -> None:
    for name, value in attributes.items():
        # Not every file system keeps them, and an image is of use without.
        with contextlib.suppress(OSError):
            os.setxattr(descriptor, name, value)


def _walk(root: int, parts: tuple[bytes, ...]) -> int:
    """Open the folder at this place below another, through folders alone."""
    at = os.open(".", _OPEN_FOLDER, dir_fd=root)
    try:
        for part in parts:
            at, above = _open_folder(at, part), at
            os.close(above)
    except BaseException:
        os.close(at)
        raise
    return at


def _open_folder(folder: int, name: bytes) -> int:
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=folder)
    except OSError as error:
        kind = _kind_of(folder, name)
        if kind is not None and stat.S_ISLNK(kind):
            raise HostileArchive(f"{shown(name)}: a way through a link") from None
        raise error


def _kind_of(folder: int, name: bytes) -> int | None:
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return None
