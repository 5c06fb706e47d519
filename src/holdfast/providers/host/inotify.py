"""Notifies when a file has grown. The standard library has no inotify, so this calls three functions of libc."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.time_limit import time_limit

_IN_MODIFY: Final = 0x2
_IN_CLOSE_WRITE: Final = 0x8
_HEADER: Final = struct.Struct("iIII")


class Change:
    """Set when the file changed. To use it: read the file, clear, read again, wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float) -> None:
        """Wait until something changed, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with time_limit(seconds):
                await self._event.wait()


class FileWatch:
    """One inotify instance on one event loop, for any number of files. Without inotify, `wait` always times out."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._changes: dict[int, list[Change]] = {}
        if self._descriptor >= 0:
            asyncio.get_running_loop().add_reader(self._descriptor, self._on_events)

    @contextlib.contextmanager
    def changes(self, *paths: Path) -> Iterator[Change]:
        """Yields a `Change` that is set on changes of these files until the end of the block."""
        change = Change()
        watches = []
        for path in paths:
            if self._descriptor < 0:
                break
            # The same file has the same watch number, which its watchers share.
            watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_MODIFY | _IN_CLOSE_WRITE)
            if watch >= 0:
                self._changes.setdefault(watch, []).append(change)
                watches.append(watch)
        try:
            yield change
        finally:
            for watch in watches:
                others = self._changes.get(watch, [])
                if change in others:
                    others.remove(change)
                if not others and self._changes.pop(watch, None) is not None and self._descriptor >= 0:
                    self._libc.inotify_rm_watch(self._descriptor, watch)

    def _on_events(self) -> None:
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            watch, _, _, length = _HEADER.unpack_from(data, position)
            position += _HEADER.size + length
            for change in self._changes.get(watch, ()):
                change.set()

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
