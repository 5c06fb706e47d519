"""Unpacks one layer of an image from a tar stream into a folder, in the form that an overlay expects.

Every path is walked one component at a time from the folder, never through a link, so no entry can redirect a later one
outside. Lower layers are not present. An archive's marks for deletions (`.wh.`) become the marks of an overlay that an
ordinary user may mount.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.api.errors.boxes import BadArchive, HostileArchive, NoSpace
from holdfast.guest.init import tar
from holdfast.guest.init.tree import MAKE_FILE, OPEN_FOLDER, Walker, open_folder, walk, write_file
from holdfast.providers.host.disk.data_dir import DataDir
from holdfast.providers.local.images.limits import ArchiveLimits

OPAQUE: Final = "user.overlay.opaque"
_WHITEOUT: Final = b".wh."
_OPAQUE_MARK: Final = b".wh..wh..opq"
_OWN_DEVICES: Final = (b"dev", b"run")
"""A box has its own, whatever its image contains there."""
_ATTRIBUTE: Final = b"SCHILY.xattr."
_ROOM_EVERY: Final = 64 << 20


def unpack_layer(
    reader: tar.Reader, entries: Iterable[tar.Entry], folder: Path, data_dir: DataDir, limits: ArchiveLimits
) -> None:
    """Unpack a tar stream into a new folder. Raises `HostileArchive`, `BadArchive`, `NoSpace`, and errors of reading.

    After a failure the caller removes the folder.

    The box user owns everything and can always read and write it, because a box has one user. Setuid and setgid bits
    are dropped. Devices and pipes are left out below /dev and /run, and refused elsewhere.
    """
    data_dir.make_folder(folder)
    root = os.open(folder, OPEN_FOLDER)
    unpacking = _Unpacking(root, reader, data_dir, limits)
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
    def __init__(self, root: int, reader: tar.Reader, data_dir: DataDir, limits: ArchiveLimits) -> None:
        self._root = root
        self._reader = reader
        self._limits = limits
        self._owner = (data_dir.uid, data_dir.gid) if os.geteuid() == 0 else None
        self._walker = Walker(root, self._open_or_make)
        self._folders: dict[tuple[bytes, ...], _Folder] = {}
        """With their final modes and times: until the end they must be writable."""
        self._written = _ROOM_EVERY

    def close(self) -> None:
        self._walker.close()

    def put(self, entry: tar.Entry) -> None:
        try:
            self._put(entry)
        except OSError as error:
            if error.errno in (28, 122):  # ENOSPC, EDQUOT
                raise NoSpace(f"no room is left for {entry.shown}") from None
            raise BadArchive(f"{entry.shown}: {(error.strerror or str(error)).lower()}") from None

    def _put(self, entry: tar.Entry) -> None:
        if entry.kind in tar.DEVICES:
            if entry.parts[0] in _OWN_DEVICES:
                return
            raise HostileArchive(f"{entry.shown}: a device or a pipe has no place in an image")
        if entry.kind == tar.FOLDER and not entry.parts:
            self._folders[()] = _Folder(entry.mode, entry.modified, self._attributes(entry))
            return
        name = entry.parts[-1]
        if any(part.startswith(_WHITEOUT) for part in entry.parts[:-1]):
            raise HostileArchive(f"{entry.shown}: a path through a deleted folder")
        parent = self._walker.to(entry.parts[:-1])
        if name.startswith(_WHITEOUT):
            self._mark(parent, entry, name)
        elif entry.kind == tar.FOLDER:
            self._walker.to(entry.parts)
            self._folders[entry.parts] = _Folder(entry.mode, entry.modified, self._attributes(entry))
        elif entry.kind == tar.FILE:
            self._file(parent, name, entry)
        elif entry.kind == tar.LINK:
            self._clear(parent, name)
            os.symlink(entry.target, name, dir_fd=parent)
            self._give(parent, name)
            os.utime(name, (entry.modified, entry.modified), dir_fd=parent, follow_symlinks=False)
        else:
            self._hard_link(parent, name, entry)

    # --- marks of deletion ---

    def _mark(self, parent: int, entry: tar.Entry, name: bytes) -> None:
        if entry.kind != tar.FILE or entry.size:
            raise HostileArchive(f"{entry.shown}: a deletion mark that is not an empty file")
        if name == _OPAQUE_MARK:
            os.setxattr(parent, OPAQUE, b"y")
            return
        gone = name[len(_WHITEOUT) :]
        if gone in (b"", b".", b"..") or gone.startswith(_WHITEOUT):
            raise HostileArchive(f"{entry.shown}: a mark of deletion of no name")
        there = _kind_of(parent, gone)
        # It concerns lower layers: what this layer puts there stays.
        if there is None:
            os.mknod(gone, stat.S_IFCHR | 0o600, 0, dir_fd=parent)
            self._give(parent, gone)
        elif stat.S_ISDIR(there):
            folder = open_folder(parent, (gone,))
            try:
                os.setxattr(folder, OPAQUE, b"y")
            finally:
                os.close(folder)

    # --- things ---

    def _open_or_make(self, parent: int, parts: Sequence[bytes]) -> int:
        try:
            return open_folder(parent, parts)
        except FileNotFoundError:
            return self._make_folder(parent, tuple(parts), opaque=False)
        except NotADirectoryError:
            return self._replace_by_folder(parent, tuple(parts))

    def _make_folder(self, parent: int, parts: tuple[bytes, ...], *, opaque: bool) -> int:
        os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._give(parent, parts[-1])
        self._folders.setdefault(parts, _Folder())
        folder = open_folder(parent, parts)
        if opaque:
            os.setxattr(folder, OPAQUE, b"y")
        return folder

    def _replace_by_folder(self, parent: int, parts: tuple[bytes, ...]) -> int:
        """A folder where this layer had marked a deletion hides lower layers. One where it had a file is an error."""
        about = os.lstat(parts[-1], dir_fd=parent)
        if not (stat.S_ISCHR(about.st_mode) and about.st_rdev == 0):
            raise HostileArchive(f"{tar.show(b'/'.join(parts))}: a folder where there is a file")
        os.unlink(parts[-1], dir_fd=parent)
        return self._make_folder(parent, parts, opaque=True)

    def _file(self, parent: int, name: bytes, entry: tar.Entry) -> None:
        self._clear(parent, name)
        file = os.open(name, MAKE_FILE, 0o600, dir_fd=parent)
        try:
            while piece := self._reader.content():
                self._make_sure_of_room(file, len(piece))
                write_file(file, piece)
            if self._owner is not None:
                os.fchown(file, *self._owner)
            os.fchmod(file, (entry.mode & 0o777) | 0o600)
            _set_attributes(file, self._attributes(entry))
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

    def _hard_link(self, parent: int, name: bytes, entry: tar.Entry) -> None:
        there = entry.source
        if any(part.startswith(_WHITEOUT) for part in there):
            raise HostileArchive(f"{entry.shown}: a hard link to a mark of deletion")
        try:
            source = walk(self._root, there[:-1])
        except (FileNotFoundError, NotADirectoryError):
            raise HostileArchive(f"{entry.shown}: a hard link to what is not in the layer") from None
        try:
            kind = _kind_of(source, there[-1])
            if kind is None:
                raise HostileArchive(f"{entry.shown}: a hard link to what is not in the layer")
            if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
                raise HostileArchive(f"{entry.shown}: a hard link to something that is not a file")
            self._clear(parent, name)
            os.link(there[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _clear(self, parent: int, name: bytes) -> None:
        """Remove this name. The content stays if it has other names."""
        there = _kind_of(parent, name)
        if there is None:
            return
        if stat.S_ISDIR(there):
            raise HostileArchive(f"{tar.show(name)}: a file where there is a folder")
        os.unlink(name, dir_fd=parent)

    def _give(self, parent: int, name: bytes) -> None:
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)

    def _attributes(self, entry: tar.Entry) -> dict[bytes, bytes]:
        """Returns the attributes that a file may have: those of the user, except those that an overlay interprets."""
        found = {name[len(_ATTRIBUTE) :]: value for name, value in entry.records.items() if name.startswith(_ATTRIBUTE)}
        kept = {
            name: value
            for name, value in found.items()
            if name.startswith(b"user.") and not name.startswith(b"user.overlay.")
        }
        if len(kept) > self._limits.attributes or any(
            len(value) > self._limits.attribute or len(name) > 255 or b"\0" in name for name, value in kept.items()
        ):
            raise HostileArchive(f"{entry.shown}: more attributes than a file system keeps")
        return kept

    def finish(self) -> None:
        """Set the modes and times of folders, deepest first."""
        self.close()
        for parts in sorted(self._folders, key=len, reverse=True):
            wanted = self._folders[parts]
            folder = walk(self._root, parts)
            try:
                _set_attributes(folder, wanted.attributes)
                os.fchmod(folder, (wanted.mode & 0o1777) | 0o700)
                if wanted.modified is not None:
                    os.utime(folder, (wanted.modified, wanted.modified))
            finally:
                os.close(folder)


def _set_attributes(descriptor: int, attributes: dict[bytes, bytes]) -> None:
    for name, value in attributes.items():
        # Not every file system stores them, and an image works without.
        with contextlib.suppress(OSError):
            os.setxattr(descriptor, name, value)


def _kind_of(folder: int, name: bytes) -> int | None:
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return None
