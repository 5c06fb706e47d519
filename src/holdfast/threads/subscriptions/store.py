"""Where subscriptions are kept. `holdfast.storage.sqlite.subscriptions` keeps them on disk, `memory` for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.threads.subscriptions.records import Link, Subscription

Stored = tuple[Subscription, dict[str, Link]]


class SubscriptionStore(Protocol):
    """What `save` and `delete` have returned from is on disk. A failure (`Refused`) left no trace."""

    async def load_all(self) -> list[Stored]: ...

    async def save(self, subscription: Subscription, links: Mapping[str, Link | None]) -> None:
        """Write the subscription and these of its links (None removes one), in one step."""
        ...

    async def delete(self, id: str) -> None:
        """Remove the subscription with its links; nothing where there is none."""
        ...
