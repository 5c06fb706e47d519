"""Wake-ups: notifies the followers of streams of commits.

A store announces its own commits here. A store that several servers share also announces the commits of the others,
which it learns from its database (PostgreSQL: LISTEN and NOTIFY). Such a change need not carry bytes: without them,
watchers read from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.threads.store import Watcher
from holdfast.threads.streams import Change

log = logging.getLogger(__name__)


class ChangeFeed:
    """Watchers of single streams, by stream id, and observers of all streams. Must be used on the event loop."""

    def __init__(self) -> None:
        self._watchers: dict[int, list[Watcher]] = {}
        self._observers: list[Watcher] = []

    def watch(self, stream: int, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every later change of a stream until it is deleted. Returns a function that stops it."""
        self._watchers.setdefault(stream, []).append(watcher)

        def stop() -> None:
            watchers = self._watchers.get(stream, [])
            if watcher in watchers:
                watchers.remove(watcher)
                if not watchers:
                    del self._watchers[stream]

        return stop

    def observe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every later change of every stream. Returns a function that stops it."""
        self._observers.append(watcher)

        def stop() -> None:
            if watcher in self._observers:
                self._observers.remove(watcher)

        return stop

    def is_followed(self, stream: int) -> bool:
        """Whether anything watches this stream."""
        return bool(self._observers) or stream in self._watchers

    def announce(self, stream: int, change: Change) -> None:
        """Notify all followers of a stream of a durable change. Changes of one stream must be announced in order."""
        watchers = self._watchers.pop(stream, []) if change.deleted else self._watchers.get(stream, [])
        for watcher in (*watchers, *self._observers):
            try:
                watcher(change)
            except Exception:
                log.exception("a watcher of stream %s failed", change.path)
