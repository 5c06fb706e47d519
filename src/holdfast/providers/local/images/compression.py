"""Reads untrusted compressed streams piece by piece: gzip, bzip2, xz, and zstd if a module for it is available.

Never returns more at once than requested, and no more in total than honest data could decompress to.
"""

from __future__ import annotations

import bz2
import hashlib
import importlib
import lzma
import zlib
from typing import Any, Final, Protocol

from holdfast.api.errors.boxes import BadArchive, HostileArchive, Unsupported
from holdfast.providers.local.images.limits import ArchiveLimits

_PIECE: Final = 1 << 18
_LONGEST_MAGIC: Final = 6
_ZSTD_MODULES: Final = ("compression.zstd", "backports.zstd")


class Source(Protocol):
    def read(self, size: int, /) -> bytes:
        """Returns at most this many bytes; none at the end."""


class _Decompressor(Protocol):
    """The interface of those in bz2 and lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """Adapts zlib to that interface."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class Plain:
    """A stream of which some bytes were read ahead, to detect its format."""

    def __init__(self, source: Source, ahead: bytes = b"") -> None:
        self._source = source
        self._ahead = ahead

    def read(self, size: int, /) -> bytes:
        if self._ahead:
            piece, self._ahead = self._ahead[:size], self._ahead[size:]
            return piece
        return self._source.read(size)


class Measured:
    """A stream that is hashed and counted as it is read, and fails beyond a limit."""

    def __init__(self, source: Source, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._hash = hashlib.sha256()
        self.size = 0

    def read(self, size: int, /) -> bytes:
        piece = self._source.read(size)
        self.size += len(piece)
        if self.size > self._limit:
            raise HostileArchive(f"the archive is more than {self._limit} bytes long")
        self._hash.update(piece)
        return piece

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class Decompressed:
    """The content of a compressed stream. Concatenated streams are one, as in the usual programs."""

    def __init__(self, source: Source, name: str, limits: ArchiveLimits) -> None:
        self._source = source
        self._name = name
        self._limits = limits
        self._inner = _decompressor(name, limits)
        self._pending = b""
        self._taken = 0
        self._output = 0
        self._ended = False

    def read(self, size: int, /) -> bytes:
        while not self._ended:
            if self._inner.eof:
                if not self._begin_next():
                    break
                continue
            data = b""
            if self._inner.needs_input:
                data, self._pending = self._pending or self._take(), b""
                if not data:
                    raise BadArchive(f"the {self._name} stream is truncated")
            try:
                piece = self._inner.decompress(data, size)
            except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
                raise BadArchive(f"the {self._name} stream cannot be read: {error}") from None
            except MemoryError:
                raise HostileArchive(f"the {self._name} stream asks for more memory than there is for it") from None
            except Exception as error:  # each zstd module has its own error
                raise BadArchive(f"the {self._name} stream cannot be read: {error}") from None
            if piece:
                self._count(len(piece))
                return piece
        return b""

    def _begin_next(self) -> bool:
        """Continue after the end of one stream: with another, or with padding."""
        rest = self._inner.unused_data or self._take()
        while rest and not rest.strip(b"\0"):
            rest = self._take()
        if not rest:
            self._ended = True
            return False
        self._pending = rest.lstrip(b"\0")
        self._inner = _decompressor(self._name, self._limits)
        return True

    def _take(self) -> bytes:
        data = self._source.read(_PIECE)
        self._taken += len(data)
        return data

    def _count(self, count: int) -> None:
        self._output += count
        if self._output > self._limits.unsuspicious and self._output > self._limits.ratio * self._taken:
            raise HostileArchive(f"the {self._name} stream becomes more than {self._limits.ratio} times as long")


def decompressed(source: Source, limits: ArchiveLimits) -> Source:
    """Returns the stream itself if it is not compressed, else its content. Only one level is decompressed."""
    head = b""
    while len(head) < _LONGEST_MAGIC and (more := source.read(_LONGEST_MAGIC - len(head))):
        head += more
    name = _compression(head)
    whole = Plain(source, head)
    return whole if name is None else Decompressed(whole, name, limits)


def _compression(head: bytes) -> str | None:
    for magic, name in (
        (b"\x1f\x8b", "gzip"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh", "bzip2"),
    ):
        if head.startswith(magic):
            return name
    return None


def _decompressor(name: str, limits: ArchiveLimits) -> _Decompressor:
    if name == "gzip":
        return _Gzip()
    if name == "xz":
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=limits.memory)
    if name == "bzip2":
        return bz2.BZ2Decompressor()
    return _zstd()


def _zstd() -> _Decompressor:
    for name in _ZSTD_MODULES:
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        made: _Decompressor = module.ZstdDecompressor()
        return made
    raise Unsupported(
        "this Python does not speak zstd",
        hint="pip install backports.zstd, or recompress the archive: zstd -dc ARCHIVE | gzip > ARCHIVE.tar.gz",
    )
