"""Box rows and leases in SQLite.

Calls block, so they run on a separate thread and an fsync never blocks the event loop. Several processes may open the
file: every change is a transaction that takes the write lock first and checks its assumptions.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from holdfast.api.box.records import TOMBSTONES, BoxState
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.boxes import DISK_HINT, BoxConflict, InvalidSpec, NoSpace
from holdfast.boxes.lifecycle import LIVE
from holdfast.boxes.rows import BoxFilter, BoxPage, BoxRow
from holdfast.storage.sqlite import reserve
from holdfast.storage.sqlite.schema import connect, make, prepare

T = TypeVar("T")
_AT_ONCE: Final = 256
"""How many changes share a transaction."""
_SPECS: Final = 256
"""How many parsed specs are cached. Most boxes share a few."""

_COLUMNS: Final = (
    "id", "tenant", "node", "provider", "key", "spec", "lifetime", "labels", "state", "created_at", "changed_at",
    "last_active_at", "ended_at", "ended_why", "freed", "snapshot", "holder",
)  # fmt: skip
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM boxes"
_INSERT: Final = f"INSERT INTO boxes ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_SWAP: Final = (
    f"UPDATE boxes SET {', '.join(f'{column} = ?' for column in _COLUMNS)} "
    "WHERE tenant = ? AND id = ? AND state = ? AND changed_at = ? AND last_active_at = ? AND holder IS ?"
)


class _Job:
    """Work for the thread, and the future that waits for it."""

    def __init__(self, work: Callable[[], object], waiting: asyncio.Future[Any]) -> None:
        self._work = work
        self.waiting = waiting
        self._result: object = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self.error = error

    def tell(self) -> None:
        if self.waiting.done():
            return  # the waiter was cancelled
        if self.error is not None:
            self.waiting.set_exception(self.error)
        else:
            self.waiting.set_result(self._result)


class _Change(_Job):
    """Work in a shared transaction. If it fails, only its own changes are rolled back."""

    frees_space = False
    """Whether it is part of a deletion, which must succeed on a full disk."""

    def make(self, rows: sqlite3.Connection) -> None:
        rows.execute("SAVEPOINT change")
        self.run()
        if self.error is not None:
            if isinstance(self.error, sqlite3.Error) or not isinstance(self.error, Exception):
                raise self.error  # for example a full disk: the whole transaction is unreliable
            rows.execute("ROLLBACK TO change")
        rows.execute("RELEASE change")


class SqliteBoxes:
    """`BoxRows` in a database file, which is opened or created on first use. `async with` closes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="holdfast-boxes")
        self._rows: sqlite3.Connection | None = None
        self._leases: sqlite3.Connection | None = None
        self._jobs: deque[_Job] = deque()
        self._lock = Lock()
        self._at_work = False
        """Whether the thread will check the jobs again on its own. Guarded by the lock, like the jobs."""

    async def close(self) -> None:
        """Closing twice does nothing."""
        await asyncio.to_thread(self._worker.shutdown, wait=True)
        for connection in (self._rows, self._leases):
            if connection is not None:
                connection.close()
        self._rows = self._leases = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- rows ---

    async def insert(self, row: BoxRow) -> None:
        def work(rows: sqlite3.Connection) -> None:
            try:
                rows.execute(_INSERT, _values(row))
            except sqlite3.IntegrityError:
                taken = rows.execute(
                    f"{_SELECT} WHERE tenant = ? AND key = ? AND lifetime != ? AND state IN ({_list(LIVE)})",
                    (row.tenant, row.key, Lifetime.ONE_SHOT.value),
                ).fetchone()
                if taken is not None:
                    raise BoxConflict(f"key {row.key} already has a live box: {taken[0]}") from None
                raise BoxConflict(f"box id {row.id} is taken", hint="leave the id out to get a generated one") from None

        await self._change(work)

    async def get(self, tenant: str, id: str) -> BoxRow | None:
        return await self._one(f"{_SELECT} WHERE tenant = ? AND id = ?", (tenant, id))

    async def of_key(self, tenant: str, key: str) -> BoxRow | None:
        return await self._one(
            f"{_SELECT} WHERE tenant = ? AND key = ? AND lifetime != 'one-shot' AND state NOT IN ('deleted', 'gone')",
            (tenant, key),
        )

    async def live(self, tenant: str, node: str) -> list[BoxRow]:
        return await self._all(
            f"{_SELECT} WHERE tenant = ? AND node = ? AND state NOT IN ('deleted', 'gone') ORDER BY created_at, id",
            (tenant, node),
        )

    async def count_live(self, tenant: str) -> dict[str, int]:
        query = f"SELECT provider, count(*) FROM boxes WHERE tenant = ? AND state IN ({_list(LIVE)}) GROUP BY provider"
        return dict(await self._read(lambda rows: rows.execute(query, (tenant,)).fetchall()))

    async def swap(self, before: BoxRow, after: BoxRow) -> None:
        await self._change(
            lambda rows: _swap(rows, before, after),
            frees_space=after.state is BoxState.DELETING or after.tombstone,
        )

    async def swap_all(self, changes: Sequence[tuple[BoxRow, BoxRow]]) -> None:
        def work(rows: sqlite3.Connection) -> None:
            for before, after in changes:
                _swap(rows, before, after)

        await self._change(work)

    async def touch(self, tenant: str, id: str, state: BoxState, now: int) -> bool:
        def work(leases: sqlite3.Connection) -> bool:
            statement = (
                "UPDATE boxes SET last_active_at = max(?, last_active_at + 1) WHERE tenant = ? AND id = ? AND state = ?"
            )
            return leases.execute(statement, (now, tenant, id, state.value)).rowcount == 1

        return await self._lease(work)

    async def forget(self, tenant: str, id: str) -> None:
        await self._change(lambda rows: rows.execute("DELETE FROM boxes WHERE tenant = ? AND id = ?", (tenant, id)))

    async def prune(self, tenant: str, before: int, keep: Collection[str]) -> int:
        dead = (
            f"FROM boxes WHERE tenant = ? AND state IN ({_list(TOMBSTONES)}) AND ended_at < ? "
            "AND id NOT IN (SELECT value FROM json_each(?))"
        )
        values = (tenant, before, json.dumps(list(keep)))
        expired = "FROM box_leases WHERE tenant = ? AND expires_at < ?"

        def look(rows: sqlite3.Connection) -> bool:
            return any(
                rows.execute(f"SELECT 1 {where} LIMIT 1", given).fetchone()
                for where, given in ((dead, values), (expired, values[:2]))
            )

        def work(rows: sqlite3.Connection) -> int:
            rows.execute(f"DELETE {expired}", values[:2])
            return rows.execute(f"DELETE {dead}", values).rowcount

        return await self._change(work) if await self._read(look) else 0  # usually 0, without a write lock

    async def join(self, tenant: str, node: str, now: int) -> int:
        def look(rows: sqlite3.Connection) -> int | None:
            found = rows.execute("SELECT since FROM box_nodes WHERE tenant = ? AND node = ?", (tenant, node)).fetchone()
            return None if found is None else int(found[0])

        def work(rows: sqlite3.Connection) -> int:
            rows.execute("INSERT OR IGNORE INTO box_nodes (tenant, node, since) VALUES (?, ?, ?)", (tenant, node, now))
            since = look(rows)
            assert since is not None
            return since

        since = await self._read(look)
        return await self._change(work) if since is None else since

    # --- leases ---

    async def take(self, tenant: str, name: str, holder: str, now: int, ttl: int, *, frees_space: bool = False) -> bool:
        statement = (
            "INSERT INTO box_leases (tenant, name, holder, expires_at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (tenant, name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at "
            "WHERE holder = excluded.holder OR expires_at <= ?"
        )
        values = (tenant, name, holder, now + ttl, now)
        return await self._lease(
            lambda leases: leases.execute(statement, values).rowcount == 1, frees_space=frees_space
        )

    async def renew(self, tenant: str, names: Collection[str], holder: str, now: int, ttl: int) -> int:
        statement = (
            "UPDATE box_leases SET expires_at = ? WHERE tenant = ? AND holder = ? "
            "AND name IN (SELECT value FROM json_each(?))"
        )
        values = (now + ttl, tenant, holder, json.dumps(list(names)))
        return await self._lease(lambda leases: leases.execute(statement, values).rowcount)

    async def release(self, tenant: str, name: str, holder: str) -> None:
        statement = "DELETE FROM box_leases WHERE tenant = ? AND name = ? AND holder = ?"
        await self._lease(lambda leases: leases.execute(statement, (tenant, name, holder)), frees_space=True)

    async def release_all(self) -> None:
        await self._lease(lambda leases: leases.execute("DELETE FROM box_leases"))

    async def held(self, tenant: str, prefix: str, now: int) -> set[str]:
        statement = "SELECT name FROM box_leases WHERE tenant = ? AND substr(name, 1, ?) = ? AND expires_at > ?"
        values = (tenant, len(prefix), prefix, now)
        return await self._read(lambda rows: {name for (name,) in rows.execute(statement, values)})

    # --- the worker ---

    async def _one(self, query: str, values: tuple[object, ...]) -> BoxRow | None:
        found = await self._read(lambda rows: rows.execute(query, values).fetchone())
        return None if found is None else _row(found)

    async def _all(self, query: str, values: tuple[object, ...]) -> list[BoxRow]:
        return [_row(each) for each in await self._read(lambda rows: rows.execute(query, values).fetchall())]

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._run(lambda: work(self._opened()[0]))

    async def _change(self, work: Callable[[sqlite3.Connection], T], *, frees_space: bool = False) -> T:
        """Run a change in a transaction that is on disk when this returns. All waiting changes share it."""
        waiting = asyncio.get_running_loop().create_future()
        change = _Change(lambda: work(self._opened()[0]), waiting)
        change.frees_space = frees_space
        return cast("T", await self._do(change))

    def _write(self, changes: Sequence[_Change]) -> None:
        together = self._try_write(changes)
        if together is None:
            return
        for change in changes:
            error = self._make_room(change) if reserve.is_full(together) else together
            if error is not None:
                change.error = _told(error)

    def _try_write(self, changes: Sequence[_Change]) -> BaseException | None:
        try:
            rows, _ = self._opened()
            with _transaction(rows):
                for change in changes:
                    change.error = None
                    change.make(rows)
        except BaseException as error:
            return error
        return None

    def _make_room(self, change: _Change) -> BaseException | None:
        """Try a change alone on a full disk. If it frees space, it may use part of the reserved room."""
        while True:
            error = self._try_write([change])
            if error is None or not reserve.is_full(error) or not change.frees_space:
                return error
            if not reserve.spend(self._path, reserve.DELETE_SHARE):
                return error

    async def _lease(self, work: Callable[[sqlite3.Connection], T], *, frees_space: bool = False) -> T:
        """Run a transaction that is visible at once but may be lost in a power cut, which ends all holders too."""

        def change() -> T:
            _, leases = self._opened()
            while True:
                try:
                    with _transaction(leases):
                        return work(leases)
                except sqlite3.OperationalError as error:
                    if not (frees_space and reserve.is_full(error) and reserve.spend(self._path)):
                        raise _told(error) from error

        return await self._run(change)

    async def _run(self, work: Callable[[], T]) -> T:
        return cast("T", await self._do(_Job(work, asyncio.get_running_loop().create_future())))

    def _do(self, job: _Job) -> asyncio.Future[Any]:
        """Queue a job. Jobs that arrive together wake the thread and the event loop only once."""
        with self._lock:
            self._jobs.append(job)
            if not self._at_work:
                try:
                    self._worker.submit(self._work)
                except RuntimeError:  # closed
                    self._jobs.pop()
                    raise
                self._at_work = True
        return job.waiting

    def _work(self) -> None:
        while jobs := self._next():
            if isinstance(jobs[0], _Change):
                self._write(cast("list[_Change]", jobs))
            else:
                for job in jobs:
                    job.run()
            with suppress(RuntimeError):  # the loop was closed, so nothing waits
                jobs[0].waiting.get_loop().call_soon_threadsafe(_tell, jobs)

    def _next(self) -> list[_Job]:
        """Returns the jobs to run together: changes for one transaction, or all jobs before the next change."""
        with self._lock:
            jobs: list[_Job] = []
            while self._jobs and len(jobs) < _AT_ONCE:
                if jobs and isinstance(self._jobs[0], _Change) is not isinstance(jobs[0], _Change):
                    break
                job = self._jobs.popleft()
                if not job.waiting.cancelled():
                    jobs.append(job)
            if not jobs:
                self._at_work = False
            return jobs

    def _opened(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        if self._rows is None or self._leases is None:
            # Specs in the file may contain secrets. SQLite gives its companion files the same permissions.
            make(self._path)
            with ExitStack() as opening:
                rows = opening.enter_context(closing(connect(self._path)))
                prepare(rows)
                leases = opening.enter_context(closing(connect(self._path)))
                leases.execute("PRAGMA synchronous = NORMAL")
                opening.pop_all()
            self._rows, self._leases = rows, leases
        return self._rows, self._leases

    # Last, so that `list` means the builtin everywhere above.
    async def list(self, tenant: str, wanted: BoxFilter) -> BoxPage:
        if not 1 <= wanted.limit <= 1000:
            raise InvalidSpec(f"limit must be from 1 to 1000, not {wanted.limit}")
        states = set(wanted.states) or (LIVE if wanted.live_only else set(BoxState))
        clauses = ["tenant = ?", f"state IN ({_list(states)})"]
        values: list[object] = [tenant]
        if wanted.key is not None:
            clauses.append("key = ?")
            values.append(wanted.key)
        for name, value in wanted.labels.items():
            clauses.append("EXISTS (SELECT 1 FROM json_each(boxes.labels) AS label WHERE label.key = ? AND value = ?)")
            values += [name, value]
        if wanted.after is not None:
            clauses.append("(created_at, id) < (?, ?)")
            values += _read_cursor(wanted.after)
        found = await self._all(
            f"{_SELECT} WHERE {' AND '.join(clauses)} ORDER BY created_at DESC, id DESC LIMIT ?",
            (*values, wanted.limit + 1),
        )
        page = tuple(found[: wanted.limit])
        return BoxPage(page, f"{page[-1].created_at}.{page[-1].id}" if len(found) > wanted.limit else None)


def _tell(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.tell()


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # on a full disk, SQLite may have ended it already
            connection.execute("ROLLBACK")
        raise


def _told(error: BaseException) -> BaseException:
    """Returns `NoSpace` for a full disk, and other errors unchanged."""
    return NoSpace(f"nothing was written: {error}", hint=DISK_HINT) if reserve.is_full(error) else error


def _list(states: Collection[BoxState]) -> str:
    return ", ".join(f"'{state.value}'" for state in sorted(states))


def _swap(rows: sqlite3.Connection, before: BoxRow, after: BoxRow) -> None:
    key = (before.tenant, before.id)
    read = (before.state.value, before.changed_at, before.last_active_at, before.holder)
    if rows.execute(_SWAP, (*_values(after), *key, *read)).rowcount == 1:
        return
    now = rows.execute("SELECT state FROM boxes WHERE tenant = ? AND id = ?", key).fetchone()
    is_now = "gone" if now is None else now[0]
    raise BoxConflict(
        f"box {before.id} was {before.state} and is now {is_now}",
        hint="another process changed it: get it again",
    )


def _values(row: BoxRow) -> tuple[object, ...]:
    return (
        row.id, row.tenant, row.node, row.provider, row.key, row.spec.text, row.lifetime.value,
        json.dumps(dict(row.labels)), row.state.value, row.created_at, row.changed_at, row.last_active_at, row.ended_at,
        row.ended_why, row.freed, row.snapshot, row.holder,
    )  # fmt: skip


def _row(values: tuple[Any, ...]) -> BoxRow:
    given = dict(zip(_COLUMNS, values, strict=True))
    del given["lifetime"]  # only for the index; the spec has it
    given["spec"] = _spec(given["spec"])
    given["labels"] = json.loads(given["labels"])
    given["state"] = BoxState(given["state"])
    return BoxRow(**given)


@lru_cache(_SPECS)
def _spec(text: str) -> BoxSpec:
    return BoxSpec.from_json(json.loads(text))


def _read_cursor(cursor: str) -> list[object]:
    created_at, point, id = cursor.partition(".")
    if not point or not created_at.isascii() or not created_at.isdigit() or len(created_at) > 15:
        raise InvalidSpec(f"invalid cursor {cursor!r}", hint="use next_cursor of the previous page unchanged")
    return [int(created_at), id]
