"""Wake-ups: tells whoever follows streams what was committed.

The store announces its own commits here. A store that several servers share also announces what the others committed,
as its database tells it (PostgreSQL by LISTEN and NOTIFY). Such a message need not carry bytes: a change without them
makes its watchers read from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.threads.store import Watcher
from holdfast.threads.streams import Change

log = logging.getLogger(__name__)


class ChangeFeed:
    """Watchers of single streams, by the id of the stream, and observers of all. Belongs to the event loop."""

    def __init__(self) -> None:
        self._watchers: dict[int, list[Watcher]] = {}
        self._observers: list[Watcher] = []

    def watch(self, stream: int, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every later change of a stream, until the stream is deleted. Returns how to stop."""
        self._watchers.setdefault(stream, []).append(watcher)

        def stop() -> None:
            watchers = self._watchers.get(stream, [])
            if watcher in watchers:
                watchers.remove(watcher)
                if not watchers:
                    del self._watchers[stream]

        return stop

    def observe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every later change of every stream. Returns how to stop."""
        self._observers.append(watcher)

        def stop() -> None:
            if watcher in self._observers:
                self._observers.remove(watcher)

        return stop

    def is_followed(self, stream: int) -> bool:
        """Whether a change of this stream has anybody to be told to."""
        return bool(self._observers) or stream in self._watchers

    def announce(self, stream: int, change: Change) -> None:
        """Tell everybody who follows a stream of a change that is durable. Changes of one stream come in order."""
        watchers = self._watchers.pop(stream, []) if change.deleted else self._watchers.get(stream, [])
        for watcher in (*watchers, *self._observers):
            try:
                watcher(change)
            except Exception:
                log.exception("a watcher of stream %s failed", change.path)
