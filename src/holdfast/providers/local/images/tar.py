"""Reads tar streams of strangers, entry by entry. It speaks tar itself: `tarfile` holds on to every entry, reads
headers of any length into memory, and believes what it reads.

Only reads: where entries go, and which are refused, is decided elsewhere. Names come out as checked components, none of
which can climb.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from holdfast.boxes.errors import BadArchive, HostileArchive
from holdfast.providers.local.images.limits import ArchiveLimits, Budget

_BLOCK: Final = 512
_PIECE: Final = 1 << 18
_MAX_EXTENSION: Final = 1 << 20
"""Bytes of one extended header."""
_MAX_EXTENSIONS: Final = 8
"""Extended headers before one entry."""
_MAX_PADDING: Final = 4 << 20
"""Bytes that may follow the end of an archive: tar fills its last record."""
_LATEST: Final = 1 << 36
"""Seconds: beyond what file systems keep, below what breaks the clock."""
_ATTRIBUTE: Final = b"SCHILY.xattr."


class Source(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most that many bytes; none at the end."""


class Kind(Enum):
    FILE = b"0"
    HARD_LINK = b"1"
    LINK = b"2"
    CHARACTER_DEVICE = b"3"
    BLOCK_DEVICE = b"4"
    FOLDER = b"5"
    PIPE = b"6"


@dataclass(frozen=True, slots=True)
class Entry:
    kind: Kind
    parts: tuple[bytes, ...]
    """Its place, as components below the root. None of them is `..`, is empty or has a `/`."""
    size: int
    mode: int
    modified: int
    target: bytes = b""
    """Of a link: as it was written. Of a hard link: to be taken apart by `components`."""
    attributes: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return shown(b"/".join(self.parts) or b".")


class TarReader:
    """Iterate it for entries; `content` reads that of the entry which came last. Reads its source to the end."""

    def __init__(self, source: Source, budget: Budget) -> None:
        self._source = source
        self._budget = budget
        self._limits = budget.limits
        self._left = 0
        self._filling = 0

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self._next()) is not None:
            yield entry

    def _next(self) -> Entry | None:
        self._skip_content()
        name: bytes | None = None
        target: bytes | None = None
        known: dict[bytes, bytes] = {}
        for _ in range(_MAX_EXTENSIONS + 1):
            block = self._exactly(_BLOCK)
            if not block.strip(b"\0"):
                self._finish()
                return None
            _check_sum(block)
            kind = block[156:157]
            length = _parse(block[124:136], "size")
            if kind in (b"L", b"K"):
                value = self._extension(length).split(b"\0", 1)[0]
                name, target = (value, target) if kind == b"L" else (name, value)
            elif kind in (b"x", b"X"):
                known.update(self._records(self._extension(length)))
            elif kind == b"g":
                self._extension(length)  # holds for the whole archive: nothing that we take
            else:
                return self._entry(block, kind, known.get(b"path", name), known.get(b"linkpath", target), known, length)
        raise HostileArchive("an archive with more headers than files")

    def _entry(
        self, block: bytes, kind: bytes, name: bytes | None, target: bytes | None, known: dict[bytes, bytes], size: int
    ) -> Entry:
        if name is None:
            name = _field(block[:100])
            if block[257:263] == b"ustar\0" and block[345]:
                name = _field(block[345:500]) + b"/" + name
        if target is None:
            target = _field(block[157:257])
        size = _decimal(known[b"size"], "size") if b"size" in known else size
        modified = _decimal(known[b"mtime"], "time") if b"mtime" in known else _parse(block[136:148], "time")
        if kind in (b"0", b"\0", b"7"):
            kind = b"5" if name.endswith(b"/") else b"0"
        parts = components(name, self._limits)
        try:
            known_kind = Kind(kind)
        except ValueError:
            raise BadArchive(
                f"{shown(name)}: an entry of kind {kind!r}: make the archive without sparse files"
            ) from None
        if not parts and known_kind is not Kind.FOLDER:
            raise HostileArchive(f"{shown(name)!r}: an entry without a name")
        if known_kind in (Kind.LINK, Kind.HARD_LINK) and (
            not target or b"\0" in target or len(target) > self._limits.name
        ):
            raise HostileArchive(f"{shown(name)}: a link to what is no name")
        if not 0 <= size <= self._limits.unpacked:
            raise HostileArchive(f"{shown(name)}: a size of {size}")
        self._budget.take_entry()
        # Other kinds have no content, but old archives put one behind hard links: read past, within the same limit.
        self._budget.take_bytes(size)
        self._left = size
        self._filling = -size % _BLOCK
        mode = _parse(block[100:108], "mode") & 0o7777
        return Entry(known_kind, parts, size, mode, max(0, min(modified, _LATEST)), target, self._attributes(known))

    def _attributes(self, known: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Those that a file of ours may have: its user's own, and none by which an overlay would be led astray."""
        found = {
            name[len(_ATTRIBUTE) :]: value for name, value in known.items() if name.startswith(_ATTRIBUTE + b"user.")
        }
        kept = {name: value for name, value in found.items() if not name.startswith(b"user.overlay.")}
        if len(kept) > self._limits.attributes or any(
            len(value) > self._limits.attribute or len(name) > 255 or b"\0" in name for name, value in kept.items()
        ):
            raise HostileArchive("a file with more attributes than a file system keeps")
        return kept

    def content(self) -> bytes:
        """Some of the content of the entry that was read last; empty at its end."""
        if not self._left:
            return b""
        piece = self._source.read(min(self._left, _PIECE))
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
            raise HostileArchive(f"an extended header of {length} bytes")
        data = self._exactly(length)
        self._exactly(-length % _BLOCK)
        return data

    def _records(self, data: bytes) -> dict[bytes, bytes]:
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
                raise BadArchive("a sparse file: make the archive without them")
            known[name] = value
            at = end
        return known

    def _exactly(self, length: int) -> bytes:
        pieces = []
        while length:
            piece = self._source.read(length)
            if not piece:
                raise BadArchive("the archive is cut short")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def _finish(self) -> None:
        """Take what fills the last record, so that whoever writes the stream gets rid of it."""
        seen = 0
        while piece := self._source.read(_PIECE):
            seen += len(piece)
            if seen > _MAX_PADDING or piece.strip(b"\0"):
                raise HostileArchive("something follows the end of the archive")


def components(name: bytes, limits: ArchiveLimits) -> tuple[bytes, ...]:
    """A name as the steps to it. Raises `HostileArchive` for one that is absolute, climbs, or is longer than sense."""
    if len(name) > limits.name:
        raise HostileArchive(f"a name of {len(name)} bytes")
    if b"\0" in name:
        raise HostileArchive(f"{shown(name)}: a zero byte in a name")
    if name.startswith(b"/"):
        raise HostileArchive(f"{shown(name)}: an absolute name")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise HostileArchive(f"{shown(name)}: leads out of the image")
    if len(parts) > limits.depth:
        raise HostileArchive(f"{shown(name)}: more than {limits.depth} folders deep")
    if any(len(part) > 255 for part in parts):
        raise HostileArchive(f"{shown(name)}: a name of more than 255 bytes")
    return parts


def shown(name: bytes) -> str:
    text = name[:200].decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _field(data: bytes) -> bytes:
    return data.split(b"\0", 1)[0]


def _check_sum(block: bytes) -> None:
    given = _parse(block[148:156], "checksum")
    expected = sum(block[:148]) + sum(block[156:]) + 8 * 32
    if given != expected:
        # Some old tars summed signed bytes.
        signed = expected - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
        if given != signed:
            raise BadArchive(
                "this is no tar archive, or a damaged one",
                hint="a root filesystem tarball, an OCI layout or what docker save writes, compressed or not",
            )


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


def _bad(what: str) -> BadArchive:
    return BadArchive(f"this is no tar archive, or a damaged one: a {what} that is none")
