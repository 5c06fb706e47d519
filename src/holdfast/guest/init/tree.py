"""Packs and unpacks trees of files as tar streams. Runs inside a box, and on the host with archives from boxes.

Standard library only; needs only `tar`, which reads the streams. An archive is untrusted: every path is walked one
component at a time from the target, never through a link, so nothing that an archive or another process puts there can
lead a later entry outside.
"""

# Everything here is relative to an open folder, which pathlib does not support. Imports cost time in a box.

from __future__ import annotations

import errno
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

if TYPE_CHECKING or __package__:
    from holdfast.guest.init import tar
    from holdfast.guest.init.tar import BLOCK, PIECE, BadArchive, HostileArchive, show
else:  # in a box, the guest is not a package
    sys.path.insert(0, __file__.rpartition("/")[0])
    import tar
    from tar import BLOCK, PIECE, BadArchive, HostileArchive, show

__all__ = (
    "MAKE_FILE", "OPEN_FOLDER", "BadArchive", "HostileArchive", "Walker", "open_folder", "pack", "stays_inside",
    "unpack", "unpack_item", "walk", "write_file",
)  # fmt: skip

MAX_ENTRIES = 1_000_000
MAX_BYTES = 64 << 30
"""Bytes of all files in an archive."""
MAX_NAME = 4096
"""Bytes of a name or a link target."""
MAX_DEPTH = 512
"""Levels of nested folders. Keeps the walk to an entry short."""

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAKE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


# --- packing ---


def pack(path: str, out: BinaryIO) -> None:
    """Write a file or folder as a tar stream: a folder's contents under `./`, a file under its own name.

    Links are stored as links. Sockets, pipes and devices are left out. A file that shrinks meanwhile is padded with
    zeros, one that grows is cut, one that disappears is left out. One that cannot be read raises `OSError`. Times are
    stored in seconds.
    """
    about = os.lstat(path)
    packing = _Packing(out)
    if stat.S_ISDIR(about.st_mode):
        root = os.open(path, OPEN_FOLDER)
        try:
            packing.folders(root)
        finally:
            os.close(root)
    else:
        whole = os.path.abspath(path)
        folder = os.open(os.path.dirname(whole), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            name = os.fsencode(os.path.basename(whole))
            packing.item(folder, name, name, about)
        finally:
            os.close(folder)
    _write(out, bytes(2 * BLOCK))


class _Packing:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._linked: dict[tuple[int, int], bytes] = {}
        """The first name under which a file with several names was stored."""

    def folders(self, root: int) -> None:
        """Pack a folder and all below it, each directly followed by its contents.

        GNU tar sets the time of a folder when it meets the first name outside it.
        """
        waiting: list[bytes] = [b""]
        while waiting:
            inner = waiting.pop()
            try:
                folder = walk(root, inner.split(b"/") if inner else [])
            except (FileNotFoundError, NotADirectoryError, HostileArchive):
                continue  # deleted, or no longer a folder
            except OSError as error:
                raise _named(error, inner) from None
            try:
                self._header(b"./" + inner + b"/" if inner else b"./", b"5", os.fstat(folder))
                waiting += [inner + b"/" + name if inner else name for name in self._folder(folder, inner)]
            finally:
                os.close(folder)

    def _folder(self, folder: int, inner: bytes) -> list[bytes]:
        """Pack the contents of a folder. Returns its subfolders, last one first."""
        below = []
        try:
            names = sorted(map(os.fsencode, os.listdir(folder)))
        except OSError as error:
            raise _named(error, inner) from None
        for name in names:
            whole = b"./" + inner + b"/" + name if inner else b"./" + name
            try:
                about = os.lstat(name, dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _named(error, whole) from None
            if stat.S_ISDIR(about.st_mode):
                below.append(name)
            else:
                self.item(folder, name, whole, about)
        return below[::-1]

    def item(self, folder: int, name: bytes, stored: bytes, about: os.stat_result) -> None:
        try:
            if stat.S_ISLNK(about.st_mode):
                self._header(stored, b"2", about, target=os.readlink(name, dir_fd=folder))
            elif stat.S_ISREG(about.st_mode):
                self._file(folder, name, stored)
        except FileNotFoundError:
            pass  # deleted since it was listed
        except OSError as error:
            if stat.S_ISLNK(about.st_mode) and error.errno == errno.EINVAL:
                return  # no longer a link
            raise _named(error, stored) from None

    def _file(self, folder: int, name: bytes, stored: bytes) -> None:
        try:
            file = os.open(name, _OPEN_FILE, dir_fd=folder)
        except OSError as error:
            if _is_link(folder, name):
                return  # created since it was listed: ignored
            raise error
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode):
                return
            identity = (about.st_dev, about.st_ino)
            first = self._linked.get(identity)
            if first is not None:
                self._header(stored, b"1", about, target=first)
                return
            self._header(stored, b"0", about, size=about.st_size)
            self._content(file, about.st_size)
            if about.st_nlink > 1:
                self._linked[identity] = stored
        finally:
            os.close(file)

    def _content(self, file: int, size: int) -> None:
        left = size
        while left:
            piece = os.read(file, min(left, PIECE))
            if not piece:
                break
            left -= len(piece)
            _write(self._out, piece)
        while left:
            filling = bytes(min(left, PIECE))
            left -= len(filling)
            _write(self._out, filling)
        _write(self._out, bytes(-size % BLOCK))

    def _header(self, name: bytes, kind: bytes, about: os.stat_result, *, target: bytes = b"", size: int = 0) -> None:
        for long, what in ((target, b"K"), (name, b"L")):
            if len(long) > 100:
                _write(self._out, _block(b"././@LongLink", what, len(long) + 1))
                _write(self._out, long + bytes(1 + -(len(long) + 1) % BLOCK))
        mode = stat.S_IMODE(about.st_mode)
        _write(self._out, _block(name[:100], kind, size, mode, int(about.st_mtime // 1), target[:100]))


def _block(name: bytes, kind: bytes, size: int, mode: int = 0o644, modified: int = 0, target: bytes = b"") -> bytes:
    """Returns one header block as GNU tar writes it, without limits on names, sizes and times."""
    fields = (
        name.ljust(100, b"\0"),
        _number(mode, 8),
        _number(0, 8),  # the owner is the user that unpacks it
        _number(0, 8),
        _number(size, 12),
        _number(modified, 12),
        b" " * 8,
        kind,
        target.ljust(100, b"\0"),
        b"ustar  \0",
    )
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _number(value: int, width: int) -> bytes:
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    span = 1 << 8 * (width - 1)
    return bytes([0xFF if value < 0 else 0x80]) + (value % span).to_bytes(width - 1, "big")


def _write(out: BinaryIO, data: bytes) -> None:
    written = out.write(data)
    if written is not None and written < len(data):  # a raw stream may accept only a part
        view = memoryview(data)
        while written < len(data):
            more = out.write(view[written:])
            if not more:
                raise BlockingIOError("the output stream of the archive does not block; use one that does")
            written += more


# --- unpacking ---


def unpack(
    archive: BinaryIO,
    target: str,
    *,
    max_entries: int = MAX_ENTRIES,
    max_bytes: int = MAX_BYTES,
    max_name: int = MAX_NAME,
    links: str = "inside",
) -> None:
    """Unpack a tar stream into a folder, which is created if it is missing. Reads the stream to its end.

    Raises `HostileArchive` for what would be outside of the folder (absolute names, `..`, paths through a link, hard
    links and links to there), for devices and pipes, and for exceeded limits; `BadArchive` for an invalid or truncated
    archive; `OSError` for what the disk refuses. Entries unpacked before that stay; `unpack_item` is atomic. Existing
    files are replaced, and existing folders keep their mode. Setuid, setgid and sticky bits are dropped.

    `links="anywhere"` also allows links that point outside, where that harms only the owner of the archive: inside a
    box. They are created, and still never followed.
    """
    made = not os.path.lexists(target)
    os.makedirs(target, mode=0o755, exist_ok=True)
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    reader = _reader(archive, max_entries, max_bytes, max_name)
    unpacking = _Unpacking(root, reader, outward=links == "anywhere")
    if made:
        unpacking.made(())
    try:
        for entry in reader:
            unpacking.put(entry)
        unpacking.finish()
    finally:
        unpacking.close()
        os.close(root)


def unpack_item(
    archive: BinaryIO,
    target: str,
    *,
    max_entries: int = MAX_ENTRIES,
    max_bytes: int = MAX_BYTES,
    max_name: int = MAX_NAME,
    links: str = "inside",
) -> None:
    """The inverse of `pack`: the file or folder in the archive appears as `target`, completely or not at all.

    `target` must not exist. Raises what `unpack` raises.
    """
    if os.path.lexists(target):
        raise FileExistsError(17, "there is something already", target)
    whole = os.path.abspath(target)
    parent, name = os.path.split(whole)
    if not name:
        raise FileExistsError(17, "there is something already", target)
    beside = os.path.join(parent, f".holdfast-{os.urandom(8).hex()}")
    os.mkdir(beside, 0o700)
    try:
        inner = os.path.join(beside, "item")
        root = os.open(beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        reader = _reader(archive, max_entries, max_bytes, max_name)
        unpacking = _Unpacking(root, reader, outward=links == "anywhere", base=(b"item",))
        try:
            first = next(reader, None)
            if first is None:
                raise BadArchive("the archive is empty")
            if first.kind == tar.FOLDER:
                if first.parts:
                    raise BadArchive(f"{first.shown}: the archive of a folder begins with ./")
                os.mkdir(inner, 0o755)
                unpacking.made((b"item",))
                unpacking.put(first)
                for entry in reader:
                    unpacking.put(entry)
            else:
                if len(first.parts) != 1 or first.kind == tar.HARD_LINK:
                    raise BadArchive(f"{first.shown}: the archive of a file has that file alone")
                unpacking.put_as_item(first)
                for entry in reader:
                    raise BadArchive(f"{entry.shown}: the archive of a file has that file alone")
            unpacking.finish()
        finally:
            unpacking.close()
            os.close(root)
        if os.path.lexists(target):
            raise FileExistsError(17, "there is something already", target)
        # A folder without write permission cannot be moved to another parent.
        mode = stat.S_IMODE(os.lstat(inner).st_mode)
        held = os.path.isdir(inner) and not os.path.islink(inner) and mode & 0o700 != 0o700
        if held:
            os.chmod(inner, mode | 0o700)
        os.rename(inner, whole)
        if held:
            os.chmod(whole, mode)
    finally:
        import shutil

        shutil.rmtree(beside, ignore_errors=True)


def _reader(archive: BinaryIO, max_entries: int, max_bytes: int, max_name: int) -> tar.Reader:
    budget = tar.Budget(entries=max_entries, size=max_bytes, name=max_name, depth=MAX_DEPTH, into="folder")
    return tar.Reader(archive.read, budget)


class _Unpacking:
    def __init__(self, root: int, reader: tar.Reader, *, outward: bool, base: tuple[bytes, ...] = ()) -> None:
        self._root = root
        self._reader = reader
        self._outward = outward
        self._base = base
        self._walker = Walker(root, self._open_or_make)
        self._made: dict[tuple[bytes, ...], tuple[int, int] | None] = {}
        """Folders created here, with their final mode and time: until the end they must be writable."""

    def close(self) -> None:
        self._walker.close()

    def made(self, parts: tuple[bytes, ...]) -> None:
        self._made[parts] = None

    def put(self, entry: tar.Entry) -> None:
        self._put(self._base + entry.parts, entry)

    def put_as_item(self, entry: tar.Entry) -> None:
        self._put(self._base, entry)

    def _put(self, parts: tuple[bytes, ...], entry: tar.Entry) -> None:
        try:
            if entry.kind in tar.DEVICES:
                raise HostileArchive(f"{entry.shown}: a device or a pipe has no place in an archive")
            if entry.kind == tar.FOLDER:
                self._walker.to(parts)
                if parts in self._made:
                    self._made[parts] = (entry.mode & 0o777, entry.modified)
                return
            folder = self._walker.to(parts[:-1])
            if entry.kind == tar.FILE:
                self._file(folder, parts[-1], entry)
            elif entry.kind == tar.LINK:
                self._link(folder, parts, entry)
            else:
                self._hard_link(folder, parts[-1], entry)
        except OSError as error:
            raise _named(error, b"/".join(entry.parts)) from None

    def _open_or_make(self, folder: int, parts: Sequence[bytes]) -> int:
        try:
            return open_folder(folder, parts)
        except FileNotFoundError:
            os.mkdir(parts[-1], 0o755, dir_fd=folder)
            self.made(tuple(parts))
            return open_folder(folder, parts)

    def _file(self, folder: int, name: bytes, entry: tar.Entry) -> None:
        _clear(folder, name)
        file = os.open(name, MAKE_FILE, 0o600, dir_fd=folder)
        try:
            while True:
                piece = self._reader.content()
                if not piece:
                    break
                write_file(file, piece)
            os.fchmod(file, entry.mode & 0o777)
            os.utime(file, (entry.modified, entry.modified))
        finally:
            os.close(file)

    def _link(self, folder: int, parts: tuple[bytes, ...], entry: tar.Entry) -> None:
        if not self._outward and not stays_inside(entry.target, len(parts) - 1 - len(self._base)):
            raise HostileArchive(f"{entry.shown}: a link that leads out of the folder, to {show(entry.target)}")
        _clear(folder, parts[-1])
        os.symlink(entry.target, parts[-1], dir_fd=folder)
        os.utime(parts[-1], (entry.modified, entry.modified), dir_fd=folder, follow_symlinks=False)

    def _hard_link(self, folder: int, name: bytes, entry: tar.Entry) -> None:
        there = self._base + entry.source
        try:
            source = walk(self._root, there[:-1])
        except FileNotFoundError:
            raise BadArchive(f"{entry.shown}: a hard link to a file that is not in the archive") from None
        try:
            about = os.lstat(there[-1], dir_fd=source)
            if not stat.S_ISREG(about.st_mode):
                raise HostileArchive(f"{entry.shown}: a hard link to something that is not a file")
            _clear(folder, name)
            os.link(there[-1], name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise BadArchive(f"{entry.shown}: a hard link to a file that is not in the archive") from None
        finally:
            os.close(source)

    def finish(self) -> None:
        """Set the modes and times of the folders created here, deepest first."""
        self.close()
        for parts in sorted(self._made, key=len, reverse=True):
            wanted = self._made[parts]
            if wanted is None:
                continue
            mode, modified = wanted
            folder = walk(self._root, parts)
            try:
                os.utime(folder, (modified, modified))
                os.fchmod(folder, mode)
            finally:
                os.close(folder)


def stays_inside(target: bytes, depth: int) -> bool:
    """Returns whether a link in a folder at this depth can only lead to paths below the root.

    `..` is allowed only at the start, where it refers to the folder of the link. After a name it would refer to where
    that name leads, which may be a link created later.
    """
    if target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == b"..":
        climbs += 1
    return climbs <= depth and b".." not in parts[climbs:]


# --- places ---


class Walker:
    """Opens folders below another, and keeps the last one open, since the next entry is mostly in it too."""

    def __init__(self, root: int, step: Callable[[int, Sequence[bytes]], int]) -> None:
        self._root = root
        self._step = step
        self._at: int | None = None
        self._parts: tuple[bytes, ...] = ()

    def to(self, parts: tuple[bytes, ...]) -> int:
        """Returns the open folder at this path. Valid until the next call."""
        if self._at is None or self._parts != parts:
            self.close()
            self._at, self._parts = walk(self._root, parts, self._step), parts
        return self._at

    def close(self) -> None:
        if self._at is not None:
            os.close(self._at)
            self._at = None


def open_folder(folder: int, parts: Sequence[bytes]) -> int:
    """One step of a walk: open the last component, which is in this folder. Raises `HostileArchive` for a link."""
    try:
        return os.open(parts[-1], OPEN_FOLDER, dir_fd=folder)
    except OSError as error:
        if _is_link(folder, parts[-1]):
            raise HostileArchive(f"{show(parts[-1])}: a path through a link") from None
        raise error


def walk(root: int, parts: Sequence[bytes], step: Callable[[int, Sequence[bytes]], int] = open_folder) -> int:
    """Open the folder at this path below another, passing only through folders."""
    at = os.open(".", OPEN_FOLDER, dir_fd=root)
    try:
        for number in range(len(parts)):
            at, above = step(at, parts[: number + 1]), at
            os.close(above)
    except BaseException:
        os.close(at)
        raise
    return at


def write_file(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _is_link(folder: int, name: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    except OSError:
        return False


def _clear(folder: int, name: bytes) -> None:
    """Remove this name. The content stays if it has other names."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _named(error: OSError, place: bytes) -> OSError:
    return OSError(error.errno, error.strerror, os.fsdecode(place) or ".")
