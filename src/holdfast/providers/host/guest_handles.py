"""Tracks which guests are alive with process descriptors of the kernel, which does not wake a guest.

A connection would also tell, but wakes the guest each time. A live descriptor is proof that the guest is alive. Without
one, or after its process has ended, another process may have started the box again, and only a connection tells.
"""

from __future__ import annotations

import os
import socket
from threading import Lock
from typing import Final

from holdfast.providers.host.guest_client import has_ended, is_ending, is_guest, peer_handle, peer_of

_MOST: Final = 1024


class Pulses:
    """Owns a descriptor for each known guest until `forget` or `close`. Thread-safe."""

    def __init__(self) -> None:
        self._handles: dict[str, tuple[int, int]] = {}
        """By box: a descriptor of its guest's process, and the process's number."""
        self._lock = Lock()  # nobody may look at a descriptor that is closed meanwhile, and then another's

    def beats(self, box: str) -> bool:
        """Whether its guest is known to live now."""
        with self._lock:
            if box not in self._handles:
                return False
            handle, pid = self._handles[box]
            # In this order: while the process has not ended, its number is nobody else's.
            ending = is_ending(pid)
            if not has_ended(handle):
                return not ending
            self._drop(box)
            return False

    def take(self, box: str, connection: socket.socket) -> None:
        """Know the guest at the other end of a connection, where the kernel tells.

        While a box comes up it may be whoever starts the guest, and lives a little longer than it: nobody to know.
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
        """Closing twice does nothing."""
        with self._lock:
            for box in list(self._handles):
                self._drop(box)
