"""One subscription while the server runs: its record, its links, and its deliveries in progress."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from holdfast.threads.store import Change
from holdfast.threads.subscriptions.clock import Timer
from holdfast.threads.subscriptions.events import selection_of
from holdfast.threads.subscriptions.glob import Glob
from holdfast.threads.subscriptions.links import Links
from holdfast.threads.subscriptions.records import BEFORE_FIRST, Delivery, Kind, Link, Subscription
from holdfast.threads.subscriptions.schemas import CONTROL


class LiveSubscription:
    """Owned by the service. `subscription` changes only under `lock`, after it is saved. Links follow the streams at
    once.

    A link that changes because a stream appears or disappears is saved with the next commit. If that never happens,
    nothing is lost, because the service finds the same change when it starts.
    """

    def __init__(self, subscription: Subscription, links: Links, *, max_streams: int) -> None:
        self.subscription = subscription
        self.links = links
        self.glob = Glob.parse(subscription.config.pattern) if subscription.config.pattern else None
        is_of_events = subscription.config.kind is Kind.EVENTS
        self.selection = selection_of(subscription.config.events) if is_of_events else None
        """The entries that may be events, if it is about events."""
        self.sent: set[str] = set()
        """The events of the open wake that were delivered, so that a retry does not send them again."""
        self.unsaved_deliveries: list[Delivery] = []
        self.lock = asyncio.Lock()
        self.unsaved: dict[str, Link | None] = {}
        self.truncated = False
        """More streams match than the limit allows."""
        self.closed = False
        self.kicked = False
        """Something happened since the driver last checked."""
        self.hurried = False
        """The cause of a retry may be gone, so do not wait any longer."""
        self.driver: asyncio.Task[None] | None = None
        self.delivery: asyncio.Task[None] | None = None
        self.timer: Timer | None = None
        self.stumbles = 0
        """How often in a row saving failed."""
        self.resume_at = 0
        """Nothing is tried before this time, because saving failed."""
        self._max_streams = max_streams

    @property
    def id(self) -> str:
        return self.subscription.id

    def matches(self, path: str) -> bool:
        """Whether the pattern matches this stream. The subscription's wake stream never does: each wake would cause the
        next.
        """
        return (
            self.glob is not None
            and path != self.subscription.config.wake_stream
            and not path.startswith(CONTROL + "/")
            and self.glob.matches(path)
        )

    def concerns(self, path: str) -> bool:
        return path in self.links or path == self.subscription.config.wake_stream or self.matches(path)

    def notice(self, change: Change) -> bool:
        """Apply a change of a stream. Returns True if there may be something to do."""
        path = change.path
        if path == self.subscription.config.wake_stream:
            self.hurried = self.subscription.attempts > 0 and not change.deleted
            return self.hurried
        if change.deleted:
            if path not in self.links:
                return False
            self.set_link(path, None)
            return True
        if path not in self.links and not self.adopt(path):
            return False
        if self._is_without_events(change):
            # Saved when an event comes. A server that starts reads from there again, and finds none until here.
            self.links.set(path, replace(self.links.links[path], acked=change.end))
            self.links.advance(path, change.end)
            return False
        return self.links.advance(path, change.end) and (self.subscription.wake is None or bool(self.unsaved))

    def _is_without_events(self, change: Change) -> bool:
        if self.selection is None or change.data is None or max(0, self.links.links[change.path].acked) < change.start:
            return False
        return not self.selection.may_be_in(change.data)

    def adopt(self, path: str) -> bool:
        """Link a new stream that matches. Returns False if it does not match or there are too many."""
        if not self.matches(path):
            return False
        if len(self.links) >= self._max_streams:
            self.truncated = True
            return False
        self.set_link(path, Link(BEFORE_FIRST, glob=True))
        return True

    def set_link(self, path: str, link: Link | None) -> None:
        """Change a link in memory now, and on disk with the next commit."""
        self.links.set(path, link)
        self.unsaved[path] = link

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop everything. Returns the cancelled tasks, which the caller awaits."""
        self.closed = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        tasks = [task for task in (self.driver, self.delivery) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks
