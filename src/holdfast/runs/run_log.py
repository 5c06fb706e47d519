"""Reads and writes the entries of runs on threads. A process that takes over a run claims the next epoch first.

A claim is a compare-and-swap: it reads the thread, and appends in an epoch one above the highest. If another process
was faster, the append is a duplicate or stale.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from holdfast.api.errors import Unavailable
from holdfast.api.errors.threads import StaleEpoch
from holdfast.api.ids import new_entry_id
from holdfast.api.thread.entries import Entry
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import keyed
from holdfast.threads.lineage import LINEAGE_SIGNALS
from holdfast.threads.protocol.framing import SEPARATOR, as_array, parse_json, split_messages
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import ThreadRow, fold
from holdfast.threads.run_events import PRODUCER, ThreadRuns, is_control
from holdfast.threads.service import Threads
from holdfast.threads.store import Appended, AppendRequest, Producer, Slice, StreamConfig, StreamStore

_TRIES: Final = 20
_READ_BYTES: Final = 1024 * 1024
_FOLD_BYTES: Final = 64 * 1024
_REMEMBERED: Final = 10_000
_NO_END: Final = 1 << 62

Made = TypeVar("Made")
Compose = Callable[[int, ThreadRuns], Sequence[Entry]]
"""Returns the entries of a claim, for its epoch and the current runs. Raises if the claim must not be made."""


class RunLog:
    """Remembers epochs that were claimed without an entry."""

    def __init__(self, store: StreamStore, threads: Threads, seals: Seals, clock: Callable[[], int]) -> None:
        self._store = store
        self._threads = threads
        self._seals = seals
        self.clock = clock
        self._epochs: OrderedDict[str, int] = OrderedDict()

    async def row(self, thread: str) -> ThreadRow:
        return await self._threads.get(thread)

    async def runs(self, thread: str) -> ThreadRuns:
        return (await self._threads.get(thread)).runs

    def entry(self, payload: dict[str, Any], *, id: str | None = None, author: str | None = None) -> Entry:
        return Entry(id or new_entry_id(), self.clock(), payload, author)

    def append(self, thread: str, *entries: Entry, producer: Producer | None = None) -> Awaitable[Appended]:
        """Append entries. Those that control runs get the server's seal."""
        sealed = tuple(keyed(self.sealed(thread, each)) for each in entries)
        return self._store.append(THREADS + thread, AppendRequest(keyed=sealed, producer=producer))

    async def create(self, thread: str, *entries: Entry) -> bool:
        """Create a thread with these entries. Returns False, and writes nothing, if there is one already."""
        sealed = tuple(keyed(self.sealed(thread, each)) for each in entries)
        made = await self._store.create(THREADS + thread, StreamConfig(content_type="application/json"), keyed=sealed)
        return made.new

    def sealed(self, thread: str, entry: Entry) -> Entry:
        """Returns the entry with the server's seal, if the server acts on such entries."""
        acts = is_control(entry.payload) or entry.payload["type"] in LINEAGE_SIGNALS
        return self._seals.seal(thread, entry) if acts else entry

    async def claim(self, thread: str, compose: Compose) -> int:
        """Take the next epoch, and append the entries of `compose` with it. Returns the epoch."""
        for _ in range(_TRIES):
            runs = await self.runs(thread)
            epoch = max(runs.epoch, self._epochs.get(thread, 0)) + 1
            entries = compose(epoch, runs)
            try:
                appended = await self.append(thread, *entries, producer=Producer(PRODUCER, epoch, 0))
            except StaleEpoch as stale:
                await self._learn(thread, stale.current)
                continue
            if not appended.duplicate:
                self._remember(thread, epoch)
                return epoch
            self._remember(thread, appended.producer.epoch if appended.producer else epoch)
        raise Unavailable(f"other processes keep taking over thread {thread}: try again in a moment")

    async def _learn(self, thread: str, epoch: int) -> None:
        # A repeated append is acknowledged when the first one is on disk. From then on, readers see all of that epoch.
        for _ in range(_TRIES):
            try:
                await self.append(thread, producer=Producer(PRODUCER, epoch, 0))
                break
            except StaleEpoch as stale:
                epoch = stale.current
        self._remember(thread, epoch)

    def _remember(self, thread: str, epoch: int) -> None:
        self._epochs[thread] = max(epoch, self._epochs.pop(thread, 0))
        while len(self._epochs) > _REMEMBERED:
            self._epochs.popitem(last=False)

    async def entries(self, thread: str, since: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yields the entries from a position on, oldest first."""
        position = since
        while True:
            piece = await self._store.read(THREADS + thread, position, _READ_BYTES)
            for entry in parse_json(as_array(piece.data)):
                yield entry
            position = piece.end
            if piece.up_to_date:
                return

    async def runs_at(self, thread: str, offset: int) -> ThreadRuns:
        """Returns the state of a thread's runs as it was at a position."""
        info = await self._store.head(THREADS + thread)
        row, position = ThreadRow(thread, info.id), 0
        while position < offset:
            piece = await self._store.read(THREADS + thread, position, _FOLD_BYTES)
            if not piece.data:
                break
            data = piece.data if piece.end <= offset else piece.data[: offset - piece.start]
            row = fold(row, parse_json(as_array(data)), self._seals, position)
            position = piece.end
            await asyncio.sleep(0)  # reads from memory do not yield to other tasks
        return row.runs

    async def position_after(self, thread: str, entry: str, since: int = 0) -> int | None:
        """Returns the position after the entry with this id, or None if there is none from `since` on."""
        position, mark = since, json.dumps(entry).encode()
        while True:
            piece = await self._store.read(THREADS + thread, position, _READ_BYTES)
            at = piece.start
            for message in split_messages(piece.data) if mark in piece.data else ():
                at += len(message) + len(SEPARATOR)
                if mark in message and parse_json(message).get("id") == entry:
                    return at
            position = piece.end
            if piece.up_to_date:
                return None
            await asyncio.sleep(0)

    async def make_of(self, thread: str, make: Callable[[Iterator[dict[str, Any]]], Made]) -> Made:
        """Returns the result of `make` for the conversation: all entries that were not rewound, oldest first.

        Runs in a worker thread: it may take seconds.

        Only one entry is in memory at a time, so the thread may be larger than memory, and neither the garbage
        collector nor the event loop is held up.
        """
        loop = asyncio.get_running_loop()
        abandoned = False
        parts = kept_parts((await self.runs(thread)).dropped)

        def read(position: int) -> Future[Slice]:
            return asyncio.run_coroutine_threadsafe(self._store.read(THREADS + thread, position, _READ_BYTES), loop)

        def entries() -> Iterator[dict[str, Any]]:
            for begin, end in parts:
                following = read(begin)
                while True:
                    piece = following.result()
                    if more := not piece.up_to_date and piece.end < end:
                        following = read(piece.end)
                    inside = piece.data if piece.end <= end else piece.data[: end - piece.start]
                    yield from map(parse_json, split_messages(inside))
                    if abandoned:
                        raise asyncio.CancelledError
                    if not more:
                        break

        try:
            return await asyncio.to_thread(make, entries())
        finally:
            abandoned = True


def kept_parts(dropped: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the parts of a thread that were not rewound, in order. The last one has no end."""
    parts, begin = [], 0
    for start, end in sorted(dropped):
        if start > begin:
            parts.append((begin, start))
        begin = max(begin, end)
    return [*parts, (begin, _NO_END)]
