"""Records every request of a box, allowed or denied.

Adding a decision only puts it in memory. A task writes decisions to the store in batches, so traffic never waits for a
disk. If a box sends very many requests, similar decisions share one record with a count, and none is lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

from holdfast.api.errors import Refused
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.api.ids import now_ms
from holdfast.time_limit import time_limit

_BATCH_SECONDS: Final = 0.25
_MOST_TRIES: Final = 40
"""Attempts to write one batch. A batch that cannot be written for ten seconds is dropped, with a log message."""
_SINGLE: Final = 200
"""Decisions of one box in one batch that get a record each. Beyond that, equal ones share a record."""
_MOST_PENDING: Final = 400
"""Records of one box in one batch. Beyond that, all allowed ones share a record, and all denied ones."""
_MOST_HOSTS: Final = 400
"""Hosts of one box in one batch whose first decision gets a record of its own in any case."""
_TRIM_EVERY: Final = 500
_KEPT_MS: Final = 30 * 24 * 3600 * 1000
_CURSOR: Final = re.compile(r"x-[0-9a-f]{20}")

_log = logging.getLogger("holdfast.egress")


class _Ids:
    """Creates ids from unique, increasing microseconds and random bits."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> str:
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return f"x-{self._last:014x}{secrets.randbits(24):06x}"


_ids: Final = _Ids()


@dataclass(slots=True)
class Decision:
    """The decision on one request or tunnel. It is added when made, and completed when the request has ended."""

    box: str
    host: str
    """Empty if it is unknown."""
    port: int
    method: str
    """`CONNECT` for a tunnel. Empty if it is unknown."""
    allowed: bool
    why: str
    """The rule that allowed it, or the reason why it was denied."""
    tenant: str = "default"
    id: str = field(default_factory=_ids.next)
    """Ids sort by time."""
    at: int = field(default_factory=now_ms)
    """UTC milliseconds."""
    count: int = 1
    """How many similar decisions share this record."""
    sent: int = 0
    """Bytes out of the box."""
    received: int = 0
    ms: int | None = None
    """How long it took. None while it is in progress."""
    failed: bool = False
    """It was allowed but failed: the name had no address, or nothing answered there."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "tenant"}


@dataclass(frozen=True, slots=True)
class DecisionPage:
    decisions: tuple[Decision, ...]
    """Newest first."""
    next_cursor: str | None


class Records(Protocol):
    def add(self, decision: Decision) -> None:
        """Record a decision. Never blocks."""

    def complete(self, decision: Decision) -> None:
        """Record the bytes and time of a decision. Called once for each that was added. Never blocks."""


Figures = tuple[int, int, int]
"""Bytes sent, bytes received, milliseconds."""


class DecisionStore(Protocol):
    """The contract of a store of decisions. Every method raises `Refused` if the store is unavailable.

    Ids sort by time. Ids of boxes are never reused.
    """

    async def write(
        self, added: Sequence[Decision], completed: Mapping[str, Figures], trimmed: Mapping[str, int]
    ) -> None:
        """Write a batch atomically.

        `completed` adds bytes to decisions by id, and keeps the longest time. The bytes and the time of `added` are not
        written. `trimmed` has, by box, how many of the newest decisions to keep: of those that were allowed and
        succeeded, and as many of the others. Older ones are removed, except the first to each host and port, for the
        first `first_hosts` of them, of both kinds.
        """

    async def page(self, box: str, *, after: str | None, limit: int, denied_only: bool) -> list[Decision]:
        """Returns at most `limit` decisions of a box with ids before `after`, newest first."""
        ...

    async def forget(self, box: str) -> None:
        """Remove all decisions of a box."""

    async def expire(self, before: int) -> None:
        """Remove all decisions made before a time in UTC milliseconds."""


def first_hosts(kept: int) -> int:
    """Returns for how many hosts the first decision is kept, so that later ones do not push it out."""
    return kept // 10


class _Batch:
    """The decisions since the last batch was written, bounded for each box."""

    def __init__(self) -> None:
        self.added: list[Decision] = []
        self.completed: dict[str, Figures] = {}
        self.per_box: dict[str, int] = {}
        self._counts: dict[tuple[str, bool], int] = {}
        """Records by box and verdict, so that refused requests do not take the records of others."""
        self._hosts: dict[tuple[str, bool], set[tuple[str, int]]] = {}
        self._shared: dict[tuple[object, ...], Decision] = {}

    def __bool__(self) -> bool:
        return bool(self.added or self.completed)

    def add(self, decision: Decision) -> None:
        kind = (decision.box, decision.allowed and not decision.failed)
        many = self._counts.get(kind, 0)
        hosts = self._hosts.setdefault(kind, set())
        is_new = (decision.host, decision.port) not in hosts and len(hosts) < _MOST_HOSTS
        if is_new:
            hosts.add((decision.host, decision.port))
        elif many >= _SINGLE:
            key: tuple[object, ...] = (decision.box, decision.allowed, decision.failed)
            if many < _MOST_PENDING:
                key += (decision.host, decision.port, decision.method, decision.why)
            if (shared := self._shared.get(key)) is not None:
                shared.count += 1
                decision.id = shared.id  # its bytes are added to the shared record
                return
            if many >= _MOST_PENDING:
                why = "too many at once to record separately"
                decision = Decision(
                    decision.box, "", 0, "", decision.allowed, why, decision.tenant, decision.id, decision.at
                )
            self._shared[key] = decision
        self._counts[kind] = many + 1
        self.per_box[decision.box] = self.per_box.get(decision.box, 0) + 1
        self.added.append(decision)

    def complete(self, decision: Decision) -> None:
        sent, received, ms = self.completed.get(decision.id, (0, 0, 0))
        self.completed[decision.id] = (sent + decision.sent, received + decision.received, max(ms, decision.ms or 0))


class DecisionLog:
    """Writes decisions to a store. `async with` starts the writing, and writes what is left on exit."""

    def __init__(self, store: DecisionStore, *, kept: int = 10_000) -> None:
        """Keeps the newest `kept` decisions of each box and each kind, and a few more until the next trim."""
        self._store = store
        self._kept = kept
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
        self._stopping.set()  # cancelling the task could lose a batch that waits for the disk
        if self._writer is not None:
            await asyncio.wait((self._writer,))
        await self.flush()

    def add(self, decision: Decision) -> None:
        self._batch.add(decision)

    def complete(self, decision: Decision) -> None:
        self._batch.complete(decision)

    async def flush(self) -> None:
        """Write everything that was added before this call."""
        async with self._writing:
            batch, self._batch = self._batch, _Batch()
            if not batch:
                return
            trimmed = self._due_for_trim(batch.per_box)
            for tries_left in reversed(range(_MOST_TRIES)):
                try:
                    await self._store.write(batch.added, batch.completed, trimmed)
                    return
                except (Refused, OSError) as problem:
                    if not tries_left:
                        _log.error("cannot write %d egress decisions: %s", len(batch.added), problem)
                        return
                await asyncio.sleep(_BATCH_SECONDS)

    async def page(
        self, box: str, *, after: str | None = None, limit: int = 100, denied_only: bool = False
    ) -> DecisionPage:
        """Returns the decisions of one box, newest first. `after` is `next_cursor` of the previous page."""
        if not 1 <= limit <= 1000:
            raise InvalidSpec(f"limit {limit} is not between 1 and 1000")
        if after is not None and not _CURSOR.fullmatch(after):
            raise InvalidSpec(f"cursor {after!r} is invalid", hint="pass next_cursor of the previous page unchanged")
        await self.flush()
        found = await self._store.page(box, after=after, limit=limit + 1, denied_only=denied_only)
        page = tuple(found[:limit])
        return DecisionPage(page, page[-1].id if len(found) > limit else None)

    async def forget(self, box: str) -> None:
        await self.flush()
        await self._store.forget(box)

    async def _write_batches(self) -> None:
        with suppress(Refused, OSError):  # the next start removes them as well
            await self._store.expire(now_ms() - _KEPT_MS)
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with time_limit(_BATCH_SECONDS):
                    await self._stopping.wait()
            await self.flush()

    def _due_for_trim(self, per_box: Mapping[str, int]) -> dict[str, int]:
        trimmed = {}
        for box, many in per_box.items():
            since = self._since_trim.get(box, _TRIM_EVERY) + many  # a box that is new here may have old decisions
            if since >= _TRIM_EVERY:
                trimmed[box] = self._kept
                since = 0
            self._since_trim[box] = since
        if len(self._since_trim) > 10_000:
            self._since_trim.clear()
        return trimmed
