"""One subscription while the server runs: its record, its links, and what is on its way for it."""

from __future__ import annotations

import asyncio

from holdfast.threads.streams import Change
from holdfast.threads.subscriptions.clock import Timer
from holdfast.threads.subscriptions.glob import Glob
from holdfast.threads.subscriptions.links import Links
from holdfast.threads.subscriptions.records import BEFORE_FIRST, Link, Subscription
from holdfast.threads.subscriptions.schemas import CONTROL


class LiveSubscription:
    """Owned by the service. `subscription` changes only under `lock`, once saved; links follow the streams at once.

    A link that a stream's coming or going makes is saved with the next commit. Nothing is lost if that never comes:
    the service finds the same again when it starts.
    """

    def __init__(self, subscription: Subscription, links: Links, *, max_streams: int) -> None:
        self.subscription = subscription
        self.links = links
        self.glob = Glob.parse(subscription.config.pattern) if subscription.config.pattern else None
        self.lock = asyncio.Lock()
        self.unsaved: dict[str, Link | None] = {}
        self.truncated = False
        """There are more streams that match than the limit lets in."""
        self.closed = False
        self.kicked = False
        """Something happened since the driver last looked."""
        self.hurried = False
        """What a retry waits for may have happened: do not wait any longer."""
        self.driver: asyncio.Task[None] | None = None
        self.delivery: asyncio.Task[None] | None = None
        self.timer: Timer | None = None
        self.stumbles = 0
        """Failures to save, in a row."""
        self.resume_at = 0
        """Nothing is tried before this, because saving failed."""
        self._max_streams = max_streams

    @property
    def id(self) -> str:
        return self.subscription.id

    def matches(self, path: str) -> bool:
        """Whether the pattern takes this stream in. Its own wake stream is left out: each wake would cause the next."""
        return (
            self.glob is not None
            and path != self.subscription.config.wake_stream
            and not path.startswith(CONTROL + "/")
            and self.glob.matches(path)
        )

    def concerns(self, path: str) -> bool:
        return path in self.links or path == self.subscription.config.wake_stream or self.matches(path)

    def notice(self, change: Change) -> bool:
        """Follow a change of a stream; True where there may be something to do about it."""
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
        return self.links.advance(path, change.end) and (self.subscription.wake is None or bool(self.unsaved))

    def adopt(self, path: str) -> bool:
        """Link a stream that came into being and matches; False where it does not, or there are too many."""
        if not self.matches(path):
            return False
        if len(self.links) >= self._max_streams:
            self.truncated = True
            return False
        self.set_link(path, Link(BEFORE_FIRST, glob=True))
        return True

    def set_link(self, path: str, link: Link | None) -> None:
        """Change a link in memory at once, and on disk with the next commit."""
        self.links.set(path, link)
        self.unsaved[path] = link

    def stop(self) -> list[asyncio.Task[None]]:
        """Let go of everything; the tasks that were under way, cancelled, for the caller to await."""
        self.closed = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        tasks = [task for task in (self.driver, self.delivery) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks
