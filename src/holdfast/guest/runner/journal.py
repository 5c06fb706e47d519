"""What is still to be posted, in order: a little of it in memory, the rest on disk.

A server can be away for hours while an agent works on. What it has not taken beyond a few megabytes goes to files, and
comes back from there. The files have no name, so none is left behind however the runner ends. Only the runner itself
reads them: they outlive the server's absence, not the runner. The agent is of the same user and would like to speak for
the runner, so each entry has a code that only the runner can make, and what has another is not posted.
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
"""Of file systems, or kernels, that make no files without a name."""


def open_nameless(folder: str) -> int:
    """A file without a name. Where there can be none it has one for a moment: what others write there has no code."""
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
    """One file of entries, each after its length and its code. Written at its end, read from its start."""

    __slots__ = ("_key", "descriptor", "read", "written")

    def __init__(self, folder: str) -> None:
        self.descriptor = open_nameless(folder)
        self._key = os.urandom(32)
        self.read = 0
        self.written = 0

    def _code(self, place: int, entry: bytes) -> bytes:
        """Of an entry at its place: one that was moved has another."""
        return blake2b(entry, digest_size=_CODE, key=self._key, salt=place.to_bytes(16, "big")).digest()

    def add(self, entry: bytes) -> None:
        """Raises OSError where the disk has no room, and has then changed nothing."""
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
        """The next entry; None where it cannot be read as it was written."""
        place = self.read
        prefix = os.pread(self.descriptor, _PREFIX, place)
        length = int.from_bytes(prefix[:4], "big")
        if len(prefix) < _PREFIX or place + _PREFIX + length > self.written:
            self.read = self.written
            return None
        entry = os.pread(self.descriptor, length, place + _PREFIX)
        self.read += _PREFIX + length
        if not _operator._compare_digest(self._code(place, entry), prefix[4:]):
            self.read = self.written  # nothing after it can be trusted to begin where it seems to
            return None
        return entry

    def close(self) -> None:
        os.close(self.descriptor)


class Journal:
    """A queue of entries, as bytes. Takes what it is given, always; whoever fills it asks `full` before going on."""

    def __init__(self, folder: str, memory: int = 2 << 20, segment: int = 16 << 20, limit: int = 1 << 30) -> None:
        self.lost = 0
        """Segments of which the disk did not give back what it was given."""
        self.disk_problem = ""
        """Why the disk took nothing, where it did not."""
        self._folder = folder
        self._memory = memory
        self._segment = segment
        self._limit = limit
        self._first: deque[bytes] = deque()
        self._first_size = 0
        self._segments: deque[Segment] = deque()
        self._last: deque[bytes] = deque()
        """After what is on disk: what did not fit there."""
        self._last_size = 0

    def __len__(self) -> int:
        """Zero where it is empty; about how many bytes there are otherwise."""
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
        """The next entries, at least one where there is one: about so many bytes, and no more than so many."""
        taken: list[bytes] = []
        while len(taken) < count:
            entry = self._next(size if taken else None)
            if entry is None:
                break
            taken.append(entry)
            size -= len(entry)
        return taken

    def _next(self, room: int | None) -> bytes | None:
        """The next entry; None where there is none, or where it is larger than the room."""
        if not self._first:
            self._refill()
        if not self._first or (room is not None and len(self._first[0]) > room):
            return None
        entry = self._first.popleft()
        self._first_size -= len(entry)
        return entry

    def _refill(self) -> None:
        """From disk, an entry at a time; from what did not fit there, all of it."""
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
        """Let go of segments that were read whole."""
        while self._segments and self._segments[0].read >= self._segments[0].written:
            self._segments.popleft().close()

    def close(self) -> None:
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._first.clear()
        self._last.clear()
        self._first_size = self._last_size = 0
