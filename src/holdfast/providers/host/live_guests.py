"""Tracks which guests are alive by process descriptors, so that asking does not wake a guest.

A connection to the guest would also tell, but it wakes the guest each time. A process descriptor proves that the guest
is alive. Without one, or after that process has ended, only a connection can tell: another process may have started the
box again.
"""

from __future__ import annotations

import os
import socket
from threading import Lock
from typing import Final

from holdfast.providers.host.guest_client import has_ended, is_ending, is_guest, peer_handle, peer_of

_MOST: Final = 1024


class LiveGuests:
    """Owns a descriptor for each known guest until `forget` or `close`. Thread-safe."""

    def __init__(self) -> None:
        self._handles: dict[str, tuple[int, int]] = {}
        """By box: a process descriptor of its guest, and the process id."""
        self._lock = Lock()  # a descriptor that another thread closes could be reused while it is examined

    def knows(self, box: str) -> bool:
        """Whether the guest of this box is known to be alive. False means that only a connection can tell."""
        with self._lock:
            if box not in self._handles:
                return False
            handle, pid = self._handles[box]
            # In this order: the process id cannot be reused before the process has ended.
            ending = is_ending(pid)
            if not has_ended(handle):
                return not ending
            self._drop(box)
            return False

    def add(self, box: str, connection: socket.socket) -> None:
        """Remember the guest at the other end of a connection, if the kernel identifies it.

        While a box starts, the other end may be the process that starts the guest. It outlives the guest a little, so
        it is not remembered.
        """
        try:
            pid = peer_of(connection)
            if not is_guest(pid):
                return
            handle = peer_handle(connection)
        except OSError:
            return
        with self._lock:
            self._drop(box)
            while len(self._handles) >= _MOST:
                self._drop(next(iter(self._handles)))
            self._handles[box] = (handle, pid)

    def forget(self, box: str) -> None:
        with self._lock:
            self._drop(box)

    def _drop(self, box: str) -> None:
        known = self._handles.pop(box, None)
        if known is not None:
            os.close(known[0])

    def close(self) -> None:
        """Closing twice has no effect."""
        with self._lock:
            for box in list(self._handles):
                self._drop(box)
