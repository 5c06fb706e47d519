"""Trees of files as tar streams, both ways. Runs inside a box, and on the host with an archive that a box made.

Standard library only and importable alone. It speaks tar itself: `tarfile` takes longer to import than most trees
take to pack, and unpacks what an archive says. Here an archive is never believed: every place is walked one component
at a time from the target, never through a link, so nothing that an archive (or anybody beside it) puts there can lead
a later entry outside.
"""

# Everything here is relative to a folder that is held open, which pathlib cannot do; imports cost time in a box.

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, NoReturn

MAX_ENTRIES = 1_000_000
MAX_BYTES = 64 << 30
"""Bytes of all files in an archive together."""
MAX_NAME = 4096
"""Bytes of a name, or of where a link points."""
MAX_DEPTH = 512
"""Folders in one another. Keeps the walk to an entry short."""

_BLOCK = 512
_PIECE = 1 << 18
_MAX_EXTENSION = 1 << 20
"""Bytes of one extended header. The largest that real archives have hold attributes that we do not take."""
_MAX_EXTENSIONS = 8
"""Extended headers before one entry."""
_MAX_PADDING = 4 << 20
"""Bytes that may follow the end of an archive: tar fills its last record."""
_LATEST = 1 << 40
"""Seconds: far beyond what file systems keep, far below what breaks the clock."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class BadArchive(ValueError):
    """Not a tar archive, cut short, or larger than the limits."""


class HostileArchive(BadArchive):
    """Names a place outside of where it goes, or a thing that has no place in an archive."""


# --- packing ---


def pack(path: str, out: BinaryIO) -> None:
    """Write a file or folder as a tar stream: a folder's content under `./`, a file under its own name.

    Links are stored as links; sockets, pipes and devices are left out. A file that shrinks while it is read is filled
    up with zeros, one that grows is cut, one that vanishes is left out. One that may not be read raises `OSError`.
    Times are kept to the second.
    """
    about = os.lstat(path)
    packing = _Packing(out)
    if stat.S_ISDIR(about.st_mode):
        root = os.open(path, _OPEN_FOLDER)
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
    _write(out, bytes(2 * _BLOCK))


class _Packing:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._linked: dict[tuple[int, int], bytes] = {}
        """Under which name a file with several names was stored first."""

    def folders(self, root: int) -> None:
        self._header(b"./", b"5", os.fstat(root))
        waiting: list[bytes] = [b""]
        while waiting:
            inner = waiting.pop()
            try:
                folder = _walk(root, inner.split(b"/") if inner else [])
            except (FileNotFoundError, NotADirectoryError, HostileArchive):
                continue  # gone, or no folder any more
            except OSError as error:
                raise _named(error, inner) from None
            try:
                waiting += [inner + b"/" + name if inner else name for name in self._folder(folder, inner)]
            except OSError as error:
                raise _named(error, inner) from None
            finally:
                os.close(folder)

    def _folder(self, folder: int, inner: bytes) -> list[bytes]:
        """Pack what is in a folder. Returns the folders in it, the last one first."""
        below = []
        for name in sorted(map(os.fsencode, os.listdir(folder))):
            whole = b"./" + inner + b"/" + name if inner else b"./" + name
            try:
                about = os.lstat(name, dir_fd=folder)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(about.st_mode):
                self._header(whole + b"/", b"5", about)
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
            pass  # gone since it was listed
        except OSError as error:
            raise _named(error, stored) from None

    def _file(self, folder: int, name: bytes, stored: bytes) -> None:
        try:
            file = os.open(name, _OPEN_FILE, dir_fd=folder)
        except OSError as error:
            if _is_link(folder, name):
                return  # put there since it was listed: as if it had not been there
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
            piece = os.read(file, min(left, _PIECE))
            if not piece:
                break
            left -= len(piece)
            _write(self._out, piece)
        while left:
            filling = bytes(min(left, _PIECE))
            left -= len(filling)
            _write(self._out, filling)
        _write(self._out, bytes(-size % _BLOCK))

    def _header(self, name: bytes, kind: bytes, about: os.stat_result, *, target: bytes = b"", size: int = 0) -> None:
        for long, what in ((target, b"K"), (name, b"L")):
            if len(long) > 100:
                _write(self._out, _block(b"././@LongLink", what, len(long) + 1))
                _write(self._out, long + bytes(1 + -(len(long) + 1) % _BLOCK))
        mode = stat.S_IMODE(about.st_mode)
        _write(self._out, _block(name[:100], kind, size, mode, int(about.st_mtime // 1), target[:100]))


def _block(name: bytes, kind: bytes, size: int, mode: int = 0o644, modified: int = 0, target: bytes = b"") -> bytes:
    """One header block, as GNU tar writes them: the form without a limit on names, sizes and times."""
    fields = (
        name.ljust(100, b"\0"),
        _number(mode, 8),
        _number(0, 8),  # the owner is whoever unpacks it
        _number(0, 8),
        _number(size, 12),
        _number(modified, 12),
        b" " * 8,
        kind,
        target.ljust(100, b"\0"),
        b"ustar  \0",
    )
    block = b"".join(fields).ljust(_BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _number(value: int, width: int) -> bytes:
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    span = 1 << 8 * (width - 1)
    return bytes([0xFF if value < 0 else 0x80]) + (value % span).to_bytes(width - 1, "big")


def _write(out: BinaryIO, data: bytes) -> None:
    written = out.write(data)
    if written is not None and written < len(data):  # a raw stream takes what it can
        view = memoryview(data)
        while written < len(data):
            more = out.write(view[written:])
            if not more:
                raise BlockingIOError("the stream that the archive goes to does not wait; give one that blocks")
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
    """Unpack a tar stream into a folder, which is made where it is missing. Reads the stream to its end.

    Raises `HostileArchive` for what would be outside of the folder (absolute names, `..`, ways through a link, hard
    links and links to there) and for devices and pipes; `BadArchive` for what is no archive, is cut short or exceeds
    the limits; `OSError` for what the disk refuses. What was unpacked before that stays: whoever wants all or nothing
    uses `unpack_item`. Files that are there are replaced; folders that are there keep their mode. Setuid, setgid and
    sticky bits are dropped.

    `links="anywhere"` also takes links that point outside, for where that harms nobody but the owner of the archive:
    inside a box. They are made, and still never followed.
    """
    made = not os.path.lexists(target)
    os.makedirs(target, mode=0o755, exist_ok=True)
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    unpacking = _Unpacking(root, _Reading(archive, max_entries, max_bytes, max_name), outward=links == "anywhere")
    if made:
        unpacking.made(())
    try:
        for entry in unpacking.reading:
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
    """The inverse of `pack`: the file or folder in the archive appears as `target`, whole or not at all.

    `target` must not be there yet. Raises what `unpack` raises.
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
        reading = _Reading(archive, max_entries, max_bytes, max_name)
        unpacking = _Unpacking(root, reading, outward=links == "anywhere", base=(b"item",))
        try:
            first = next(reading, None)
            if first is None:
                raise BadArchive("the archive is empty")
            if first.kind == b"5":
                if first.parts:
                    raise BadArchive(f"{first.shown}: the archive of a folder begins with ./")
                os.mkdir(inner, 0o755)
                unpacking.made((b"item",))
                unpacking.put(first)
                for entry in reading:
                    unpacking.put(entry)
            else:
                if len(first.parts) != 1 or first.kind == b"1":
                    raise BadArchive(f"{first.shown}: the archive of a file has that file alone")
                unpacking.put_as_item(first)
                for entry in reading:
                    raise BadArchive(f"{entry.shown}: the archive of a file has that file alone")
            unpacking.finish()
        finally:
            unpacking.close()
            os.close(root)
        if os.path.lexists(target):
            raise FileExistsError(17, "there is something already", target)
        # A folder that nobody may write to cannot be moved to another parent.
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


class _Entry:
    """One checked entry: its place as components below the target, none of which can climb."""

    __slots__ = ("kind", "mode", "modified", "parts", "shown", "size", "target")

    def __init__(self, kind: bytes, parts: tuple[bytes, ...], size: int, mode: int, modified: int, target: bytes):
        self.kind = kind
        self.parts = parts
        self.size = size
        self.mode = mode
        self.modified = modified
        self.target = target
        self.shown = _shown(b"/".join(parts) or b".")


class _Reading:
    """The entries of an archive, one after the other. The content of a file is read with `content` before the next."""

    def __init__(self, archive: BinaryIO, max_entries: int, max_bytes: int, max_name: int) -> None:
        self._archive = archive
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_name = max_name
        self._entries = 0
        self._bytes = 0
        self._left = 0
        self._filling = 0

    def __iter__(self) -> _Reading:
        return self

    def __next__(self) -> _Entry:
        self._skip_content()
        name = target = None
        size = modified = None
        for _ in range(_MAX_EXTENSIONS + 1):
            block = self._exactly(_BLOCK)
            if not block.strip(b"\0"):
                self._finish()
                raise StopIteration
            _check_sum(block)
            kind = block[156:157]
            length = _parse(block[124:136], "size")
            if kind in b"LK" and kind:
                value = self._extension(length).split(b"\0", 1)[0]
                name, target = (value, target) if kind == b"L" else (name, value)
            elif kind in (b"x", b"X"):
                known = _records(self._extension(length))
                name = known.get(b"path", name)
                target = known.get(b"linkpath", target)
                size = _decimal(known[b"size"], "size") if b"size" in known else size
                modified = _decimal(known[b"mtime"], "time") if b"mtime" in known else modified
            elif kind == b"g":
                self._extension(length)  # holds for the whole archive: nothing that we take
            else:
                if name is None:
                    name = _field(block[:100])
                    if block[257:263] == b"ustar\0" and block[345]:
                        name = _field(block[345:500]) + b"/" + name
                target = _field(block[157:257]) if target is None else target
                if modified is None:
                    modified = _parse(block[136:148], "time")
                return self._entry(block, kind, name, target, length if size is None else size, modified)
        raise BadArchive("an archive with more headers than files")

    def _entry(self, block: bytes, kind: bytes, name: bytes, target: bytes, size: int, modified: int) -> _Entry:
        self._entries += 1
        if self._entries > self._max_entries:
            raise BadArchive(f"more than {self._max_entries} entries: split the archive")
        if kind in (b"0", b"\0", b"7"):
            kind = b"5" if name.endswith(b"/") else b"0"
        parts = self._parts(name)
        shown = _shown(name)
        if kind not in (b"0", b"1", b"2", b"5"):
            if kind in (b"3", b"4", b"6"):
                raise HostileArchive(f"{shown}: a device or a pipe has no place in an archive")
            raise BadArchive(f"{shown}: an entry of kind {kind!r}; make the archive without sparse files or volumes")
        if not parts and kind != b"5":
            raise BadArchive(f"{shown!r}: an entry without a name")
        if len(target) > self._max_name or b"\0" in target:
            raise BadArchive(f"{shown}: points to a name that is no name")
        if kind in (b"1", b"2") and not target:
            raise BadArchive(f"{shown}: a link to nowhere")
        if kind == b"1":
            self._parts(target)
        if size < 0:
            raise BadArchive(f"{shown}: a size of {size}")
        if kind == b"0":
            self._bytes += size
            if self._bytes > self._max_bytes:
                raise BadArchive(f"more than {self._max_bytes} bytes: split the archive")
        # Other kinds have no content, but old archives put one behind hard links: skipped, within the same limit.
        elif size > self._max_bytes:
            raise BadArchive(f"{shown}: a size of {size}")
        self._left = size
        self._filling = -size % _BLOCK
        mode = _parse(block[100:108], "mode") & 0o777
        return _Entry(kind, parts, size, mode, max(-_LATEST, min(modified, _LATEST)), target)

    def _parts(self, name: bytes) -> tuple[bytes, ...]:
        shown = _shown(name)
        if len(name) > self._max_name:
            raise BadArchive(f"a name of {len(name)} bytes")
        if b"\0" in name:
            raise BadArchive(f"{shown}: a zero byte in a name")
        if name.startswith(b"/"):
            raise HostileArchive(f"{shown}: an absolute name")
        parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
        if b".." in parts:
            raise HostileArchive(f"{shown}: leads out of the folder")
        if len(parts) > MAX_DEPTH:
            raise BadArchive(f"{shown}: more than {MAX_DEPTH} folders deep")
        if any(len(part) > 255 for part in parts):
            raise BadArchive(f"{shown}: a name of more than 255 bytes")
        return parts

    def content(self) -> bytes:
        """Some of the content of the entry that was read last; empty at its end."""
        if not self._left:
            return b""
        piece = self._archive.read(min(self._left, _PIECE))
        if not piece:
            raise BadArchive("the archive is cut short")
        self._left -= len(piece)
        return piece

    def _skip_content(self) -> None:
        while self.content():
            pass
        if self._filling:
            self._exactly(self._filling)
            self._filling = 0

    def _extension(self, length: int) -> bytes:
        if not 0 <= length <= _MAX_EXTENSION:
            raise BadArchive(f"an extended header of {length} bytes")
        data = self._exactly(length)
        self._exactly(-length % _BLOCK)
        return data

    def _exactly(self, length: int) -> bytes:
        pieces = []
        while length:
            piece = self._archive.read(length)
            if not piece:
                raise BadArchive("the archive is cut short")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def _finish(self) -> None:
        """Take what fills the last record, so that whoever writes the stream gets rid of it."""
        seen = 0
        while True:
            piece = self._archive.read(_PIECE)
            if not piece:
                return
            seen += len(piece)
            if seen > _MAX_PADDING or piece.strip(b"\0"):
                raise BadArchive("something follows the end of the archive")


class _Unpacking:
    def __init__(self, root: int, reading: _Reading, *, outward: bool, base: tuple[bytes, ...] = ()) -> None:
        self.reading = reading
        self._root = root
        self._outward = outward
        self._base = base
        self._parent: int | None = None
        self._parent_parts: tuple[bytes, ...] = ()
        self._made: dict[tuple[bytes, ...], tuple[int, int] | None] = {}
        """Folders made here, with the mode and time that they get in the end: until then they must be writable."""

    def made(self, parts: tuple[bytes, ...]) -> None:
        self._made[parts] = None

    def close(self) -> None:
        if self._parent is not None:
            os.close(self._parent)
            self._parent = None

    def put(self, entry: _Entry) -> None:
        self._put(self._base + entry.parts, entry)

    def put_as_item(self, entry: _Entry) -> None:
        self._put(self._base, entry)

    def _put(self, parts: tuple[bytes, ...], entry: _Entry) -> None:
        try:
            if entry.kind == b"5":
                self._folder_for(parts)
                if parts in self._made:
                    self._made[parts] = (entry.mode, entry.modified)
                return
            folder = self._folder_for(parts[:-1])
            if entry.kind == b"0":
                self._file(folder, parts[-1], entry)
            elif entry.kind == b"2":
                self._link(folder, parts, entry)
            else:
                self._hard_link(folder, parts[-1], entry)
        except OSError as error:
            raise _named(error, b"/".join(entry.parts)) from None

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
                    os.mkdir(part, 0o755, dir_fd=at)
                    self.made(parts[:number])
                    below = _open_folder(at, part)
                at, above = below, at
                os.close(above)
        except BaseException:
            os.close(at)
            raise
        self._parent, self._parent_parts = at, parts
        return at

    def _file(self, folder: int, name: bytes, entry: _Entry) -> None:
        _clear(folder, name)
        file = os.open(name, _MAKE_FILE, 0o600, dir_fd=folder)
        try:
            while True:
                piece = self.reading.content()
                if not piece:
                    break
                view = memoryview(piece)
                while view:
                    view = view[os.write(file, view) :]
            os.fchmod(file, entry.mode)
            os.utime(file, (entry.modified, entry.modified))
        finally:
            os.close(file)

    def _link(self, folder: int, parts: tuple[bytes, ...], entry: _Entry) -> None:
        if not self._outward and not stays_inside(entry.target, len(parts) - 1 - len(self._base)):
            raise HostileArchive(f"{entry.shown}: a link that leads out of the folder, to {_shown(entry.target)}")
        _clear(folder, parts[-1])
        os.symlink(entry.target, parts[-1], dir_fd=folder)
        os.utime(parts[-1], (entry.modified, entry.modified), dir_fd=folder, follow_symlinks=False)

    def _hard_link(self, folder: int, name: bytes, entry: _Entry) -> None:
        there = self._base + tuple(part for part in entry.target.split(b"/") if part not in (b"", b"."))
        if there == self._base + entry.parts:
            raise BadArchive(f"{entry.shown}: a hard link to itself")
        try:
            source = _walk(self._root, there[:-1])
        except FileNotFoundError:
            raise BadArchive(f"{entry.shown}: a hard link to what is not in the archive") from None
        try:
            about = os.lstat(there[-1], dir_fd=source)
            if not stat.S_ISREG(about.st_mode):
                raise HostileArchive(f"{entry.shown}: a hard link to what is no file")
            _clear(folder, name)
            os.link(there[-1], name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise BadArchive(f"{entry.shown}: a hard link to what is not in the archive") from None
        finally:
            os.close(source)

    def finish(self) -> None:
        """Give the folders made here their modes and times, the deepest first."""
        self.close()
        for parts in sorted(self._made, key=len, reverse=True):
            wanted = self._made[parts]
            if wanted is None:
                continue
            mode, modified = wanted
            folder = _walk(self._root, parts)
            try:
                os.utime(folder, (modified, modified))
                os.fchmod(folder, mode)
            finally:
                os.close(folder)


def stays_inside(target: bytes, depth: int) -> bool:
    """Whether a link in a folder at this depth can only lead to places below the root.

    `..` counts only in front, where it starts from the folder that the link really is in. After a name it would start
    from wherever that name leads, which may be a link that is put there later.
    """
    if target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == b"..":
        climbs += 1
    return climbs <= depth and b".." not in parts[climbs:]


# --- places ---


def _walk(root: int, parts: tuple[bytes, ...] | list[bytes]) -> int:
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
        if _is_link(folder, name):
            raise HostileArchive(f"{_shown(name)}: a way through a link") from None
        raise error


def _is_link(folder: int, name: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    except OSError:
        return False


def _clear(folder: int, name: bytes) -> None:
    """Make room for a new file: what is there loses this name and keeps its content, whoever else may have it."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _named(error: OSError, place: bytes) -> OSError:
    return OSError(error.errno, error.strerror, os.fsdecode(place) or ".")


def _shown(name: bytes) -> str:
    text = name[:200].decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


# --- header fields ---


def _field(data: bytes) -> bytes:
    return data.split(b"\0", 1)[0]


def _check_sum(block: bytes) -> None:
    given = _parse(block[148:156], "checksum")
    expected = sum(block[:148]) + sum(block[156:]) + 8 * 32
    if given != expected:
        # Some old tars summed signed bytes.
        signed = expected - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
        if given != signed:
            raise BadArchive("this is no tar archive, or a damaged one")


def _parse(data: bytes, what: str) -> int:
    if data[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(data[1:], "big") - (256 ** (len(data) - 1) if data[0] == 0xFF else 0)
    digits = _field(data).strip(b" ")
    if digits.strip(b"01234567"):
        _bad(what)
    return int(digits, 8) if digits else 0


def _decimal(data: bytes, what: str) -> int:
    """A whole number of an extended header; fractions of a second are let go."""
    whole = data.split(b".", 1)[0]
    digits = whole[1:] if whole.startswith(b"-") else whole
    if not digits.isdigit() or len(digits) > 20:
        _bad(what)
    return int(whole)


def _records(data: bytes) -> dict[bytes, bytes]:
    """The names and values of an extended header: `<length> <name>=<value>\\n`, again and again."""
    known: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 10)
        digits = data[at:space]
        if space < 0 or not digits.isdigit():
            _bad("extended header")
        end = at + int(digits)
        name, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(data) or data[end - 1 : end] != b"\n" or not equals:
            _bad("extended header")
        if name.startswith(b"GNU.sparse."):
            raise BadArchive("a sparse file; make the archive without them")
        known[name] = value
        at = end
    return known


def _bad(what: str) -> NoReturn:
    raise BadArchive(f"this is no tar archive, or a damaged one: a {what} that is none")
