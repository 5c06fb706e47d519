"""What was decided about the requests of boxes: the record of each, allowed and denied.

Kept in SQLite, in the same file as the threads. Adding one only puts it in memory; a task writes them down in batches,
so traffic never waits for a disk. A box that floods us has its like decisions counted in one, and none forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from holdfast.boxes.errors import InvalidSpec
from holdfast.storage.sqlite.database import Database
from holdfast.threads.ids import now_ms
from holdfast.time_limit import time_limit

_BATCH_SECONDS: Final = 0.25
_MOST_TRIES: Final = 40
"""Of writing one batch down: what a disk refuses for ten seconds is given up, with a word in the log."""
_SINGLE: Final = 200
"""Decisions of one box in one batch that get a record each. Beyond, equal ones share one."""
_MOST_PENDING: Final = 400
"""Records of one box in one batch. Beyond, all share two: one of the allowed, one of the denied."""
_TRIM_EVERY: Final = 500
_KEPT_MS: Final = 30 * 24 * 3600 * 1000
_COLUMNS: Final = (
    "id",
    "tenant",
    "box",
    "at",
    "host",
    "port",
    "method",
    "allowed",
    "why",
    "count",
    "sent",
    "received",
    "ms",
)
_FAILED: Final = 2
"""In the column `allowed`, of what was allowed and came to nothing."""
_CURSOR: Final = re.compile(r"x-[0-9a-f]{20}")

_log = logging.getLogger("holdfast.egress")


class _Ids:
    """Microseconds that never repeat, then randomness."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> str:
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return f"x-{self._last:014x}{secrets.randbits(24):06x}"


_ids: Final = _Ids()


@dataclass(slots=True)
class Decision:
    """One request or tunnel. It is added when it was decided, and completed when it has ended."""

    box: str
    host: str
    """Empty where it did not come to one."""
    port: int
    method: str
    """`CONNECT` for a tunnel. Empty where it did not come to one."""
    allowed: bool
    why: str
    """The rule that allowed it, or what spoke against it."""
    tenant: str = "default"
    id: str = field(default_factory=_ids.next)
    """Later ones sort later."""
    at: int = field(default_factory=now_ms)
    """UTC milliseconds."""
    count: int = 1
    """How many this stands for: like ones that came in a flood share a record."""
    sent: int = 0
    """Bytes out of the box."""
    received: int = 0
    ms: int | None = None
    """How long it took; None while it goes on."""
    failed: bool = False
    """It was allowed, and came to nothing: the name had no address, or nobody answered there."""

    def to_json(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in _COLUMNS if name != "tenant"}, "failed": self.failed}


@dataclass(frozen=True, slots=True)
class DecisionPage:
    decisions: tuple[Decision, ...]
    """The newest first."""
    next_cursor: str | None


class Records(Protocol):
    def add(self, decision: Decision) -> None:
        """Keep it. Never waits."""

    def complete(self, decision: Decision) -> None:
        """Its bytes and its time are known. Once for each that was added; never waits."""


class _Batch:
    """What came since the last one was written, bounded per box."""

    def __init__(self) -> None:
        self.added: list[Decision] = []
        self.completed: dict[str, tuple[int, int, int]] = {}
        """Bytes sent, bytes received, milliseconds, by id."""
        self.per_box: dict[str, int] = {}
        self._shared: dict[tuple[object, ...], Decision] = {}

    def __bool__(self) -> bool:
        return bool(self.added or self.completed)

    def add(self, decision: Decision) -> None:
        many = self.per_box.get(decision.box, 0)
        if many >= _SINGLE:
            key: tuple[object, ...] = (decision.box, decision.allowed, decision.failed)
            if many < _MOST_PENDING:
                key += (decision.host, decision.port, decision.method, decision.why)
            if (shared := self._shared.get(key)) is not None:
                shared.count += 1
                decision.id = shared.id  # its bytes go where it was counted
                return
            if many >= _MOST_PENDING:
                why = "too many at once to tell apart"
                decision = Decision(
                    decision.box, "", 0, "", decision.allowed, why, decision.tenant, decision.id, decision.at
                )
            self._shared[key] = decision
        self.per_box[decision.box] = many + 1
        self.added.append(decision)

    def complete(self, decision: Decision) -> None:
        sent, received, ms = self.completed.get(decision.id, (0, 0, 0))
        self.completed[decision.id] = (sent + decision.sent, received + decision.received, max(ms, decision.ms or 0))


class SqliteRecords:
    """`Records` on a database file. Owned by who made it; `async with` writes down what is left and closes it."""

    def __init__(self, path: Path, *, kept: int = 10_000) -> None:
        self._database = Database(path, "egress-records")
        self._kept = kept
        """Per box, the newest; a few more until the next trim."""
        self._batch = _Batch()
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._since_trim: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write_batches(), name="egress records")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()  # cancelling it could lose a batch that waits for the disk
        try:
            if self._writer is not None:
                await asyncio.wait((self._writer,))
            await self.flush()
        finally:
            await self._database.close()

    def add(self, decision: Decision) -> None:
        self._batch.add(decision)

    def complete(self, decision: Decision) -> None:
        self._batch.complete(decision)

    async def flush(self) -> None:
        """Write down all that was added before."""
        async with self._writing:
            batch, self._batch = self._batch, _Batch()
            if not batch:
                return
            for tries_left in reversed(range(_MOST_TRIES)):
                try:
                    await self._database.change(lambda connection: self._write(connection, batch))
                    return
                except (sqlite3.Error, OSError) as problem:
                    if not tries_left:
                        _log.error("%d decisions about egress were not written down: %s", len(batch.added), problem)
                        return
                await asyncio.sleep(_BATCH_SECONDS)

    async def page(
        self, box: str, *, after: str | None = None, limit: int = 100, denied_only: bool = False
    ) -> DecisionPage:
        """Of one box, the newest first; `after` is `next_cursor` of the page before."""
        if not 1 <= limit <= 1000:
            raise InvalidSpec(f"limit {limit}: between 1 and 1000")
        if after is not None and not _CURSOR.fullmatch(after):
            raise InvalidSpec(
                f"cursor {after!r} is none of ours", hint="pass on next_cursor of the page before as it was"
            )
        await self.flush()
        clauses, values = ["box = ?"], [box]
        if after is not None:
            clauses.append("id < ?")
            values.append(after)
        if denied_only:
            clauses.append("allowed = 0")
        query = (
            f"SELECT {', '.join(_COLUMNS)} FROM egress_decisions WHERE {' AND '.join(clauses)} ORDER BY id DESC LIMIT ?"
        )
        found = await self._database.read(lambda connection: connection.execute(query, (*values, limit + 1)).fetchall())
        page = tuple(_decision(each) for each in found[:limit])
        return DecisionPage(page, page[-1].id if len(found) > limit else None)

    async def forget(self, box: str) -> None:
        await self.flush()
        await self._database.change(
            lambda connection: connection.execute("DELETE FROM egress_decisions WHERE box = ?", (box,))
        )

    # --- the writer ---

    async def _write_batches(self) -> None:
        old = (now_ms() - _KEPT_MS,)
        with suppress(sqlite3.Error, OSError):  # they can go at the next start as well
            await self._database.change(
                lambda connection: connection.execute("DELETE FROM egress_decisions WHERE at < ?", old)
            )
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with time_limit(_BATCH_SECONDS):
                    await self._stopping.wait()
            await self.flush()

    def _write(self, connection: sqlite3.Connection, batch: _Batch) -> None:
        connection.executemany(
            f"INSERT INTO egress_decisions ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",
            [
                (each.id, each.tenant, each.box, each.at, each.host, each.port, each.method,
                 _FAILED if each.failed else each.allowed, each.why, each.count, 0, 0, None)
                for each in batch.added
            ],
        )  # fmt: skip
        connection.executemany(
            "UPDATE egress_decisions SET sent = sent + ?, received = received + ?, ms = max(coalesce(ms, 0), ?) "
            "WHERE id = ?",
            [(*figures, id) for id, figures in batch.completed.items()],
        )
        for box, many in batch.per_box.items():
            since = self._since_trim.get(box, _TRIM_EVERY) + many  # a box that is new to us may have old ones
            if since >= _TRIM_EVERY:
                connection.execute(
                    "DELETE FROM egress_decisions WHERE box = ?1 AND id <= "
                    "(SELECT id FROM egress_decisions WHERE box = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                    (box, self._kept),
                )
                since = 0
            self._since_trim[box] = since
        if len(self._since_trim) > 10_000:
            self._since_trim.clear()


def _decision(values: tuple[Any, ...]) -> Decision:
    given = dict(zip(_COLUMNS, values, strict=True))
    verdict = given["allowed"]
    given["allowed"] = bool(verdict)
    return Decision(**given, failed=verdict == _FAILED)
