"""States that parts of the server keep on threads, by entries with its seal. Only such entries count: a fork has none.

A record is what folding these entries gives. `SealedRecords` remembers it, and how far each thread was read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from holdfast.api.ids import new_entry_id
from holdfast.api.thread.entries import Entry
from holdfast.threads.access.seals import Origin, Seals
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.framing import as_array, parse_json
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.store import AppendRequest, StreamStore

_READ_BYTES: Final = 256 * 1024
_FRESH_MS: Final = 1000
"""How soon an entry counts that another server wrote. Those of this server count at once."""
_REMEMBERED: Final = 1024

R = TypeVar("R")


@dataclass(slots=True)
class _Known(Generic[R]):
    record: R
    stream: int | None = None
    """The stream that was read: a thread can be deleted, and another be created with its id."""
    position: int = 0
    """How far it has been read."""
    read_at: int | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class SealedRecords(Generic[R]):
    """Remembers the state of threads that were asked about."""

    def __init__(
        self,
        store: StreamStore,
        seals: Seals,
        clock: Callable[[], int],
        *,
        prefix: str,
        begin: Callable[[str], R],
        fold: Callable[[R, Mapping[str, Any]], R],
        tidy: Callable[[R, int], R] = lambda record, now: record,
    ) -> None:
        """`prefix` is what the types of its entries begin with. `begin` returns the record of a thread without entries.
        Its argument tells the thread from earlier ones with the same id. `fold` returns the record after one more
        entry, and `tidy` the record without what no longer counts at a time in milliseconds.
        """
        self._store = store
        self._seals = seals
        self._clock = clock
        self._prefix = prefix
        self._mark = f'"{prefix}'.encode()
        self._begin = begin
        self._fold = fold
        self._tidy = tidy
        self._known: OrderedDict[str, _Known[R]] = OrderedDict()

    async def get(self, thread: str) -> R:
        known = self._of(thread)
        if known.read_at is None or not 0 <= self._clock() - known.read_at < _FRESH_MS:
            async with known.turn:
                await self._catch_up(thread, known)
        return known.record

    async def read(self, thread: str) -> R:
        """As `get`, with all that was written until now, also by others."""
        known = self._of(thread)
        async with known.turn:
            await self._catch_up(thread, known)
        return known.record

    async def change(self, thread: str, compose: Callable[[R], dict[str, Any] | None]) -> R:
        """Append an entry that depends on the current state, and return the state after it. `compose` returns its
        payload, or None to append nothing, or raises to refuse.
        """
        known = self._of(thread)
        async with known.turn:
            await self._catch_up(thread, known)
            payload = compose(known.record)
            if payload is not None:
                entry = self._seals.seal(thread, Entry(new_entry_id(), self._clock(), payload))
                await self._store.append(THREADS + thread, AppendRequest(keyed=(keyed(entry),)))
                await self._catch_up(thread, known)
            self._known[thread] = known  # it may have been forgotten among many, and read again before the change
            return known.record

    def _of(self, thread: str) -> _Known[R]:
        known = self._known.get(thread)
        if known is None:
            known = self._known[thread] = _Known(self._begin(""))
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(thread)
        return known

    async def _catch_up(self, thread: str, known: _Known[R]) -> None:
        stream = await self._store.head(THREADS + thread)
        if stream.id != known.stream:
            life = f"{stream.id}.{stream.created_at}"
            known.record, known.stream, known.position = self._begin(life), stream.id, 0
        while True:
            piece = await self._store.read(THREADS + thread, known.position, _READ_BYTES)
            record = known.record
            for entry in parse_json(as_array(piece.data)) if self._mark in piece.data else ():
                if entry["payload"]["type"].startswith(self._prefix) and (
                    self._seals.origin(thread, entry) is Origin.HERE
                ):
                    record = self._fold(record, entry)
            known.record, known.position = self._tidy(record, self._clock()), piece.end
            if piece.up_to_date:
                known.read_at = self._clock()
                return
            await asyncio.sleep(0)  # reads from memory do not yield to other tasks
