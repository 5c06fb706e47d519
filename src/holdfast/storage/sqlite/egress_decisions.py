"""Decisions about egress in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.egress.records import Decision, Figures, first_hosts
from holdfast.storage.sqlite.database import Database

_COLUMNS: Final = (
    "id", "tenant", "box", "at", "host", "port", "method", "allowed", "why", "count", "sent", "received", "ms",
)  # fmt: skip
_INSERT: Final = f"INSERT INTO egress_decisions ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_COMPLETE: Final = (
    "UPDATE egress_decisions SET sent = sent + ?, received = received + ?, ms = max(coalesce(ms, 0), ?) WHERE id = ?"
)
_TRIM: Final = (
    "DELETE FROM egress_decisions WHERE box = ?1 AND (allowed = 1) = ?2 AND id <= "
    "(SELECT id FROM egress_decisions WHERE box = ?1 AND (allowed = 1) = ?2 ORDER BY id DESC LIMIT 1 OFFSET ?3) "
    "AND id NOT IN (SELECT min(id) FROM egress_decisions WHERE box = ?1 AND (allowed = 1) = ?2 "
    "GROUP BY host, port ORDER BY min(id) LIMIT ?4)"
)
_FAILED: Final = 2
"""A value of `allowed`: the request was allowed, but failed."""


class SqliteDecisions:
    """`DecisionStore` in a database file. A power cut may lose the last moments, but it ends the traffic as well."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(
        self, added: Sequence[Decision], completed: Mapping[str, Figures], trimmed: Mapping[str, int]
    ) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_INSERT, [_values(each) for each in added])
            connection.executemany(_COMPLETE, [(*figures, id) for id, figures in completed.items()])
            each_kind = [(box, kind, kept, first_hosts(kept)) for box, kept in trimmed.items() for kind in (0, 1)]
            connection.executemany(_TRIM, each_kind)

        await self._database.change_soon(work)

    async def page(self, box: str, *, after: str | None, limit: int, denied_only: bool) -> list[Decision]:
        clauses, values = ["box = ?"], [box]
        if after is not None:
            clauses.append("id < ?")
            values.append(after)
        if denied_only:
            clauses.append("allowed = 0")
        query = (
            f"SELECT {', '.join(_COLUMNS)} FROM egress_decisions WHERE {' AND '.join(clauses)} ORDER BY id DESC LIMIT ?"
        )
        found = await self._database.read(lambda connection: connection.execute(query, (*values, limit)).fetchall())
        return [_decision(each) for each in found]

    async def forget(self, box: str) -> None:
        await self._database.change_soon(
            lambda connection: connection.execute("DELETE FROM egress_decisions WHERE box = ?", (box,))
        )

    async def expire(self, before: int) -> None:
        await self._database.change_soon(
            lambda connection: connection.execute("DELETE FROM egress_decisions WHERE at < ?", (before,))
        )


def _values(each: Decision) -> tuple[object, ...]:
    verdict = _FAILED if each.failed else each.allowed
    return (each.id, each.tenant, each.box, each.at, each.host, each.port, each.method, verdict, each.why, each.count,
            0, 0, None)  # fmt: skip


def _decision(values: tuple[Any, ...]) -> Decision:
    given = dict(zip(_COLUMNS, values, strict=True))
    verdict = given["allowed"]
    given["allowed"] = bool(verdict)
    return Decision(**given, failed=verdict == _FAILED)
