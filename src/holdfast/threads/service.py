"""Operations on threads: create, find, rename, chat and read. Everything is stored as entries on streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.api.errors import Conflict, InvalidRequest, NotFound
from holdfast.api.ids import new_entry_id, new_id, now_ms
from holdfast.api.thread.entries import Entry
from holdfast.threads.entries import keyed
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.surface import THREADS, Slices, stream_path
from holdfast.threads.rows import RowFilter, Spending, SpendingFilter, SpendingKey, ThreadRow, format_cursor
from holdfast.threads.run_events import DELTA
from holdfast.threads.selection import Selection, Unfinished
from holdfast.threads.store import AppendRequest, StreamConfig, StreamStore

_READ_BYTES: Final = 128 * 1024
"""How much is searched in one turn of the event loop, by all searches together."""
_PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page ends with the entry that exceeds this size."""
_SEARCH_BYTES: Final = 64 * 1024 * 1024
"""How much of a thread is searched to fill one page."""


@dataclass(frozen=True, slots=True)
class EntryPage:
    entries: list[dict[str, Any]]
    position: int
    """Where the next page begins."""
    up_to_date: bool


@dataclass(frozen=True, slots=True)
class ThreadPage:
    rows: list[ThreadRow]
    next_cursor: str | None


class Threads:
    """The operations on threads. Holds no thread state itself."""

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
            raise Conflict(f"thread {id} already exists")
        return await self.get(id)

    async def get(self, id: str) -> ThreadRow:
        await self._expect(id, f"thread {id}")
        row = await self._projection.row(id)
        if row is None:
            raise NotFound(f"there is no thread {id}")
        return row

    async def list(self, wanted: RowFilter) -> ThreadPage:
        rows = await self._projection.rows(replace(wanted, limit=wanted.limit + 1))
        page = rows[: wanted.limit]
        return ThreadPage(page, format_cursor(page[-1]) if len(rows) > len(page) else None)

    async def spending(self, wanted: SpendingFilter, by: SpendingKey = "all") -> Sequence[Spending]:
        """Returns the sums of calls of models."""
        return await self._projection.spending(wanted, by)

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
        """Append a chat message. Returns the entry and the position after it."""
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
        """Returns up to `limit` entries of these types, beginning at position `since`.

        Without `live`, streamed text deltas are left out. With `unfinished`, the page still includes the deltas of
        messages that are incomplete at its end, for readers that then follow the thread. These do not count towards
        `limit`.

        A page is limited in size and in how much of the thread is searched. It may have fewer entries than `limit`, or
        none, and still not be the last.
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
        except NotFound:
            raise NotFound(f"there is no {what}", hint="list all threads: holdfast thread list") from None

    def _entry(self, kind: str, *, author_id: str | None = None, id: str | None = None, **fields: Any) -> Entry:
        return Entry(id or new_entry_id(), self._clock(), {"type": kind, **fields}, author_id)


def _path(id: str) -> str:
    path = THREADS + id
    if stream_path(path) != path:
        raise InvalidRequest(f"{id!r} cannot be the id of a thread")
    return path
