"""Subscriptions in SQLite: one row for each, and one for each of its links."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from holdfast.storage.sqlite.streams.store import SqliteStreams
from holdfast.threads.subscriptions.records import Link, Subscription, dump_subscription, load_subscription
from holdfast.threads.subscriptions.store import Stored


class SqliteSubscriptions:
    """`SubscriptionStore` in the same file as the streams. An acknowledgement writes one row per stream."""

    def __init__(self, streams: SqliteStreams, *, tenant: str = "default") -> None:
        self._streams = streams
        self._tenant = tenant

    async def load_all(self) -> list[Stored]:
        return await self._streams.query(self._load_all)

    def _load_all(self, connection: sqlite3.Connection) -> list[Stored]:
        links: dict[str, dict[str, Link]] = {}
        for id, path, acked, explicit, glob in connection.execute(
            "SELECT subscription, path, acked, explicit, glob FROM subscription_links WHERE tenant = ?", (self._tenant,)
        ):
            links.setdefault(id, {})[path] = Link(acked, bool(explicit), bool(glob))
        rows = connection.execute("SELECT id, record FROM subscriptions WHERE tenant = ? ORDER BY id", (self._tenant,))
        return [(load_subscription(record), links.get(id, {})) for id, record in rows]

    async def save(self, subscription: Subscription, links: Mapping[str, Link | None]) -> None:
        tenant, id = self._tenant, subscription.id
        record = dump_subscription(subscription)
        kept = [
            (tenant, id, path, link.acked, link.explicit, link.glob) for path, link in links.items() if link is not None
        ]
        gone = [(tenant, id, path) for path, link in links.items() if link is None]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO subscriptions (tenant, id, record) VALUES (?, ?, ?)", (tenant, id, record)
            )
            if kept:
                connection.executemany(
                    "INSERT OR REPLACE INTO subscription_links (tenant, subscription, path, acked, explicit, glob)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    kept,
                )
            if gone:
                connection.executemany(
                    "DELETE FROM subscription_links WHERE tenant = ? AND subscription = ? AND path = ?", gone
                )

        await self._streams.write(write)

    async def delete(self, id: str) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM subscriptions WHERE tenant = ? AND id = ?", (self._tenant, id))
            connection.execute(
                "DELETE FROM subscription_links WHERE tenant = ? AND subscription = ?", (self._tenant, id)
            )

        await self._streams.write(write)
