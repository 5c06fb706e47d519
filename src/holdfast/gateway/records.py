"""Reads and writes what threads say about the gateways of their sessions."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.api.entries import Entry
from holdfast.api.ids import new_entry_id
from holdfast.gateway.record import PREFIX, GatewayRecord, fold, without_expired
from holdfast.threads.access.seals import Origin, Seals
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.framing import as_array, parse_json
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.store import AppendRequest, StreamStore

_READ_BYTES: Final = 256 * 1024
_FRESH_MS: Final = 1000
"""How soon an entry counts that another server wrote. Those of this server count at once."""
_REMEMBERED: Final = 1024
_MARK: Final = b'"signal.gateway.'

Compose = Callable[[GatewayRecord], dict[str, Any] | None]
"""Returns the entry to append for the current state, or None to append nothing. Raises to refuse."""


@dataclass(slots=True)
class _Known:
    record: GatewayRecord = field(default_factory=GatewayRecord)
    stream: int | None = None
    """The stream that was read: a thread can be deleted, and another be created with its id."""
    position: int = 0
    """How far it has been read."""
    read_at: int | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Records:
    """Remembers the state of threads that were asked about, and how far each was read."""

    def __init__(self, store: StreamStore, seals: Seals, clock: Callable[[], int]) -> None:
        self._store = store
        self._seals = seals
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def get(self, thread: str) -> GatewayRecord:
        known = self._of(thread)
        if known.read_at is None or not 0 <= self._clock() - known.read_at < _FRESH_MS:
            async with known.turn:
                await self._catch_up(thread, known)
        return known.record

    async def change(self, thread: str, compose: Compose) -> GatewayRecord:
        """Append an entry that depends on the current state, and return the state after it."""
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

    def _of(self, thread: str) -> _Known:
        known = self._known.get(thread)
        if known is None:
            known = self._known[thread] = _Known()
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(thread)
        return known

    async def _catch_up(self, thread: str, known: _Known) -> None:
        stream = await self._store.head(THREADS + thread)
        if stream.id != known.stream:
            life = f"{stream.id}.{stream.created_at}"
            known.record, known.stream, known.position = GatewayRecord(life=life), stream.id, 0
        while True:
            piece = await self._store.read(THREADS + thread, known.position, _READ_BYTES)
            record = known.record
            for entry in parse_json(as_array(piece.data)) if _MARK in piece.data else ():
                payload = entry["payload"]
                if payload["type"].startswith(PREFIX) and self._seals.origin(thread, entry) is Origin.HERE:
                    record = fold(record, payload)
            known.record, known.position = without_expired(record, self._clock() / 1000), piece.end
            if piece.up_to_date:
                known.read_at = self._clock()
                return
            await asyncio.sleep(0)  # reads from memory do not yield to other tasks
