"""Which guests are known to live, by handles that the kernel gave out for them: asking one disturbs nobody.

Connecting tells it too, and wakes the guest each time. A handle can say too little, never too much: where there is
none, or its process has ended, somebody may have started the box again, and connecting tells.
"""

from __future__ import annotations

import os
import socket
from threading import Lock
from typing import Final

from holdfast.providers.local.link import has_ended, is_guest, peer_handle, peer_of

_MOST: Final = 1024


class Pulses:
    """Owns a descriptor for each guest that it knows, until `forget` or `close`. May be used from any thread."""

    def __init__(self) -> None:
        self._handles: dict[str, int] = {}
        self._lock = Lock()  # nobody may look at a descriptor that is closed meanwhile, and then another's

    def beats(self, box: str) -> bool:
        """Whether its guest is known to live now."""
        with self._lock:
            handle = self._handles.get(box)
            if handle is None:
                return False
            if not has_ended(handle):
                return True
            del self._handles[box]
            os.close(handle)
            return False

    def take(self, box: str, connection: socket.socket) -> None:
        """Know the guest at the other end of a connection, where the kernel tells.

        While a box comes up it may be whoever starts the guest, and lives a little longer than it: nobody to know.
        """
        try:
            if not is_guest(peer_of(connection)):
                return
            handle = peer_handle(connection)
        except OSError:
            return
        with self._lock:
            self._drop(box)
            while len(self._handles) >= _MOST:
                self._drop(next(iter(self._handles)))
            self._handles[box] = handle

    def forget(self, box: str) -> None:
        with self._lock:
            self._drop(box)

    def _drop(self, box: str) -> None:
        handle = self._handles.pop(box, None)
        if handle is not None:
            os.close(handle)

    def close(self) -> None:
        """Closing twice does nothing."""
        with self._lock:
            for box in list(self._handles):
                self._drop(box)
