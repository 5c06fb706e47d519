"""Thread rows and run rows in SQLite. The tables can be dropped at any time."""

from __future__ import annotations

import functools
import logging
import re
import sqlite3
from typing import Any, Final

import orjson

from holdfast.api.thread.threads import ThreadStatus
from holdfast.storage.sqlite.schema import is_corruption
from holdfast.storage.sqlite.streams.store import SqliteStreams
from holdfast.threads.checkpoints import NO_LINEAGE, Lineage
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import RowFilter, RunFilter, RunRow, Spending, SpendingFilter, SpendingKey, ThreadRow
from holdfast.threads.run_events import Run, ThreadRuns

log = logging.getLogger(__name__)

_WILD: Final = re.compile(r"[!%_]")
"""What means something in a pattern of LIKE."""
_COLUMNS = (
    "id, stream, folded, title, status, parent, labels, archived, entry_count, created_at, last_activity_at,"
    " last_entry, runs, lineage"
)


_STATUSES: Final = {each.value: each for each in ThreadStatus}
_ROWS_CACHED: Final = 512
_MOST_CACHED: Final = 4096
"""Most characters of the runs of a row that is kept decoded."""
_CALL_COLUMNS = (
    "thread, id, stream, run, model, at, input, output, cache_read, cache_write, reasoning, nanos, estimated"
)
_MOST_LOOKED_UP: Final = 256
"""Rows that are read on the event loop at once."""
_SPARE: Final = 8
"""Rows that are read beyond a page, in place of those that do not match."""
_ARCHIVED: Final = 7
"""Its place in `_COLUMNS`."""
_DEEPEST = 64
"""Levels of a tree of threads. Parents of parents may be named in a circle."""
_KEYS = {
    "all": "''",
    "run": "run",
    "thread": "thread",
    "model": "model",
    "day": "date(at / 1000, 'unixepoch')",
}


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

    async def row_at(self, id: str, stream: int, position: int) -> ThreadRow | None:
        rows = self._streams.look_up(
            "SELECT thread_row FROM row_marks_cache WHERE thread = ? AND tenant = ? AND position = ? AND stream = ?",
            (id, self._tenant, position, stream),
        )
        return _row(tuple(orjson.loads(rows[0][0]))) if rows else None

    async def list_rows(self, wanted: RowFilter) -> list[ThreadRow]:
        latest = self._latest(wanted)
        if latest is not None:
            return latest
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
        if wanted.session is not None:
            where.append("session IS NOT NULL AND session IN (SELECT value FROM json_each(?))")
            values.append(orjson.dumps(wanted.session).decode())
        for word in wanted.words:
            where.append("(title LIKE ? ESCAPE '!' OR id LIKE ? ESCAPE '!')")
            escaped = _WILD.sub(r"!\g<0>", word)
            values += [f"%{escaped}%"] * 2
        if wanted.after is not None:
            where.append("(last_activity_at, id) < (?, ?)")
            values += wanted.after
        query = (
            f"SELECT {_COLUMNS} FROM threads_cache WHERE {' AND '.join(where)}"
            " ORDER BY last_activity_at DESC, id DESC LIMIT ?"
        )
        return [_row(row) for row in await self._all(query, *values, wanted.limit)]

    def _latest(self, wanted: RowFilter) -> list[ThreadRow] | None:
        """Returns a page of all rows, or None if finding it may take long.

        That is what people and pages ask for most. It is a few rows along an index: to hand that to a thread takes
        longer than to do it.
        """
        if wanted != RowFilter(archived=wanted.archived, limit=wanted.limit, after=wanted.after):
            return None
        # Archived rows among them are left out here. With many of them, a thread searches on.
        most = wanted.limit if wanted.archived is None else wanted.limit + _SPARE
        if most > _MOST_LOOKED_UP:
            return None
        after = "" if wanted.after is None else " AND (last_activity_at, id) < (?, ?)"
        rows = self._streams.look_up(
            f"SELECT {_COLUMNS} FROM threads_cache WHERE tenant = ?{after}"
            " ORDER BY last_activity_at DESC, id DESC LIMIT ?",
            (self._tenant, *(wanted.after or ()), most),
        )
        found = [row for row in rows if wanted.archived in (None, bool(row[_ARCHIVED]))]
        if len(found) < wanted.limit and len(rows) == most:
            return None
        return [_row(row) for row in found[: wanted.limit]]

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
        values = [(*_values(row), _source(row), _is_unsettled(row), *_session(row), self._tenant) for row in rows]
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

        calls = [
            (
                row.id, each.id, row.stream, each.run, each.model, each.at, each.usage.input, each.usage.output,
                each.usage.cache_read, each.usage.cache_write, each.usage.reasoning, each.nanos, each.estimated,
                self._tenant,
            )
            for row in rows
            for each in row.calls
        ]  # fmt: skip
        marks = [
            (row.id, mark.folded, row.stream, orjson.dumps(_values(mark)).decode(), self._tenant)
            for row in rows
            for mark in row.marks
        ]
        remade = [(row.id, self._tenant, row.stream) for row in rows if row.calls or row.marks]

        def write(connection: sqlite3.Connection) -> None:
            # Of an earlier thread with the same id.
            connection.executemany(
                "DELETE FROM model_calls_cache WHERE thread = ? AND tenant = ? AND stream <> ?", remade
            )
            connection.executemany(
                "DELETE FROM row_marks_cache WHERE thread = ? AND tenant = ? AND stream <> ?", remade
            )
            connection.executemany(
                "INSERT OR REPLACE INTO row_marks_cache (thread, position, stream, thread_row, tenant)"
                " VALUES (?, ?, ?, ?, ?)",
                marks,
            )
            connection.executemany(
                f"INSERT OR REPLACE INTO model_calls_cache ({_CALL_COLUMNS}, tenant) VALUES ({'?, ' * 13}?)", calls
            )
            connection.executemany(
                f"INSERT OR REPLACE INTO threads_cache ({_COLUMNS}, fork_of, unsettled, session, session_due, tenant)"
                f" VALUES ({'?, ' * 18}?)",
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
            connection.executemany("DELETE FROM model_calls_cache WHERE thread = ? AND tenant = ?", ended)
            connection.executemany("DELETE FROM row_marks_cache WHERE thread = ? AND tenant = ?", ended)

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
        if wanted.turn is not None:
            where.append("json_extract(run, '$.turn') = ?")
            values.append(wanted.turn)
        if wanted.after is not None:
            where.append("id < ?")
            values.append(wanted.after)
        query = f"SELECT thread, run FROM runs_cache WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?"
        return [_run(row) for row in await self._all(query, *values, wanted.limit)]

    async def spending(self, wanted: SpendingFilter, by: SpendingKey) -> list[Spending]:
        if by != "all" and wanted.threads is not None and not self._have_calls(wanted.threads):
            return []
        where, values = ["tenant = ?"], [self._tenant]  # type: list[str], list[object]
        tree = ""
        if wanted.tree is not None:
            tree = (
                "WITH RECURSIVE tree (id, depth) AS (SELECT ?, 0 UNION SELECT t.id, tree.depth + 1 FROM threads_cache t"
                f" JOIN tree ON t.parent = tree.id WHERE t.tenant = ? AND tree.depth < {_DEEPEST}) "
            )
            where.append("thread IN (SELECT id FROM tree)")
            values = [wanted.tree, self._tenant, *values]
        for column, among in (("run", wanted.runs), ("thread", wanted.threads)):
            if among is not None:
                where.append(f"{column} IN (SELECT value FROM json_each(?))")
                values.append(orjson.dumps(among).decode())
        if wanted.since is not None:
            where.append("at >= ?")
            values.append(wanted.since)
        key = _KEYS[by]
        group = "" if by == "all" else f" GROUP BY {key} ORDER BY {'1' if by == 'day' else '8 DESC, 2 DESC, 1'} LIMIT ?"
        query = (
            f"{tree}SELECT {key}, count(*), sum(input), sum(output), sum(cache_read), sum(cache_write), sum(reasoning),"
            " sum(coalesce(nanos, 0)), sum(nanos IS NULL), sum(estimated)"
            f" FROM model_calls_cache WHERE {' AND '.join(where)}{group}"
        )
        found = await self._all(query, *values, *(() if by == "all" else (wanted.limit,)))
        return [Spending(key, *(number or 0 for number in numbers)) for key, *numbers in found]

    def _have_calls(self, threads: tuple[str, ...]) -> bool:
        """Most threads of a list called no model. Then this answers at once, and no thread has to be woken."""
        query = (
            "SELECT 1 FROM model_calls_cache WHERE tenant = ? AND thread IN (SELECT value FROM json_each(?)) LIMIT 1"
        )
        return bool(self._streams.look_up(query, (self._tenant, orjson.dumps(threads).decode())))

    async def needed_snapshots(self) -> set[str]:
        rows = await self._all("SELECT lineage FROM threads_cache WHERE tenant = ? AND lineage NOT NULL", self._tenant)
        return {each for (text,) in rows for each in Lineage.from_json(orjson.loads(text)).snapshots}

    async def unsettled_ids(self) -> list[str]:
        rows = await self._all("SELECT id FROM threads_cache WHERE tenant = ? AND unsettled = 1", self._tenant)
        return [id for (id,) in rows]

    async def due_session_ids(self) -> list[str]:
        rows = await self._all("SELECT id FROM threads_cache WHERE tenant = ? AND session_due = 1", self._tenant)
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


def _session(row: ThreadRow) -> tuple[str | None, bool]:
    session = row.runs.session
    return None if session is None else session.state.value, row.runs.is_session_due


def _run(values: tuple[Any, ...]) -> RunRow:
    return RunRow(values[0], Run.from_json(orjson.loads(values[1])))


def _row(values: tuple[Any, ...]) -> ThreadRow:
    runs: str | None = values[12]
    return _decode(values) if runs is not None and len(runs) > _MOST_CACHED else _decode_once(values)


def _decode(values: tuple[Any, ...]) -> ThreadRow:
    row = list(values)
    row[4] = _STATUSES[row[4]]
    row[6] = orjson.loads(row[6])
    row[7] = bool(row[7])
    row[11] = orjson.loads(row[11])
    row[12] = ThreadRuns() if row[12] is None else ThreadRuns.from_json(orjson.loads(row[12]))
    row[13] = NO_LINEAGE if row[13] is None else Lineage.from_json(orjson.loads(row[13]))
    return ThreadRow(*row)


# Pages and commands list the same rows again and again. A row never changes: a fold makes another one.
_decode_once = functools.lru_cache(_ROWS_CACHED)(_decode)
