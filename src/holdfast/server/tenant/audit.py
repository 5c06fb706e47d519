"""The audit log of a tenant: who asked for what, what came of it, and which sessions have ended. A stream of entries
with the seal of the server.

It has the form of a thread, so every client of the stream protocol reads and follows it. It is no thread, because
members write on threads. Requests that only read, and those that code in boxes makes by the hundred, are not in it.
What changes something is answered once it is in the log, so a server that is killed has lost no record of its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors import NotFound
from holdfast.api.ids import new_id
from holdfast.api.thread.entries import Entry
from holdfast.threads.access.credentials import AUDIT, Grant
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import keyed
from holdfast.threads.selection import Selection
from holdfast.threads.store import AppendRequest, StreamConfig, StreamStore

log = logging.getLogger(__name__)

RECORD: Final = "signal.audit.request"
SESSION_ENDED: Final = "signal.audit.session_ended"
_SERVER: Final = "server"
"""Who ended a session that nobody asked to end."""
_MOST_WAITING: Final = 10_000
_AT_ONCE: Final = 200
_READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class _Waiting:
    entry: Entry
    written: asyncio.Future[None]


class AuditLog:
    """Writes many entries at once, from `start` to `close`, which writes what waits."""

    def __init__(self, store: StreamStore, seals: Seals, clock: Callable[[], int]) -> None:
        self._store = store
        self._seals = seals
        self._clock = clock
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue(_MOST_WAITING)
        self._writing: asyncio.Task[None] | None = None
        self._is_there = False

    def start(self) -> None:
        self._writing = asyncio.create_task(self._keep_writing(), name="audit log")

    async def close(self) -> None:
        if self._writing is None:
            return
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        while not self._waiting.empty():
            some = self._some()
            with contextlib.suppress(Exception):  # a full disk, which was logged before
                await self._write(some)
            _settle(some)

    def record(self, grant: Grant, method: str, path: str, status: int, **more: Any) -> Awaitable[None]:
        """Note a request. The result ends when that is on disk, or cannot be, which is logged and fails no request."""
        payload: dict[str, Any] = {"type": RECORD, "method": method, "path": path, "status": status, "user": grant.user}
        for name, value in (("key", grant.key), ("login", grant.login), ("thread", grant.thread)):
            if value is not None:
                payload[name] = value
        return self._add(Entry(new_id("a"), self._clock(), {**payload, "role": grant.role.value, **more}, grant.user))

    def record_end(
        self, session: str, state: str, *, by: str | None, why: str | None, parent: str | None
    ) -> Awaitable[None]:
        """Note that a session has ended, whoever or whatever ended it. A repetition is not written."""
        payload: dict[str, Any] = {"type": SESSION_ENDED, "thread": session, "state": state, "user": by or _SERVER}
        known = {name: value for name, value in (("why", why), ("parent", parent)) if value is not None}
        return self._add(Entry(f"a-end-{session}-{state}", self._clock(), {**payload, **known}, by or _SERVER))

    def _add(self, entry: Entry) -> Awaitable[None]:
        written = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait(_Waiting(self._seals.seal(AUDIT, entry), written))
        except asyncio.QueueFull:
            log.error("the audit log cannot keep up, and lacks an entry: %s", entry.payload)
            written.set_result(None)
        return written

    async def entries(self, since: int, limit: int) -> tuple[list[dict[str, Any]], int, bool]:
        """Returns entries from a position, the position after them, and whether these are all."""
        if not await self._exists():
            return [], 0, True
        read = await self._store.read(AUDIT, since, _READ_BYTES)
        found: list[dict[str, Any]] = []
        end = since
        for each in Selection((), live=True).take(read.data):
            if len(found) == limit:
                return found, end, False
            found.append(each.entry)
            end = since + each.end
        return found, read.end, read.up_to_date

    async def _exists(self) -> bool:
        if not self._is_there:
            try:
                await self._store.head(AUDIT)
                self._is_there = True
            except NotFound:
                return False
        return True

    def _some(self, *first: _Waiting) -> list[_Waiting]:
        some = list(first)
        while len(some) < _AT_ONCE and not self._waiting.empty():
            some.append(self._waiting.get_nowait())
        return some

    async def _keep_writing(self) -> None:
        while True:
            some = self._some(await self._waiting.get())
            try:
                await self._write(some)
            except asyncio.CancelledError:
                for each in some:  # ids make a second writing harmless
                    with contextlib.suppress(asyncio.QueueFull):
                        self._waiting.put_nowait(each)
                raise
            except Exception as error:
                log.error("the audit log cannot be written, and lacks %d entries: %s", len(some), error)
                _settle(some)

    async def _write(self, some: list[_Waiting]) -> None:
        messages = tuple(keyed(each.entry) for each in some)
        if not await self._exists():
            created = await self._store.create(AUDIT, StreamConfig(content_type="application/json"), keyed=messages)
            self._is_there = True
            if created.new:
                _settle(some)
                return
        await self._store.append(AUDIT, AppendRequest(keyed=messages))
        _settle(some)


def _settle(some: list[_Waiting]) -> None:
    for each in some:
        if not each.written.done():  # who waited for it may have left
            each.written.set_result(None)
