"""The streams of one subscription in memory: how far each is acknowledged, where it ends, and which are pending."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from holdfast.threads.subscriptions.records import BEFORE_FIRST, Link
from holdfast.threads.subscriptions.rules import is_pending


class Links:
    """Keeps pending streams in the order in which they became pending, so that none is starved."""

    def __init__(self, links: Mapping[str, Link] | None = None) -> None:
        self.links: dict[str, Link] = dict(links or {})
        self.tails: dict[str, int] = {}
        self._pending: dict[str, None] = {}

    def __contains__(self, path: str) -> bool:
        return path in self.links

    def __len__(self) -> int:
        return len(self.links)

    def set(self, path: str, link: Link | None) -> None:
        """Add or change a link, or remove it if it is None."""
        if link is None:
            self.links.pop(path, None)
            self.tails.pop(path, None)
            self._pending.pop(path, None)
        else:
            self.links[path] = link
            self._judge(path, link)

    def advance(self, path: str, tail: int) -> bool:
        """Note that a linked stream has grown to `tail`. Returns whether it is pending."""
        if tail > self.tails.get(path, BEFORE_FIRST):
            self.tails[path] = tail
        return self._judge(path, self.links[path])

    def _judge(self, path: str, link: Link) -> bool:
        if is_pending(link, self.tail(path)):
            self._pending[path] = None
            return True
        self._pending.pop(path, None)
        return False

    def tail(self, path: str) -> int:
        return self.tails.get(path, 0)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def pending(self, limit: int, changes: Mapping[str, Link | None] | None = None) -> list[tuple[str, int]]:
        """Returns the first `limit` pending streams with their tails, as they will be after `changes`."""
        changes = changes or {}

        def still(path: str) -> bool:
            if path not in changes:
                return True
            link = changes[path]
            return link is not None and is_pending(link, self.tail(path))

        return [(path, self.tail(path)) for path in islice(filter(still, self._pending), limit)]

    def pending_first(self, limit: int) -> Iterable[tuple[str, Link]]:
        """Returns at most `limit` links, pending ones first."""
        paths = list(islice(self._pending, limit))
        if len(paths) < limit:
            paths += islice((path for path in self.links if path not in self._pending), limit - len(paths))
        return [(path, self.links[path]) for path in paths]
