"""Threads, as people and agents use them: create, find, name, talk, read. All of it is entries on streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.threads.entries import Entry, keyed
from holdfast.threads.errors import InvalidRequest, StreamConflict, StreamNotFound
from holdfast.threads.ids import new_entry_id, new_id, now_ms
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.slices import Slices
from holdfast.threads.protocol.surface import THREADS, stream_path
from holdfast.threads.rows import RowFilter, ThreadRow, format_cursor
from holdfast.threads.run_events import DELTA
from holdfast.threads.selection import Selection, Unfinished
from holdfast.threads.store import StreamStore
from holdfast.threads.streams import AppendRequest, StreamConfig

_READ_BYTES: Final = 128 * 1024
"""What is searched in one turn of the event loop, by all who search."""
_PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page ends with the entry that makes it longer than this."""
_SEARCH_BYTES: Final = 64 * 1024 * 1024
"""How much of a thread is searched for one page."""


@dataclass(frozen=True, slots=True)
class EntryPage:
    entries: list[dict[str, Any]]
    position: int
    """Where to go on."""
    up_to_date: bool


@dataclass(frozen=True, slots=True)
class ThreadPage:
    rows: list[ThreadRow]
    next_cursor: str | None


class Threads:
    """The operations on threads. Holds no state of theirs."""

    def __init__(self, store: StreamStore, projection: Projection, *, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._projection = projection
        self._clock = clock
        self._slices = Slices()

    async def create(
        self,
        *,
        id: str | None = None,
        title: str | None = None,
        parent: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> ThreadRow:
        id = id or new_id("t")
        path = _path(id)
        if parent is not None:
            await self._expect(parent, f"parent thread {parent}")
        created = self._entry("signal.thread.created", title=title, parent=parent, labels=labels or {})
        stream = await self._store.create(path, StreamConfig(content_type="application/json"), keyed=(keyed(created),))
        if not stream.new:
            raise StreamConflict(f"there is a thread {id} already")
        return await self.get(id)

    async def get(self, id: str) -> ThreadRow:
        await self._expect(id, f"thread {id}")
        row = await self._projection.row(id)
        if row is None:
            raise StreamNotFound(f"there is no thread {id}")
        return row

    async def list(self, wanted: RowFilter) -> ThreadPage:
        rows = await self._projection.rows(replace(wanted, limit=wanted.limit + 1))
        page = rows[: wanted.limit]
        return ThreadPage(page, format_cursor(page[-1]) if len(rows) > len(page) else None)

    async def rename(self, id: str, title: str) -> None:
        await self._signal(id, "renamed", title=title)

    async def label(self, id: str, labels: dict[str, str]) -> None:
        await self._signal(id, "labelled", labels=labels)

    async def archive(self, id: str, archived: bool) -> None:
        await self._signal(id, "archived", archived=archived)

    async def delete(self, id: str) -> None:
        await self._expect(id, f"thread {id}")
        await self._store.delete(_path(id))

    async def chat(
        self, id: str, text: str, *, author_id: str | None = None, entry_id: str | None = None
    ) -> tuple[Entry, int]:
        """Say something on a thread; returns the entry and the position after it."""
        entry = self._entry("chat", role="user", text=text, author_id=author_id, id=entry_id)
        position = await self._append(id, entry)
        return entry, position

    async def entries(
        self,
        id: str,
        *,
        types: tuple[str, ...],
        since: int,
        limit: int,
        live: bool = True,
        unfinished: bool = False,
    ) -> EntryPage:
        """Up to `limit` entries of these types, from a position on. Not `live`: without text that came in pieces.

        `unfinished`: with the pieces of messages that are not whole by the end of the page, for readers that go on to
        follow the thread. They do not count for `limit`.

        A page is bounded in bytes and in what is searched for it: it may have fewer entries, or none, and not be the
        last.
        """
        path = _path(id)
        joins = unfinished and not live
        selection = Selection(types, live=live or joins)
        pieces = Unfinished(_PAGE_BYTES)
        found: list[dict[str, Any]] = []
        begin, size = since, 0
        while True:
            read = await self._store.read(path, begin, _READ_BYTES)
            async with self._slices.turn():
                for each in selection.take(read.data):
                    kind: str = each.entry["payload"]["type"]
                    if joins and kind.endswith(DELTA):
                        pieces.add(len(found), each)
                        continue
                    pieces.settle(kind)
                    found.append(each.entry)
                    size += each.size
                    if len(found) == limit or size >= _PAGE_BYTES:
                        end = begin + each.end
                        return EntryPage(pieces.merge(found), end, up_to_date=end == read.tail)
            begin = read.end
            if read.up_to_date or begin - since >= _SEARCH_BYTES:
                return EntryPage(pieces.merge(found), begin, up_to_date=read.up_to_date)

    async def _signal(self, id: str, name: str, **fields: Any) -> None:
        await self._append(id, self._entry(f"signal.thread.{name}", **fields))

    async def _append(self, id: str, entry: Entry) -> int:
        await self._expect(id, f"thread {id}")
        appended = await self._store.append(_path(id), AppendRequest(keyed=(keyed(entry),)))
        return appended.tail

    async def _expect(self, id: str, what: str) -> None:
        try:
            await self._store.head(_path(id))
        except StreamNotFound:
            raise StreamNotFound(f"there is no {what}", hint="holdfast thread list shows what there is") from None

    def _entry(self, kind: str, *, author_id: str | None = None, id: str | None = None, **fields: Any) -> Entry:
        return Entry(id or new_entry_id(), self._clock(), {"type": kind, **fields}, author_id)


def _path(id: str) -> str:
    path = THREADS + id
    if stream_path(path) != path:
        raise InvalidRequest(f"{id!r} cannot be the id of a thread")
    return path
