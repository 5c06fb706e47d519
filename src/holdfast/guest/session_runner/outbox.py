"""What a runner has to say to the hub, in order, until the hub has taken it.

A little of it is on its way, and is sent again after a loss of the connection. The rest waits in a journal: in memory
first, then in files without a name, which only this process can write (`holdfast.guest.runner.journal`).
"""

from __future__ import annotations

import threading
from collections import deque

from holdfast.guest.hub_messages import numbered
from holdfast.guest.runner.journal import Journal

_WINDOW = 512
_WINDOW_BYTES = 1 << 20


class Outbox:
    """Messages are added by any thread, and sent by one."""

    def __init__(self, folder: str, memory: int = 2 << 20, limit: int = 256 << 20) -> None:
        self._journal = Journal(folder, memory=memory, limit=limit)
        self._changed = threading.Condition()
        self._closed = False
        self._count = 0
        self._on_way: deque[tuple[int, str]] = deque()
        self._on_way_bytes = 0
        self._sent = 0
        """How many of them were sent on this connection."""

    @property
    def lost(self) -> int:
        """How many parts of the journal could not be read back."""
        return self._journal.lost

    def add(self, text: str) -> None:
        """Add a message. Waits if too many wait already."""
        with self._changed:
            while self._journal.full and not self._closed:
                self._changed.wait()
            self._journal.add(text.encode())

    def next(self) -> str | None:
        """Returns the next message to send on this connection, or None if there is none now."""
        with self._changed:
            if self._sent == len(self._on_way) and (len(self._on_way) < _WINDOW and self._on_way_bytes < _WINDOW_BYTES):
                for each in self._journal.take(_WINDOW_BYTES, 1):
                    self._count += 1
                    text = numbered(self._count, each.decode())
                    self._on_way.append((self._count, text))
                    self._on_way_bytes += len(text)
                self._changed.notify_all()
            if self._sent == len(self._on_way):
                return None
            text = self._on_way[self._sent][1]
            self._sent += 1
            return text

    def acknowledge(self, number: int) -> None:
        """The hub has taken all messages up to this number."""
        with self._changed:
            while self._on_way and self._on_way[0][0] <= number:
                self._on_way_bytes -= len(self._on_way.popleft()[1])
                self._sent = max(0, self._sent - 1)

    @property
    def acknowledged(self) -> int:
        """How many messages the hub has taken."""
        with self._changed:
            return self._count - len(self._on_way)

    def start_again(self) -> None:
        """A new connection: what was not acknowledged is sent again."""
        with self._changed:
            self._sent = 0

    @property
    def all_sent(self) -> bool:
        """Whether everything was sent on this connection, acknowledged or not."""
        with self._changed:
            return self._sent == len(self._on_way) and not len(self._journal)

    @property
    def empty(self) -> bool:
        """Whether the hub has taken everything."""
        with self._changed:
            return not self._on_way and not len(self._journal)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
