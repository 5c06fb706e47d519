"""Package files on disk, by the SHA-256 of their content. The file that was used longest ago makes room for a new one.

Only the proxy writes here, with what it fetched itself. An entry binds a URL to a digest; every file is checked again
while it is read, so a damaged one is never served as a whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Final

_PIECE: Final = 1 << 20
MOST_FILES: Final = 50_000
_MOST_ENTRY: Final = 16 << 10
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_ALGORITHMS: Final = ("sha512", "sha384", "sha256", "sha1")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Digest:
    """What a registry says the content of a file is."""

    algorithm: str
    value: str
    """In hexadecimal."""

    @classmethod
    def of(cls, algorithm: str, value: str) -> Digest | None:
        """Returns None for an algorithm that is not known here, or a value that it cannot have."""
        value = value.lower()
        if algorithm not in _ALGORITHMS or not re.fullmatch(r"[0-9a-f]+", value):
            return None
        return cls(algorithm, value) if len(value) == hashlib.new(algorithm).digest_size * 2 else None

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file in the cache."""

    url: str
    digest: str
    """The SHA-256 of its content."""
    size: int
    checked: str
    """The digest of the registry that the content was compared with, or nothing."""


class Damaged(Exception):
    """A file in the cache is not what it was."""


class PackageCache:
    """Holds at most `most` bytes. `open` comes first; one process at a time has the folder."""

    def __init__(self, folder: Path, most: int, *, most_files: int = MOST_FILES) -> None:
        self._folder = folder
        self._most = most
        self._most_files = most_files
        self._files: OrderedDict[str, PackageFile] = OrderedDict()
        """By URL, the one that was used longest ago first."""
        self._uses: Counter[str] = Counter()
        """How many URLs have a content."""
        self._size = 0
        self._reserved = 0
        """Bytes of files that are being written."""

    async def open(self) -> None:
        await asyncio.to_thread(self._load)

    @property
    def size(self) -> int:
        return self._size

    def find(self, url: str, digest: Digest | None) -> PackageFile | None:
        """Returns the file of a URL, unless the registry now says that its content is another one."""
        found = self._files.get(url)
        if found is None or (digest is not None and found.checked != str(digest)):
            return None
        self._files.move_to_end(url)
        with suppress(OSError):
            os.utime(self._entry(url))  # the order survives a restart
        return found

    async def read(self, file: PackageFile) -> AsyncIterator[bytes]:
        """Yields the content. Raises `Damaged` before the last piece if it is not what was written."""
        try:
            opened = await asyncio.to_thread(open, self._blob(file.digest), "rb")
        except OSError:
            self._forget(file.url)
            raise Damaged(f"{file.url} is gone from the package cache") from None
        with opened:
            hashed, left = hashlib.sha256(), file.size
            while left > 0:
                piece = await asyncio.to_thread(opened.read, min(_PIECE, left))
                hashed.update(piece)
                left -= len(piece)
                if not piece or (left == 0 and hashed.hexdigest() != file.digest):
                    self._forget(file.url)
                    raise Damaged(f"{file.url} is damaged in the package cache")
                yield piece

    def begin(self, url: str, size: int, digest: Digest | None) -> NewFile | None:
        """Returns a file to write, or None if there is no room for it."""
        # At most half may be files that are not complete: a box cannot empty the cache by downloads that never end.
        if size <= 0 or self._reserved + size > self._most // 2:
            return None
        try:
            descriptor, path = mkstemp(dir=self._folder / "partial")
        except OSError as error:
            log.warning("cannot keep %s: %s", url, error)
            return None
        self._reserved += size
        return NewFile(self, url, size, digest, descriptor, Path(path))

    # --- files ---

    def _blob(self, digest: str) -> Path:
        return self._folder / "files" / digest

    def _entry(self, url: str) -> Path:
        return self._folder / "urls" / hashlib.sha256(url.encode()).hexdigest()

    def release(self, size: int) -> None:
        self._reserved -= size

    def keep(self, file: PackageFile, path: Path) -> None:
        """Take over a complete file. Raises OSError."""
        self._forget(file.url)
        while self._files and (self._size + file.size > self._most or len(self._files) >= self._most_files):
            self._forget(next(iter(self._files)))
        path.replace(self._blob(file.digest))
        entry = self._entry(file.url)
        temporary = self._folder / "partial" / entry.name
        temporary.write_text(json.dumps([file.url, file.digest, file.size, file.checked]))
        temporary.replace(entry)
        self._add(file)

    def _add(self, file: PackageFile) -> None:
        self._files[file.url] = file
        self._uses[file.digest] += 1
        if self._uses[file.digest] == 1:
            self._size += file.size

    def _forget(self, url: str) -> None:
        file = self._files.pop(url, None)
        if file is None:
            return
        with suppress(OSError):
            self._entry(url).unlink()
        self._uses[file.digest] -= 1
        if self._uses[file.digest] <= 0:
            del self._uses[file.digest]
            self._size -= file.size
            with suppress(OSError):
                self._blob(file.digest).unlink()

    def _load(self) -> None:
        """Read the entries, oldest first, and delete what belongs to none."""
        shutil.rmtree(self._folder / "partial", ignore_errors=True)
        for name in ("partial", "files", "urls"):
            (self._folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for entry, file in self._entries():
            blob = self._blob(file.digest)
            if entry == self._entry(file.url) and blob.is_file() and blob.stat().st_size == file.size:
                self._add(file)
            else:
                entry.unlink(missing_ok=True)
        for blob in (self._folder / "files").iterdir():
            if blob.name not in self._uses:
                blob.unlink(missing_ok=True)
        while self._files and (self._size > self._most or len(self._files) > self._most_files):
            self._forget(next(iter(self._files)))

    def _entries(self) -> Iterator[tuple[Path, PackageFile]]:
        for path in sorted((self._folder / "urls").iterdir(), key=lambda path: path.stat().st_mtime_ns):
            try:
                with path.open("rb") as opened:
                    url, digest, size, checked = json.loads(opened.read(_MOST_ENTRY))
                if not _HEX.fullmatch(digest) or not isinstance(size, int):
                    raise ValueError(digest)
            except (OSError, ValueError, TypeError):
                path.unlink(missing_ok=True)
                continue
            yield path, PackageFile(str(url), digest, size, str(checked))


class NewFile:
    """A file that is being written. Whoever began it calls `discard` in the end, also after `keep`."""

    def __init__(
        self, cache: PackageCache, url: str, size: int, digest: Digest | None, descriptor: int, path: Path
    ) -> None:
        self._cache = cache
        self._url = url
        self._size = size
        self._digest = digest
        self._path = path
        self._file = os.fdopen(descriptor, "wb")
        self._waiting = bytearray()
        self._hashes = [hashlib.sha256()]
        if digest is not None and digest.algorithm != "sha256":
            self._hashes.append(hashlib.new(digest.algorithm))
        self._written = 0
        self._is_over = False

    async def add(self, piece: bytes) -> None:
        """Raises OSError."""
        self._waiting += piece
        if len(self._waiting) >= _PIECE:
            await asyncio.to_thread(self._write)

    async def keep(self) -> bool:
        """Put the whole file into the cache, if it is what the registry says. Raises OSError."""
        await asyncio.to_thread(self._write)
        self._file.close()
        found = {each.name: each.hexdigest() for each in self._hashes}
        if self._written != self._size or (
            self._digest is not None and found[self._digest.algorithm] != self._digest.value
        ):
            return False
        checked = "" if self._digest is None else str(self._digest)
        self._cache.keep(PackageFile(self._url, found["sha256"], self._size, checked), self._path)
        return True

    def discard(self) -> None:
        """Free what the file holds. Twice has no effect."""
        if not self._is_over:
            self._is_over = True
            self._cache.release(self._size)
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._path.unlink()

    def _write(self) -> None:
        for each in self._hashes:
            each.update(self._waiting)
        self._file.write(self._waiting)
        self._written += len(self._waiting)
        self._waiting.clear()
