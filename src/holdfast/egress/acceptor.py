"""Accepts connections on listeners that are shared with boxes, without blocking forever.

A listener's flags are shared by all processes that have it. A hostile box can make it blocking right before `accept`
and take the pending connection away, and no call is safe from that. So a thread watches, and shuts down a listener
that blocks.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from threading import Event, Thread
from typing import Final

_LOOK_SECONDS: Final = 0.5
_TICK_SECONDS: Final = 0.1
_TICKS: Final = 5
"""Consecutive checks in which the same call has to be waiting. On a busy machine, one check proves nothing."""


class Acceptor:
    """The acceptor of one event loop. Owns the watching thread from the first call to `close`."""

    def __init__(self) -> None:
        self._count = 0
        self._now: tuple[int, socket.socket] | None = None
        """The current call, with its number."""
        self._end = Event()
        self._watcher: Thread | None = None

    def accept(self, listener: socket.socket) -> socket.socket:
        """Raises `BlockingIOError` if no connection is pending, and `OSError` if the listener is dead."""
        if self._watcher is None:
            self._watcher = Thread(target=self._watch, name="holdfast-accepting", daemon=True)
            self._watcher.start()
        os.set_blocking(listener.fileno(), False)  # makes blocking unlikely; the watching thread handles the rest
        self._count += 1
        self._now = (self._count, listener)
        try:
            client, _ = listener.accept()
        finally:
            self._now = None
        return client

    def _watch(self) -> None:
        seen, ticks = 0, 0
        while not self._end.wait(_TICK_SECONDS if seen else _LOOK_SECONDS):
            now = self._now
            if now is None:
                seen = 0
                continue
            number, listener = now
            ticks = ticks + 1 if number == seen else 0
            seen = number
            if ticks >= _TICKS:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # this wakes the blocked call

    def close(self) -> None:
        """Must not be called during `accept`. Closing twice has no effect."""
        self._end.set()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.join()
