"""Secrets and their audit in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from holdfast.api.secrets import SecretAction, SecretEvent
from holdfast.environments.secrets.rows import MOST_EVENTS, SecretRow
from holdfast.storage.sqlite.database import Database

_COLUMNS: Final = "name, bindings, expose, placeholder, version, created_at, changed_at, changed_by, value"
_EVENT: Final = "at, action, version, by_user, box, thread, host, detail"


class SqliteNamedSecrets:
    """`NamedSecretStore` on a database file, for one tenant."""

    def __init__(self, database: Database, *, tenant: str = "default") -> None:
        self._database = database
        self._tenant = tenant

    async def load_all(self) -> list[SecretRow]:
        query = f"SELECT {_COLUMNS} FROM named_secrets WHERE tenant = ? ORDER BY name"
        found = await self._database.read(lambda connection: connection.execute(query, (self._tenant,)).fetchall())
        return [SecretRow(*row) for row in found]

    async def put(self, row: SecretRow, event: SecretEvent) -> None:
        statement = f"INSERT OR REPLACE INTO named_secrets (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        values = (
            self._tenant, row.name, row.bindings, row.expose, row.placeholder, row.version, row.created_at,
            row.changed_at, row.changed_by, row.value,
        )  # fmt: skip

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(statement, values)
            self._add(connection, row.name, event)

        await self._database.change(work)

    async def remove(self, name: str, event: SecretEvent) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            statement = "DELETE FROM named_secrets WHERE tenant = ? AND name = ?"
            if connection.execute(statement, (self._tenant, name)).rowcount != 1:
                return False
            self._add(connection, name, event)
            return True

        return await self._database.change(work)

    async def add_events(self, events: Sequence[tuple[str, SecretEvent]]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for name, event in events:
                self._add(connection, name, event)

        await self._database.change_soon(work)

    async def events(self, name: str, limit: int) -> list[SecretEvent]:
        query = f"SELECT {_EVENT} FROM secret_events WHERE tenant = ? AND name = ? ORDER BY number DESC LIMIT ?"
        values = (self._tenant, name, limit)
        found = await self._database.read(lambda connection: connection.execute(query, values).fetchall())
        return [_event(*each) for each in found]

    def _add(self, connection: sqlite3.Connection, name: str, event: SecretEvent) -> None:
        connection.execute(
            f"INSERT INTO secret_events (tenant, name, {_EVENT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._tenant, name, event.at, event.action.value, event.version, event.by, event.box, event.thread,
                event.host, event.detail,
            ),
        )  # fmt: skip
        connection.execute(
            "DELETE FROM secret_events WHERE tenant = ?1 AND name = ?2 AND number <= (SELECT number FROM secret_events"
            " WHERE tenant = ?1 AND name = ?2 ORDER BY number DESC LIMIT 1 OFFSET ?3)",
            (self._tenant, name, MOST_EVENTS),
        )


def _event(at: int, action: str, version: int, by: str, box: str, thread: str, host: str, detail: str) -> SecretEvent:
    return SecretEvent(
        at=at,
        action=SecretAction(action),
        version=version,
        by=by,
        box=box,
        thread=thread,
        host=host,
        detail=detail,
    )
