"""How long to wait before a retry: longer each time up to a limit, with jitter."""

from __future__ import annotations

import os


class Backoff:
    def __init__(self, first: float = 0.05, limit: float = 5.0) -> None:
        self._first = first
        self._limit = limit
        self._next = first

    def wait(self) -> float:
        """Returns seconds, between half and all of the current wait, so that many runners do not retry at once."""
        seconds, self._next = self._next, min(self._limit, self._next * 2)
        return seconds * (0.5 + os.urandom(1)[0] / 512)

    def reset(self) -> None:
        self._next = self._first
