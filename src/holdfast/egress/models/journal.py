"""Writes what happens at models on threads, with the server's seal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.api.entries import Entry
from holdfast.api.errors import Refused
from holdfast.api.ids import new_entry_id
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.store import AppendRequest, StreamStore

log = logging.getLogger(__name__)


class ThreadJournal:
    """`Journal` on the threads of a server."""

    def __init__(self, store: StreamStore, seals: Seals, clock: Callable[[], int]) -> None:
        self._store = store
        self._seals = seals
        self._clock = clock

    async def append(self, thread: str, payload: dict[str, Any], id: str | None = None) -> None:
        entry = self._seals.seal(thread, Entry(id or new_entry_id(), self._clock(), payload))
        try:
            await self._store.append(THREADS + thread, AppendRequest(keyed=(keyed(entry),)))
        except Refused as error:  # a full disk, or a thread that was deleted: the agent still gets its answer
            log.warning("cannot write %s on thread %s: %s", payload["type"], thread, error)
