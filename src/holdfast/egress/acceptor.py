"""Acceptor from listeners that boxes hold, too, without ever being made to wait there.

A listener's flags are shared by all who have it. Whoever took a box over can let it block again, right before it is
asked for a connection, and take that connection away: there is no way to ask that cannot be made to wait. So somebody
watches, and ends a listener that does not answer.
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
"""In a row that the same call has to be seen waiting. On a busy machine one look proves nothing."""


class Acceptor:
    """Of one event loop. Owns the thread that watches, from the first call to `close`."""

    def __init__(self) -> None:
        self._count = 0
        self._now: tuple[int, socket.socket] | None = None
        """The call that is under way, by number."""
        self._end = Event()
        self._watcher: Thread | None = None

    def accept(self, listener: socket.socket) -> socket.socket:
        """Raises `BlockingIOError` where nobody waits, `OSError` where nobody will: the listener is dead."""
        if self._watcher is None:
            self._watcher = Thread(target=self._watch, name="holdfast-accepting", daemon=True)
            self._watcher.start()
        os.set_blocking(listener.fileno(), False)  # what can be done about it without a thread
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
                    listener.shutdown(socket.SHUT_RDWR)  # which wakes whoever waits there

    def close(self) -> None:
        """Closing twice does nothing. Not while a call is under way."""
        self._end.set()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.join()
