"""The record of every request of a box, allowed and denied.

Adding a decision only puts it in memory. A task writes them to the store in batches, so traffic never waits for a disk.
A box that floods us has its like decisions counted in one record, and none is forgotten.
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

from holdfast.boxes.errors import InvalidSpec
from holdfast.threads.errors import StreamError
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
        return {name: value for name, value in asdict(self).items() if name != "tenant"}


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


Figures = tuple[int, int, int]
"""Bytes sent, bytes received, milliseconds."""


class DecisionStore(Protocol):
    """The contract of a store of decisions. Every method raises `StreamError` where the store cannot be used now.

    Ids sort by time, and a box's id is never used for another box.
    """

    async def write(
        self, added: Sequence[Decision], completed: Mapping[str, Figures], trimmed: Mapping[str, int]
    ) -> None:
        """Write a batch, whole or not at all.

        `completed` adds to the bytes of decisions by id, and keeps the longest time. `trimmed` removes all but the
        newest decisions of boxes: how many stay, by box.
        """

    async def page(self, box: str, *, after: str | None, limit: int, denied_only: bool) -> list[Decision]:
        """At most `limit` decisions of a box with ids before `after`, the newest first."""
        ...

    async def forget(self, box: str) -> None:
        """Remove all decisions of a box."""

    async def expire(self, before: int) -> None:
        """Remove all decisions from before that time, in UTC milliseconds."""


class _Batch:
    """What came since the last one was written, bounded per box."""

    def __init__(self) -> None:
        self.added: list[Decision] = []
        self.completed: dict[str, Figures] = {}
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


class DecisionLog:
    """`Records` that end up in a store. `async with` starts the writing, and writes what is left at the end."""

    def __init__(self, store: DecisionStore, *, kept: int = 10_000) -> None:
        """`kept` decisions of each box stay, the newest; a few more until the next trim."""
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
        self._stopping.set()  # cancelling it could lose a batch that waits for the disk
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
                except (StreamError, OSError) as problem:
                    if not tries_left:
                        _log.error("%d decisions about egress were not written down: %s", len(batch.added), problem)
                        return
                await asyncio.sleep(_BATCH_SECONDS)

    async def page(
        self, box: str, *, after: str | None = None, limit: int = 100, denied_only: bool = False
    ) -> DecisionPage:
        """The decisions of one box, the newest first; `after` is `next_cursor` of the page before."""
        if not 1 <= limit <= 1000:
            raise InvalidSpec(f"limit {limit}: between 1 and 1000")
        if after is not None and not _CURSOR.fullmatch(after):
            raise InvalidSpec(
                f"cursor {after!r} is none of ours", hint="pass on next_cursor of the page before as it was"
            )
        await self.flush()
        found = await self._store.page(box, after=after, limit=limit + 1, denied_only=denied_only)
        page = tuple(found[:limit])
        return DecisionPage(page, page[-1].id if len(found) > limit else None)

    async def forget(self, box: str) -> None:
        await self.flush()
        await self._store.forget(box)

    async def _write_batches(self) -> None:
        with suppress(StreamError, OSError):  # they can go at the next start as well
            await self._store.expire(now_ms() - _KEPT_MS)
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with time_limit(_BATCH_SECONDS):
                    await self._stopping.wait()
            await self.flush()

    def _due_for_trim(self, per_box: Mapping[str, int]) -> dict[str, int]:
        trimmed = {}
        for box, many in per_box.items():
            since = self._since_trim.get(box, _TRIM_EVERY) + many  # a box that is new to us may have old ones
            if since >= _TRIM_EVERY:
                trimmed[box] = self._kept
                since = 0
            self._since_trim[box] = since
        if len(self._since_trim) > 10_000:
            self._since_trim.clear()
        return trimmed
