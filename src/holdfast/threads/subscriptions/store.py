"""The contract of a subscription store, which `holdfast.storage.sqlite.subscriptions` implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.threads.subscriptions.records import Link, Subscription

Stored = tuple[Subscription, dict[str, Link]]


class SubscriptionStore(Protocol):
    """When `save` or `delete` returns, the change is on disk. A failure (Refused) leaves no trace."""

    async def load_all(self) -> list[Stored]: ...

    async def save(self, subscription: Subscription, links: Mapping[str, Link | None]) -> None:
        """Write the subscription and these of its links in one step. None removes a link."""
        ...

    async def delete(self, id: str) -> None:
        """Remove a subscription with its links. Does nothing if it does not exist."""
        ...
