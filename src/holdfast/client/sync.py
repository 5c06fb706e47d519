"""The sync twin of the client. There is one implementation, the async one; this runs it on a private event loop.

Works without an event loop, inside a running one (which it blocks, as any sync call does) and in notebooks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast.client.agents import SyncAgentStore
from holdfast.client.backoff import RetryNotice
from holdfast.client.box.sync import SyncBoxes
from holdfast.client.client import Client
from holdfast.client.connection import DEFAULT_RETRY_SECONDS, DEFAULT_TIMEOUT, FindAgain
from holdfast.client.egress import SyncEgress
from holdfast.client.images import SyncImages
from holdfast.client.interpreters import SyncInterpreters
from holdfast.client.keys import Keys
from holdfast.client.models import SyncModelStore
from holdfast.client.runs import SyncRuns
from holdfast.client.thread.tail import Tail
from holdfast.client.thread.thread import Appendable, Thread
from holdfast.client.thread.threads import Archived, Labels, Threads
from holdfast.client.types import (
    Acknowledgement,
    EntryPage,
    Key,
    Scope,
    Status,
    ThreadInfo,
    ThreadPage,
    Token,
)
from holdfast.loop_thread import LoopThread
from holdfast.threads.entries import Entry

T = TypeVar("T")


class SyncClient:
    """A Holdfast server, for code without `await`. Safe to share between threads; `with` closes it.

    Without a URL it is the server that the command line would use, as with `Client`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        on_retry: Callable[[RetryNotice], None] | None = None,
        find_again: FindAgain | None = None,
    ) -> None:
        self._client = Client(
            url,
            api_key=api_key,
            timeout=timeout,
            retry_seconds=retry_seconds,
            on_retry=on_retry,
            find_again=find_again,
        )
        self._loop = LoopThread()
        self._closed = False
        self.agents = SyncAgentStore(self._client.agents, self._loop)
        self.threads = SyncThreads(self._client.threads, self._loop)
        self.keys = SyncKeys(self._client.keys, self._loop)
        self.boxes = SyncBoxes(self._client.boxes, self._loop)
        self.egress = SyncEgress(self._client.egress, self._loop)
        self.images = SyncImages(self._client.images, self._loop)
        self.models = SyncModelStore(self._client.models, self._loop)
        self.runs = SyncRuns(self._client.runs, self._loop)
        self.interpreters = SyncInterpreters(self._client.interpreters, self._loop)

    @property
    def url(self) -> str:
        return self._client.url

    def __repr__(self) -> str:
        return f"<SyncClient of {self.url}>"

    def thread(self, id: str) -> SyncThread:
        """A handle on a thread; asks nothing yet."""
        return SyncThread(self._client.thread(id), self._loop)

    def health(self) -> dict[str, Any]:
        """What the server says of itself; needs no credential."""
        return self._loop.run(self._client.health())

    def renew_token(self) -> Token:
        """Exchange the thread token this client uses for a fresh one, and use that from now on."""
        return self._loop.run(self._client.renew_token())

    def close(self) -> None:
        """Let go of all connections and of the event loop. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            try:
                self._loop.run(self._client.aclose())
            finally:
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SyncThreads:
    """All threads of one server: `client.threads`."""

    def __init__(self, threads: Threads, loop: LoopThread) -> None:
        self._threads = threads
        self._loop = loop

    def create(
        self,
        *,
        title: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> SyncThread:
        """Make a thread, and return a handle on it. `Conflict` where the id is taken."""
        made = self._loop.run(self._threads.create(title=title, parent=parent, labels=labels, id=id))
        return SyncThread(made, self._loop)

    def list(
        self,
        *,
        parent: str | None = None,
        status: Status | None = None,
        labels: Labels | None = None,
        archived: Archived = False,
        limit: int | None = None,
    ) -> Iterator[ThreadInfo]:
        """All threads that fit, or the first `limit` of them, those with the newest activity first."""
        found = self._threads.list(parent=parent, status=status, labels=labels, archived=archived, limit=limit)
        return SyncIterator(found, self._loop)

    def page(
        self,
        *,
        parent: str | None = None,
        status: Status | None = None,
        labels: Labels | None = None,
        archived: Archived = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> ThreadPage:
        """Up to `limit` threads at once (200 at most), and where the next ones are."""
        return self._loop.run(
            self._threads.page(
                parent=parent, status=status, labels=labels, archived=archived, cursor=cursor, limit=limit
            )
        )

    def get(self, id: str) -> ThreadInfo:
        return self._loop.run(self._threads.get(id))

    def rename(self, id: str, title: str) -> ThreadInfo:
        return self._loop.run(self._threads.rename(id, title))

    def update(self, id: str, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        return self._loop.run(self._threads.update(id, labels=labels, archived=archived))

    def delete(self, id: str) -> None:
        self._loop.run(self._threads.delete(id))

    def token(self, id: str, scope: Scope = "read", *, ttl_seconds: int = 7200) -> Token:
        return self._loop.run(self._threads.token(id, scope, ttl_seconds=ttl_seconds))


class SyncThread:
    """One thread of the server: `client.thread(id)`."""

    def __init__(self, thread: Thread, loop: LoopThread) -> None:
        self._thread = thread
        self._loop = loop

    @property
    def id(self) -> str:
        return self._thread.id

    def __repr__(self) -> str:
        return f"<Sync{repr(self._thread)[1:]}"

    def append(self, what: Appendable | Sequence[Appendable], *, author_id: str | None = None) -> Acknowledgement:
        """Append entries, and return when they are on the server's disk: those of one request all or none.

        More than 20,000 entries or 16 MiB are sent in several requests, in order.
        """
        return self._loop.run(self._thread.append(what, author_id=author_id))

    def append_encoded(self, entries: Sequence[bytes]) -> None:
        """The same for whole entries that are JSON already, each with an id of its own."""
        self._loop.run(self._thread.append_encoded(entries))

    def chat(self, text: str, *, author_id: str | None = None) -> Entry:
        """Say something as the user."""
        return self._loop.run(self._thread.chat(text, author_id=author_id))

    def entries(
        self,
        *,
        types: str | Sequence[str] = (),
        since: str | None = None,
        limit: int | None = None,
        live: bool = False,
    ) -> Iterator[Entry]:
        """The entries there are, oldest first: from an offset on, of some types (`chat`, `pi.*`), at most so many."""
        return SyncIterator(self._thread.entries(types=types, since=since, limit=limit, live=live), self._loop)

    def page(
        self,
        *,
        types: str | Sequence[str] = (),
        since: str | None = None,
        limit: int = 100,
        live: bool = False,
        unfinished: bool = False,
    ) -> EntryPage:
        """Up to `limit` entries at once (1000 at most), and where the next ones are."""
        page = self._thread.page(types=types, since=since, limit=limit, live=live, unfinished=unfinished)
        return self._loop.run(page)

    def tail(self, *, since: str | None = None, patience: float | None = None) -> SyncTail:
        """Follow the thread from an offset on (the beginning, unless told), as entries come."""
        return SyncTail(self._thread.tail(since=since, patience=patience), self._loop)

    def info(self) -> ThreadInfo:
        return self._loop.run(self._thread.info())

    def rename(self, title: str) -> ThreadInfo:
        return self._loop.run(self._thread.rename(title))

    def update(self, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        """Replace the labels, archive the thread or bring it back; what is None stays."""
        return self._loop.run(self._thread.update(labels=labels, archived=archived))

    def delete(self) -> None:
        """Delete the thread and all its entries, for good."""
        self._loop.run(self._thread.delete())

    def token(self, scope: Scope = "read", *, ttl_seconds: int = 7200) -> Token:
        """A credential for this thread alone. Needs an API key."""
        return self._loop.run(self._thread.token(scope, ttl_seconds=ttl_seconds))

    def link(self, *, ttl_seconds: int = 24 * 3600) -> str:
        """The address of this thread's page, with a key to read it in the part that browsers never send."""
        return self._loop.run(self._thread.link(ttl_seconds=ttl_seconds))


class SyncKeys:
    """All API keys of one server: `client.keys`."""

    def __init__(self, keys: Keys, loop: LoopThread) -> None:
        self._keys = keys
        self._loop = loop

    def create(self, name: str) -> Key:
        """A new key. Its `secret` is told this once: the server keeps only a digest."""
        return self._loop.run(self._keys.create(name))

    def list(self) -> list[Key]:
        return self._loop.run(self._keys.list())

    def revoke(self, id: str) -> None:
        """The key stops working, on all servers of the store."""
        self._loop.run(self._keys.revoke(id))


class SyncIterator(Generic[T]):
    """An async iterator, one item at a time."""

    def __init__(self, items: AsyncIterator[T], loop: LoopThread) -> None:
        self._items = items
        self._loop = loop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return self._loop.run(_next(self._items))
        except StopAsyncIteration:
            raise StopIteration from None


class SyncTail(SyncIterator[Entry]):
    """The entries of one thread, those to come included; `with` makes sure it is closed."""

    def __init__(self, tail: Tail, loop: LoopThread) -> None:
        super().__init__(tail, loop)
        self._tail = tail

    @property
    def offset(self) -> str:
        """Where to go on after the entry that was handed out last: `thread.tail(since=tail.offset)`."""
        return self._tail.offset

    def close(self) -> None:
        """Stop following. The offset stays known. Closing twice does nothing."""
        self._loop.run(self._tail.aclose())

    def __enter__(self) -> Self:
        """Entering fixes what `now` means, so that nothing written afterwards is missed."""
        self._loop.run(self._tail.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _next(items: AsyncIterator[T]) -> Coroutine[Any, Any, T]:
    async def next_item() -> T:
        return await anext(items)

    return next_item()
