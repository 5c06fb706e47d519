"""Reads tar streams of strangers, entry by entry. Inside a box, and on the host.

Standard library only and importable alone. It speaks tar itself: `tarfile` takes longer to import than most trees take
to unpack, holds on to every entry, reads headers of any length into memory, and believes what it reads.

Only reads: where entries go, and which are refused, is decided elsewhere. Names come out as checked components, none of
which can climb.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 512
PIECE = 1 << 18
FILE, HARD_LINK, LINK, FOLDER = b"0", b"1", b"2", b"5"
DEVICES = (b"3", b"4", b"6")
"""Of characters, of blocks, and pipes."""

_KINDS = (FILE, HARD_LINK, LINK, FOLDER, *DEVICES)
_MAX_EXTENSION = 1 << 20
"""Bytes of one extended header. The largest that real archives have hold attributes that nobody takes."""
_MAX_EXTENSIONS = 8
"""Extended headers before one entry."""
_MAX_PADDING = 4 << 20
"""Bytes that may follow the end of an archive: tar fills its last record."""
_LATEST = 1 << 40
"""Seconds: far beyond what file systems keep, far below what breaks the clock."""


class BadArchive(ValueError):
    """Not a tar archive, of a form that we do not know, or cut short."""


class HostileArchive(BadArchive):
    """Names a place outside of where it goes or a thing that has no place in an archive, or exceeds the limits."""


class Budget:
    """How much is taken, of one archive or of several together, and what is left of that."""

    def __init__(self, *, entries: int, size: int, name: int, depth: int, into: str) -> None:
        self._entries = entries
        self._size = size
        self._entries_taken = 0
        self._size_taken = 0
        self._name = name
        self._depth = depth
        self._into = into

    def take(self, name: bytes, size: int) -> None:
        """One entry, and its bytes."""
        if not 0 <= size <= self._size:
            raise HostileArchive(f"{show(name)}: a size of {size}")
        self._entries_taken += 1
        if self._entries_taken > self._entries:
            raise HostileArchive(f"more than {self._entries} entries: make a smaller archive")
        self._size_taken += size
        if self._size_taken > self._size:
            raise HostileArchive(f"more than {self._size} bytes: make a smaller archive")

    def components(self, name: bytes) -> tuple[bytes, ...]:
        """A name as the steps to it. Raises `HostileArchive` for one that is absolute, climbs, or is beyond sense."""
        if len(name) > self._name:
            raise HostileArchive(f"a name of {len(name)} bytes")
        if b"\0" in name:
            raise HostileArchive(f"{show(name)}: a zero byte in a name")
        if name.startswith(b"/"):
            raise HostileArchive(f"{show(name)}: an absolute name")
        parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
        if b".." in parts:
            raise HostileArchive(f"{show(name)}: leads out of the {self._into}")
        if len(parts) > self._depth:
            raise HostileArchive(f"{show(name)}: more than {self._depth} folders deep")
        if any(len(part) > 255 for part in parts):
            raise HostileArchive(f"{show(name)}: a name of more than 255 bytes")
        return parts

    def target(self, name: bytes) -> bytes:
        """Where a link points, which may be anywhere."""
        if not 0 < len(name) <= self._name or b"\0" in name:
            raise HostileArchive(f"{show(name)!r}: a link to what is no name")
        return name


class Entry:
    """One checked entry."""

    __slots__ = ("kind", "mode", "modified", "parts", "records", "size", "source", "target")

    def __init__(self, kind: bytes, parts: tuple[bytes, ...], size: int, mode: int, modified: int) -> None:
        self.kind = kind
        self.parts = parts
        """Its place, as components below the root. None of them is `..`, is empty or has a `/`."""
        self.size = size
        self.mode = mode
        self.modified = modified
        self.target = b""
        """Of a link: as it was written."""
        self.source: tuple[bytes, ...] = ()
        """Of a hard link: the place of the file, as components."""
        self.records: dict[bytes, bytes] = {}
        """All that its extended headers say."""

    @property
    def shown(self) -> str:
        return show(b"/".join(self.parts) or b".")


class Reader:
    """Iterate it for entries; `content` reads that of the entry which came last. Reads to the end of the stream."""

    def __init__(self, read: Callable[[int], bytes], budget: Budget) -> None:
        self._read = read
        self._budget = budget
        self._left = 0
        self._filling = 0

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Entry:
        self._skip_content()
        long: dict[bytes, bytes] = {}
        records: dict[bytes, bytes] = {}
        for _ in range(_MAX_EXTENSIONS + 1):
            block = self._exactly(BLOCK)
            if not block.strip(b"\0"):
                self._finish()
                raise StopIteration
            _check_sum(block)
            kind = block[156:157]
            size = _parse(block[124:136], "size")
            if kind in (b"L", b"K"):
                long[b"path" if kind == b"L" else b"linkpath"] = _field(self._extension(size))
            elif kind in (b"x", b"X"):
                records.update(_records(self._extension(size)))
            elif kind == b"g":
                self._extension(size)  # holds for the whole archive: nothing that we take
            else:
                return self._entry(block, kind, size, {**long, **records})
        raise HostileArchive("an archive with more headers than files")

    def _entry(self, block: bytes, kind: bytes, size: int, records: dict[bytes, bytes]) -> Entry:
        name = _field(block[:100])
        if block[257:263] == b"ustar\0" and block[345]:
            name = _field(block[345:500]) + b"/" + name
        name = records.get(b"path", name)
        target = records.get(b"linkpath", _field(block[157:257]))
        size = _decimal(records[b"size"], "size") if b"size" in records else size
        modified = _decimal(records[b"mtime"], "time") if b"mtime" in records else _parse(block[136:148], "time")
        if kind in (b"0", b"\0", b"7"):
            kind = FOLDER if name.endswith(b"/") else FILE
        parts = self._budget.components(name)
        if kind not in _KINDS:
            raise BadArchive(f"{show(name)}: an entry of kind {kind!r}; make the archive without sparse files")
        if not parts and kind != FOLDER:
            raise HostileArchive(f"{show(name)!r}: an entry without a name")
        # Files alone have content, but old archives put one behind hard links: skipped, within the same limit.
        self._budget.take(name, size)
        self._left = size
        self._filling = -size % BLOCK
        mode = _parse(block[100:108], "mode") & 0o7777
        entry = Entry(kind, parts, size, mode, max(-_LATEST, min(modified, _LATEST)))
        entry.records = records
        if kind == LINK:
            entry.target = self._budget.target(target)
        elif kind == HARD_LINK:
            entry.source = self._budget.components(self._budget.target(target))
            if entry.source in ((), parts):
                raise HostileArchive(f"{entry.shown}: a hard link to itself")
        return entry

    def content(self) -> bytes:
        """Some of the content of the entry that was read last; empty at its end."""
        if not self._left:
            return b""
        piece = self._read(min(self._left, PIECE))
        if not piece:
            raise BadArchive("the archive is cut short")
        self._left -= len(piece)
        return piece

    def _skip_content(self) -> None:
        while self.content():
            pass
        self._exactly(self._filling)
        self._filling = 0

    def _extension(self, length: int) -> bytes:
        if not 0 <= length <= _MAX_EXTENSION:
            raise HostileArchive(f"an extended header of {length} bytes")
        data = self._exactly(length)
        self._exactly(-length % BLOCK)
        return data

    def _exactly(self, length: int) -> bytes:
        pieces = []
        while length:
            piece = self._read(length)
            if not piece:
                raise BadArchive("the archive is cut short")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def _finish(self) -> None:
        """Take what fills the last record, so that whoever writes the stream gets rid of it."""
        seen = 0
        while True:
            piece = self._read(PIECE)
            if not piece:
                return
            seen += len(piece)
            if seen > _MAX_PADDING or piece.strip(b"\0"):
                raise HostileArchive("something follows the end of the archive")


def show(name: bytes) -> str:
    """A name for people: all of it can be printed."""
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
        raise _bad(what)
    return int(digits, 8) if digits else 0


def _decimal(data: bytes, what: str) -> int:
    """A whole number of an extended header; fractions of a second are let go."""
    whole = data.split(b".", 1)[0]
    digits = whole[1:] if whole.startswith(b"-") else whole
    if not digits.isdigit() or len(digits) > 20:
        raise _bad(what)
    return int(whole)


def _records(data: bytes) -> dict[bytes, bytes]:
    """The names and values of an extended header: `<length> <name>=<value>\\n`, again and again."""
    known: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 10)
        digits = data[at:space]
        if space < 0 or not digits.isdigit():
            raise _bad("extended header")
        end = at + int(digits)
        name, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(data) or data[end - 1 : end] != b"\n" or not equals:
            raise _bad("extended header")
        if name.startswith(b"GNU.sparse."):
            raise BadArchive("a sparse file; make the archive without them")
        known[name] = value
        at = end
    return known


def _bad(what: str) -> BadArchive:
    return BadArchive(f"this is no tar archive, or a damaged one: a {what} that is none")
