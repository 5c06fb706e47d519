"""Writes what happens at models on threads, with the server's seal.

Calls that no run makes (`model test`, completions, `llm_query` of interpreters) are entries too, so that the budget of
the day and the sums of costs include them after a restart. They have a thread of their own for each month, which is
archived, so that lists of threads do not show it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from holdfast.api.errors import NotFound, Refused
from holdfast.api.ids import new_entry_id
from holdfast.api.thread.entries import Entry
from holdfast.egress.models.ledger import day_of
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.store import AppendRequest, StreamConfig, StreamStore

log = logging.getLogger(__name__)

_COMPLETIONS: Final = "t-completions-"


def completions_thread(now: int) -> str:
    """Returns the thread of the calls that belong to no thread, for a time in UTC milliseconds."""
    return _COMPLETIONS + day_of(now)[:7]


class ThreadJournal:
    """`Journal` on the threads of a server."""

    def __init__(self, store: StreamStore, seals: Seals, clock: Callable[[], int]) -> None:
        self._store = store
        self._seals = seals
        self._clock = clock

    async def append(self, thread: str | None, payload: dict[str, Any], id: str | None = None) -> None:
        now = self._clock()
        at = completions_thread(now) if thread is None else thread
        entry = self._seals.seal(at, Entry(id or new_entry_id(), now, payload))
        try:
            try:
                await self._append(at, entry)
            except NotFound:
                if thread is not None:
                    raise
                await self._create(at, now)
                await self._append(at, entry)
        except Refused as error:  # a full disk, or a thread that was deleted: the agent still gets its answer
            log.warning("cannot write %s on thread %s: %s", payload["type"], at, error)

    async def _append(self, thread: str, entry: Entry) -> None:
        await self._store.append(THREADS + thread, AppendRequest(keyed=(keyed(entry),)))

    async def _create(self, thread: str, now: int) -> None:
        """Create the thread of a month, unless another call has just done so."""
        title = f"Completions without a run, {thread.removeprefix(_COMPLETIONS)}"
        created = {"type": "signal.thread.created", "title": title, "labels": {}}
        archived = {"type": "signal.thread.archived", "archived": True}
        entries = (Entry(new_entry_id(), now, each) for each in (created, archived))
        config = StreamConfig(content_type="application/json")
        await self._store.create(THREADS + thread, config, keyed=tuple(map(keyed, entries)))
