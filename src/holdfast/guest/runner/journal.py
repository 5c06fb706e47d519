"""What is still to be posted, in order: a little in memory, the rest on disk.

A server can be away for hours while an agent continues. Beyond a few megabytes, entries go to files and are read back
later. The files have no names, so none is left behind however the runner ends. Only the runner reads them, and they do
not outlive it. The agent runs as the same user and might try to impersonate the runner. So each entry has a code that
only the runner can make, and entries with a wrong code are not posted.
"""

from __future__ import annotations

import _operator
import errno
import os
from _blake2 import blake2b  # without all that hashlib loads
from collections import deque

_CODE = 16
_PREFIX = 4 + _CODE
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""Errors of file systems or kernels that do not support files without a name."""


def open_nameless(folder: str) -> int:
    """Open a file without a name. If that is not supported, it has one for a moment; what others write there has no
    code.
    """
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
    path = "%s/journal-%s" % (folder, os.urandom(6).hex())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    return descriptor


class Segment:
    """One file of entries, each preceded by its length and its code. Written at its end, read from its start."""

    __slots__ = ("_key", "descriptor", "read", "written")

    def __init__(self, folder: str) -> None:
        self.descriptor = open_nameless(folder)
        self._key = os.urandom(32)
        self.read = 0
        self.written = 0

    def _code(self, place: int, entry: bytes) -> bytes:
        """Returns the code of an entry at its position. A moved entry would need another."""
        return blake2b(entry, digest_size=_CODE, key=self._key, salt=place.to_bytes(16, "big")).digest()

    def add(self, entry: bytes) -> None:
        """Add an entry. Raises OSError if the disk is full, and then changes nothing."""
        data = len(entry).to_bytes(4, "big") + self._code(self.written, entry) + entry
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self.descriptor, data[done:] if done else data, self.written + done)
        except OSError:
            os.ftruncate(self.descriptor, self.written)
            raise
        self.written += len(data)

    def take(self) -> bytes | None:
        """Returns the next entry, or None if it differs from what was written."""
        place = self.read
        prefix = os.pread(self.descriptor, _PREFIX, place)
        length = int.from_bytes(prefix[:4], "big")
        if len(prefix) < _PREFIX or place + _PREFIX + length > self.written:
            self.read = self.written
            return None
        entry = os.pread(self.descriptor, length, place + _PREFIX)
        self.read += _PREFIX + length
        if not _operator._compare_digest(self._code(place, entry), prefix[4:]):
            self.read = self.written  # the start of what follows cannot be trusted
            return None
        return entry

    def close(self) -> None:
        os.close(self.descriptor)


class Journal:
    """A queue of encoded entries. It always accepts more; the caller that fills it should check `full`."""

    def __init__(self, folder: str, memory: int = 2 << 20, segment: int = 16 << 20, limit: int = 1 << 30) -> None:
        self.lost = 0
        """How many segments could not be read back from disk."""
        self.disk_problem = ""
        """Why the last write to disk failed, or empty."""
        self._folder = folder
        self._memory = memory
        self._segment = segment
        self._limit = limit
        self._first: deque[bytes] = deque()
        self._first_size = 0
        self._segments: deque[Segment] = deque()
        self._last: deque[bytes] = deque()
        """Entries that come after those on disk and did not fit there."""
        self._last_size = 0

    def __len__(self) -> int:
        """About how many bytes there are; zero if empty."""
        return self._first_size + self._last_size + self.on_disk

    @property
    def on_disk(self) -> int:
        return sum([each.written - each.read for each in self._segments])

    @property
    def full(self) -> bool:
        return self._last_size >= self._memory or self.on_disk >= self._limit

    def add(self, entry: bytes) -> None:
        if not self._segments and not self._last and self._first_size < self._memory:
            self._first.append(entry)
            self._first_size += len(entry)
        elif self._last or not self._write(entry):
            self._last.append(entry)
            self._last_size += len(entry)

    def _write(self, entry: bytes) -> bool:
        try:
            if not self._segments or self._segments[-1].written >= self._segment:
                self._segments.append(Segment(self._folder))
            self._segments[-1].add(entry)
        except OSError as error:
            self.disk_problem = error.strerror or "the disk failed"
            self._clear()
            return False
        self.disk_problem = ""
        return True

    def take(self, size: int, count: int) -> list[bytes]:
        """Returns the next entries: at least one if there is any, about `size` bytes, and at most `count`."""
        taken: list[bytes] = []
        while len(taken) < count:
            entry = self._next(size if taken else None)
            if entry is None:
                break
            taken.append(entry)
            size -= len(entry)
        return taken

    def _next(self, room: int | None) -> bytes | None:
        """Returns the next entry, or None if there is none or it is larger than `room`."""
        if not self._first:
            self._refill()
        if not self._first or (room is not None and len(self._first[0]) > room):
            return None
        entry = self._first.popleft()
        self._first_size -= len(entry)
        return entry

    def _refill(self) -> None:
        """Refill memory: one entry at a time from disk, then everything that did not fit there."""
        while self._segments:
            segment = self._segments[0]
            if segment.read < segment.written:
                try:
                    entry = segment.take()
                except OSError:
                    entry = None
                    segment.read = segment.written
                if entry is not None:
                    self._first.append(entry)
                    self._first_size += len(entry)
                    return
                self.lost += 1
            self._clear()
        self._first, self._last = self._last, self._first
        self._first_size, self._last_size = self._last_size, 0

    def _clear(self) -> None:
        """Close segments that were read completely."""
        while self._segments and self._segments[0].read >= self._segments[0].written:
            self._segments.popleft().close()

    def close(self) -> None:
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._first.clear()
        self._last.clear()
        self._first_size = self._last_size = 0
