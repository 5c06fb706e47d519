"""How long to wait before something is tried again: ever longer up to a limit, never quite the same."""

from __future__ import annotations

import os


class Backoff:
    def __init__(self, first: float = 0.05, limit: float = 5.0) -> None:
        self._first = first
        self._limit = limit
        self._next = first

    def wait(self) -> float:
        """Seconds. Between half and all of what it could be, so that many runners do not come all at once."""
        seconds, self._next = self._next, min(self._limit, self._next * 2)
        return seconds * (0.5 + os.urandom(1)[0] / 512)

    def reset(self) -> None:
        self._next = self._first
