"""Thread rows and run rows in SQLite. The tables can be dropped at any time."""

from __future__ import annotations

import logging
import sqlite3
from typing import Any

import orjson

from holdfast.api.threads import ThreadStatus
from holdfast.storage.sqlite.schema import is_corruption
from holdfast.storage.sqlite.streams.store import SqliteStreams
from holdfast.threads.checkpoints import NO_LINEAGE, Lineage
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import RowFilter, RunFilter, RunRow, ThreadRow
from holdfast.threads.run_events import Run, ThreadRuns

log = logging.getLogger(__name__)

_COLUMNS = (
    "id, stream, folded, title, status, parent, labels, archived, entry_count, created_at, last_activity_at,"
    " last_entry, runs, lineage"
)


class SqliteThreadRows:
    """`RowStore` in the same file as the streams, for one tenant."""

    def __init__(self, streams: SqliteStreams, *, tenant: str = "default") -> None:
        self._streams = streams
        self._tenant = tenant

    async def get_row(self, id: str) -> ThreadRow | None:
        rows = self._streams.look_up(
            f"SELECT {_COLUMNS} FROM threads_cache WHERE id = ? AND tenant = ?", (id, self._tenant)
        )
        return _row(rows[0]) if rows else None

    async def list_rows(self, wanted: RowFilter) -> list[ThreadRow]:
        where, values = ["tenant = ?"], [self._tenant]  # type: list[str], list[object]
        if wanted.parent is not None:
            where.append("parent = ?")
            values.append(wanted.parent)
        if wanted.fork_of is not None:
            where.append("fork_of = ?")
            values.append(wanted.fork_of)
        if wanted.status is not None:
            where.append("status = ?")
            values.append(wanted.status.value)
        if wanted.archived is not None:
            where.append("archived = ?")
            values.append(wanted.archived)
        for name, value in wanted.labels:
            where.append("EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value = coalesce(?, value))")
            values += [name, value]
        if wanted.after is not None:
            where.append("(last_activity_at, id) < (?, ?)")
            values += wanted.after
        query = (
            f"SELECT {_COLUMNS} FROM threads_cache WHERE {' AND '.join(where)}"
            " ORDER BY last_activity_at DESC, id DESC LIMIT ?"
        )
        return [_row(row) for row in await self._all(query, *values, wanted.limit)]

    async def stale_ids(self) -> list[str]:
        unfiled = [path[len(THREADS) :] for path in self._streams.unfiled_paths() if path.startswith(THREADS)]
        return [*await self._streams.query(self._stale_ids), *unfiled]

    def _stale_ids(self, connection: sqlite3.Connection) -> list[str]:
        threads = (
            "SELECT substr(s.path, ?) FROM streams s LEFT JOIN threads_cache t"
            " ON t.tenant = s.tenant AND t.id = substr(s.path, ?)"
            " WHERE s.tenant = ? AND s.deleted = 0 AND s.path >= 'threads/' AND s.path < 'threads0'"
        )
        values = (len(THREADS) + 1, len(THREADS) + 1, self._tenant)
        try:
            behind = connection.execute(
                f"{threads} AND (t.stream IS NOT s.id"
                ' OR t.folded < coalesce((SELECT max("end") FROM chunks WHERE stream = s.id), 0))',
                values,
            ).fetchall()
        except sqlite3.DatabaseError as error:
            if not is_corruption(error):
                raise
            log.error("a thread is damaged, so all threads are checked: %s", error)
            behind = connection.execute(threads, values).fetchall()
        gone = connection.execute(
            "SELECT id FROM threads_cache t WHERE tenant = ?"
            " AND NOT EXISTS (SELECT 1 FROM streams s WHERE s.id = t.stream AND s.deleted = 0)",
            (self._tenant,),
        ).fetchall()
        return [id for (id,) in (*behind, *gone)]

    async def save_rows(self, rows: list[ThreadRow], gone: list[str]) -> None:
        values = [(*_values(row), _source(row), _is_unsettled(row), self._tenant) for row in rows]
        runs = [
            (
                run.run,
                row.id,
                run.agent,
                run.status.value,
                orjson.dumps(run.to_json()).decode(),
                self._tenant,
                run.is_ours,
                self._tenant,
                run.run,
                row.id,
            )
            for row in rows
            for run in row.touched.values()
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                f"INSERT OR REPLACE INTO threads_cache ({_COLUMNS}, fork_of, unsettled, tenant) VALUES ({'?, ' * 16}?)",
                values,
            )
            # An unproven claim must not take over a run id from another thread.
            connection.executemany(
                "INSERT OR REPLACE INTO runs_cache (id, thread, agent, status, run, tenant) SELECT ?, ?, ?, ?, ?, ?"
                " WHERE ? OR NOT EXISTS (SELECT 1 FROM runs_cache WHERE tenant = ? AND id = ? AND thread <> ?)",
                runs,
            )
            ended = [(id, self._tenant) for id in gone]
            connection.executemany("DELETE FROM threads_cache WHERE id = ? AND tenant = ?", ended)
            connection.executemany("DELETE FROM runs_cache WHERE thread = ? AND tenant = ?", ended)

        await self._streams.write(write)

    async def get_run(self, id: str) -> RunRow | None:
        rows = self._streams.look_up(
            "SELECT thread, run FROM runs_cache WHERE id = ? AND tenant = ?", (id, self._tenant)
        )
        return _run(rows[0]) if rows else None

    async def list_runs(self, wanted: RunFilter) -> list[RunRow]:
        where, values = ["tenant = ?"], [self._tenant]  # type: list[str], list[object]
        for column, value in (("thread", wanted.thread), ("status", wanted.status), ("agent", wanted.agent)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(str(value))
        if wanted.after is not None:
            where.append("id < ?")
            values.append(wanted.after)
        query = f"SELECT thread, run FROM runs_cache WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?"
        return [_run(row) for row in await self._all(query, *values, wanted.limit)]

    async def needed_snapshots(self) -> set[str]:
        rows = await self._all("SELECT lineage FROM threads_cache WHERE tenant = ? AND lineage NOT NULL", self._tenant)
        return {each for (text,) in rows for each in Lineage.from_json(orjson.loads(text)).snapshots}

    async def unsettled_ids(self) -> list[str]:
        rows = await self._all("SELECT id FROM threads_cache WHERE tenant = ? AND unsettled = 1", self._tenant)
        return [id for (id,) in rows]

    async def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._streams.query(lambda connection: connection.execute(query, values).fetchall())


def _values(row: ThreadRow) -> tuple[Any, ...]:
    return (
        row.id,
        row.stream,
        row.folded,
        row.title,
        row.status.value,
        row.parent,
        orjson.dumps(row.labels).decode(),
        row.archived,
        row.entry_count,
        row.created_at,
        row.last_activity_at,
        orjson.dumps(row.last_entry).decode(),
        None if row.runs.is_empty else orjson.dumps(row.runs.to_json()).decode(),
        None if row.lineage == NO_LINEAGE else orjson.dumps(row.lineage.to_json()).decode(),
    )


def _source(row: ThreadRow) -> str | None:
    return None if row.lineage.fork_of is None else row.lineage.fork_of.thread


def _is_unsettled(row: ThreadRow) -> bool:
    return row.runs.is_unsettled


def _run(values: tuple[Any, ...]) -> RunRow:
    return RunRow(values[0], Run.from_json(orjson.loads(values[1])))


def _row(values: tuple[Any, ...]) -> ThreadRow:
    row = list(values)
    row[4] = ThreadStatus(row[4])
    row[6] = orjson.loads(row[6])
    row[7] = bool(row[7])
    row[11] = orjson.loads(row[11])
    row[12] = ThreadRuns() if row[12] is None else ThreadRuns.from_json(orjson.loads(row[12]))
    row[13] = NO_LINEAGE if row[13] is None else Lineage.from_json(orjson.loads(row[13]))
    return ThreadRow(*row)
