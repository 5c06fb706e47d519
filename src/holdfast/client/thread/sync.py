"""The client's threads for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.api.thread.entries import Entry
from holdfast.sync_twin import SyncHandle, SyncIterator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.api.access.keys import Token
    from holdfast.api.thread.entries import Acknowledgement
    from holdfast.api.thread.threads import EntryPage, ThreadInfo, ThreadPage
    from holdfast.client.thread.tail import Tail
    from holdfast.client.thread.thread import Appendable, Thread
    from holdfast.client.thread.threads import Archived, Labels, Threads


class SyncThreads(SyncHandle):
    """`Threads` for code without `await`."""

    _async: Threads

    def create(
        self,
        *,
        title: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> SyncThread:
        """Create a thread, and return a handle on it. Raises `Conflict` if the id is taken."""
        return SyncThread._wrap(
            self._loop.run(self._async.create(title=title, parent=parent, labels=labels, id=id)), self
        )

    def list(
        self,
        *,
        parent: str | None = None,
        status: str | None = None,
        labels: Labels | None = None,
        archived: Archived = False,
        limit: int | None = None,
    ) -> SyncIterator[ThreadInfo]:
        """Yields matching threads, latest activity first, at most `limit`."""
        return SyncIterator._wrap(
            self._async.list(parent=parent, status=status, labels=labels, archived=archived, limit=limit), self
        )

    def page(
        self,
        *,
        parent: str | None = None,
        status: str | None = None,
        labels: Labels | None = None,
        archived: Archived = False,
        search: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> ThreadPage:
        """Returns up to `limit` threads (200 at most) and the cursor of the next page.

        `search` has words that are all in the title or the id.
        """
        return self._loop.run(
            self._async.page(
                parent=parent,
                status=status,
                labels=labels,
                archived=archived,
                search=search,
                cursor=cursor,
                limit=limit,
            )
        )

    def get(self, id: str) -> ThreadInfo:
        return self._loop.run(self._async.get(id))

    def rename(self, id: str, title: str) -> ThreadInfo:
        return self._loop.run(self._async.rename(id, title))

    def update(self, id: str, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        return self._loop.run(self._async.update(id, labels=labels, archived=archived))

    def delete(self, id: str) -> None:
        self._loop.run(self._async.delete(id))

    def token(self, id: str, scope: str = "read", *, ttl_seconds: int = 7200) -> Token:
        return self._loop.run(self._async.token(id, scope, ttl_seconds=ttl_seconds))


class SyncThread(SyncHandle):
    """`Thread` for code without `await`."""

    _async: Thread

    @property
    def id(self) -> str:
        return self._async.id

    def append(self, what: Appendable | Sequence[Appendable], *, author_id: str | None = None) -> Acknowledgement:
        """Append entries, and return when they are on the server's disk.

        Up to 20,000 entries and 16 MiB fit in one request, and all or none of them are written. More are sent in
        several requests, in order, with no other append of this handle in between.

        A payload gets an id and a time here. An `Entry` keeps its own, and is skipped if the thread already has its id.
        Lost connections and overload are retried. `Unreachable` lists the entries that were not acknowledged.
        """
        return self._loop.run(self._async.append(what, author_id=author_id))

    def append_encoded(self, entries: Sequence[bytes]) -> None:
        """Like `append`, for complete entries that are already JSON, each with its own id."""
        self._loop.run(self._async.append_encoded(entries))

    def chat(self, text: str, *, author_id: str | None = None) -> Entry:
        """Append a chat message as the user."""
        return self._loop.run(self._async.chat(text, author_id=author_id))

    def entries(
        self, *, types: str | Sequence[str] = (), since: str | None = None, limit: int | None = None, live: bool = False
    ) -> SyncIterator[Entry]:
        """Yields the existing entries, oldest first: from an offset, of some types (`chat`, `pi.*`), at most `limit`.

        With `live`, includes the streamed pieces of agent messages, before each complete message.
        """
        return SyncIterator._wrap(self._async.entries(types=types, since=since, limit=limit, live=live), self)

    def page(
        self,
        *,
        types: str | Sequence[str] = (),
        since: str | None = None,
        limit: int = 100,
        live: bool = False,
        unfinished: bool = False,
    ) -> EntryPage:
        """Returns up to `limit` entries (1000 at most) and the offset of the next page.

        With `unfinished`, the last page also has the pieces of a message that is not complete yet. A tail from there
        continues with the next piece.
        """
        return self._loop.run(self._async.page(types=types, since=since, limit=limit, live=live, unfinished=unfinished))

    def tail(self, *, since: str | None = None, patience: float | None = None) -> SyncTail:
        """Follow the thread from an offset (by default, the beginning) as entries are written.

        Lost connections are resumed without gaps or repetition, without a time limit or for at most `patience` seconds
        each time.
        """
        return SyncTail._wrap(self._async.tail(since=since, patience=patience), self)

    def info(self) -> ThreadInfo:
        return self._loop.run(self._async.info())

    def rename(self, title: str) -> ThreadInfo:
        return self._loop.run(self._async.rename(title))

    def update(self, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        """Replace the labels, and archive or unarchive the thread. What is None stays as it is."""
        return self._loop.run(self._async.update(labels=labels, archived=archived))

    def delete(self) -> None:
        """Delete the thread and all its entries permanently."""
        self._loop.run(self._async.delete())

    def token(self, scope: str = "read", *, ttl_seconds: int = 7200) -> Token:
        """Issue a credential for this thread alone, to `read` it or also to `write` to it. Needs an API key."""
        return self._loop.run(self._async.token(scope, ttl_seconds=ttl_seconds))

    def link(self, *, ttl_seconds: int = 24 * 3600) -> str:
        """Returns the URL of this thread's page, with a read key in the fragment, which browsers never send."""
        return self._loop.run(self._async.link(ttl_seconds=ttl_seconds))


class SyncTail(SyncIterator[Entry]):
    """`Tail` for code without `await`."""

    _async: Tail

    @property
    def offset(self) -> str:
        """The position after the last entry returned: `thread.tail(since=tail.offset)`."""
        return self._async.offset

    def close(self) -> None:
        """Stop following. The offset stays known. Closing twice does nothing."""
        self._loop.run(self._async.aclose())

    def __enter__(self) -> Self:
        """Resolve `now` on entry, so that nothing written afterwards is missed."""
        self._loop.run(self._async.__aenter__())
        return self

    def _leave(self) -> None:
        self.close()
