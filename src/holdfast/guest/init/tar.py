"""Reads untrusted tar streams, entry by entry. Used inside a box and on the host.

Standard library only, and importable alone. It does not use `tarfile`, which takes longer to import than most trees
take to unpack, keeps every entry, reads headers of any length into memory, and trusts its input.

Only reads: the caller decides where entries go and which are refused. Names are returned as checked components, none of
which is `..`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 512
PIECE = 1 << 18
FILE, HARD_LINK, LINK, FOLDER = b"0", b"1", b"2", b"5"
DEVICES = (b"3", b"4", b"6")
"""Character devices, block devices, and pipes."""

_KINDS = (FILE, HARD_LINK, LINK, FOLDER, *DEVICES)
_MAX_EXTENSION = 1 << 20
"""Bytes of one extended header. Real archives with larger ones only contain attributes that are ignored."""
_MAX_EXTENSIONS = 8
"""Extended headers before one entry."""
_MAX_PADDING = 4 << 20
"""Bytes that may follow the end of an archive: tar pads its last record."""
_LATEST = 1 << 40
"""Seconds: far beyond what file systems store, far below what breaks the clock."""


class BadArchive(ValueError):
    """Not a tar archive, an unsupported kind, or truncated."""


class HostileArchive(BadArchive):
    """Contains a path outside of its target or an entry that is not allowed, or exceeds the limits."""


class Budget:
    """Limits on one archive or several together, and what is left of them."""

    def __init__(self, *, entries: int, size: int, name: int, depth: int, into: str) -> None:
        self._entries = entries
        self._size = size
        self._entries_taken = 0
        self._size_taken = 0
        self._name = name
        self._depth = depth
        self._into = into

    def take(self, name: bytes, size: int) -> None:
        """Count one entry and its bytes."""
        if not 0 <= size <= self._size:
            raise HostileArchive(f"{show(name)}: a size of {size}")
        self._entries_taken += 1
        if self._entries_taken > self._entries:
            raise HostileArchive(f"more than {self._entries} entries: make a smaller archive")
        self._size_taken += size
        if self._size_taken > self._size:
            raise HostileArchive(f"more than {self._size} bytes: make a smaller archive")

    def components(self, name: bytes) -> tuple[bytes, ...]:
        """Split a name into components. Raises `HostileArchive` if it is absolute, contains `..`, or exceeds the
        limits."""
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
        """Check the target of a link, which may be any path."""
        if not 0 < len(name) <= self._name or b"\0" in name:
            raise HostileArchive(f"{show(name)!r}: a link to an invalid name")
        return name


class Entry:
    """One checked entry."""

    __slots__ = ("kind", "mode", "modified", "parts", "records", "size", "source", "target")

    def __init__(self, kind: bytes, parts: tuple[bytes, ...], size: int, mode: int, modified: int) -> None:
        self.kind = kind
        self.parts = parts
        """Its path as components below the root. None is empty, is `..` or contains a `/`."""
        self.size = size
        self.mode = mode
        self.modified = modified
        self.target = b""
        """Of a link, as written."""
        self.source: tuple[bytes, ...] = ()
        """Of a hard link: the path of the file, as components."""
        self.records: dict[bytes, bytes] = {}
        """Everything in its extended headers."""

    @property
    def shown(self) -> str:
        return show(b"/".join(self.parts) or b".")


class Reader:
    """Iterates over entries. `content` reads that of the last entry. Reads to the end of the stream."""

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
                self._extension(size)  # applies to the whole archive, and is ignored
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
        # Only files have content, but old archives put some after hard links: it is skipped, within the same limit.
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
        """Returns some content of the last entry; none at its end."""
        if not self._left:
            return b""
        piece = self._read(min(self._left, PIECE))
        if not piece:
            raise BadArchive("the archive is truncated")
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
                raise BadArchive("the archive is truncated")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def _finish(self) -> None:
        """Read the padding of the last record, so that the writer can finish."""
        seen = 0
        while True:
            piece = self._read(PIECE)
            if not piece:
                return
            seen += len(piece)
            if seen > _MAX_PADDING or piece.strip(b"\0"):
                raise HostileArchive("something follows the end of the archive")


def show(name: bytes) -> str:
    """Returns a printable name."""
    text = name[:200].decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


# --- header fields ---


def _field(data: bytes) -> bytes:
    return data.split(b"\0", 1)[0]


def _check_sum(block: bytes) -> None:
    stored = _parse(block[148:156], "checksum")
    expected = sum(block[:148]) + sum(block[156:]) + 8 * 32
    if stored != expected:
        # Some old tars summed signed bytes.
        signed = expected - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
        if stored != signed:
            raise BadArchive("not a tar archive, or a damaged one")


def _parse(data: bytes, what: str) -> int:
    if data[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(data[1:], "big") - (256 ** (len(data) - 1) if data[0] == 0xFF else 0)
    digits = _field(data).strip(b" ")
    if digits.strip(b"01234567"):
        raise _bad(what)
    return int(digits, 8) if digits else 0


def _decimal(data: bytes, what: str) -> int:
    """Returns a whole number of an extended header, without fractions of a second."""
    whole = data.split(b".", 1)[0]
    digits = whole[1:] if whole.startswith(b"-") else whole
    if not digits.isdigit() or len(digits) > 20:
        raise _bad(what)
    return int(whole)


def _records(data: bytes) -> dict[bytes, bytes]:
    """Parses an extended header: repeated `<length> <name>=<value>\\n`."""
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
    return BadArchive(f"not a tar archive, or a damaged one: invalid {what}")
