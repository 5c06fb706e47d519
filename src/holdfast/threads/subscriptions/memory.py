"""Subscriptions in memory, for tests that need no disk."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.threads.subscriptions.records import Link, Subscription
from holdfast.threads.subscriptions.store import Stored


class MemorySubscriptions:
    def __init__(self) -> None:
        self._subscriptions: dict[str, Stored] = {}

    async def load_all(self) -> list[Stored]:
        return [(subscription, dict(links)) for subscription, links in self._subscriptions.values()]

    async def save(self, subscription: Subscription, links: Mapping[str, Link | None]) -> None:
        _, kept = self._subscriptions.get(subscription.id, (subscription, {}))
        for path, link in links.items():
            if link is None:
                kept.pop(path, None)
            else:
                kept[path] = link
        self._subscriptions[subscription.id] = (subscription, kept)

    async def delete(self, id: str) -> None:
        self._subscriptions.pop(id, None)
