"""The contract of a stream store: its types, its methods, and the feed of its changes.

SQLite is the embedded implementation. `holdfast.testing.store_suites.streams` is the contract as a test suite: a store
that passes it is correct. The decisions that all stores share are in `protocol.rules`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from holdfast.api.errors import Refused

MAX_SAFE_INTEGER: Final = 2**53 - 1

log = logging.getLogger(__name__)


@functools.lru_cache(maxsize=256)
def normalize_content_type(value: str) -> str:
    """Returns the media type in lower case, without parameters such as charset."""
    return value.split(";", 1)[0].strip().lower()


def is_json(content_type: str) -> bool:
    return normalize_content_type(content_type) == "application/json"


@dataclass(frozen=True, slots=True)
class Producer:
    """The claim of an idempotent producer that this is request `seq` of incarnation `epoch`."""

    id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a new stream forks from another."""

    source: str
    """Path of the stream to fork."""
    offset: int | None
    """Position in the source; None means its current tail."""
    sub_offset: int
    """Messages (JSON) or bytes past that position."""


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The configuration that a client requests. Creating a stream twice with equal configurations yields one stream."""

    content_type: str | None = None
    """None: inherited from the source of a fork, otherwise application/octet-stream."""
    ttl_seconds: int | None = None
    """Sliding: counted from the last read or write."""
    expires_at: int | None = None
    """UTC milliseconds."""
    closed: bool = False
    fork: ForkPoint | None = None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The current state of a stream."""

    id: int
    path: str
    content_type: str
    tail: int
    closed: bool
    ttl_seconds: int | None
    expires_at: int | None
    created_at: int
    fork_source: str | None
    fork_offset: int


class Keyed(NamedTuple):
    """A message with a deduplication key. It is appended only if the stream has no message with that key yet."""

    key: str
    data: bytes
    fresh: bool = False
    """The key was generated at random for this message, so no other message can have it."""


@dataclass(slots=True)
class AppendRequest:
    """One append. `data` is already framed. `keyed` replaces it when messages are deduplicated by key."""

    data: bytes = b""
    content_type: str | None = None
    """As the client sent it. None is not checked (an empty body, or the server's own entries)."""
    producer: Producer | None = None
    seq: str | None = None
    close: bool = False
    keyed: tuple[Keyed, ...] = ()


class Appended(NamedTuple):
    """The acknowledgement of an append that is on disk."""

    tail: int
    closed: bool = False
    duplicate: bool = False
    producer: Producer | None = None
    """The producer's highest accepted state, which the response echoes."""


Callback = Callable[[Appended | None, Refused | None], object]
"""Called with the result, or with the error."""


class Acknowledgement:
    """The result of an append that is being written to disk. Await it, or register a callback with `then`.

    A callback runs in the same step of the event loop that settles the append, before the readers of the stream are
    notified. A future would wake its waiter only after all readers have been written to.
    """

    __slots__ = ("_appended", "_callbacks", "_error")

    def __init__(self) -> None:
        self._appended: Appended | None = None
        self._error: Refused | None = None
        self._callbacks: list[Callback] = []

    @classmethod
    def given(cls, appended: Appended) -> Acknowledgement:
        """Returns an acknowledgement that is already settled."""
        acknowledgement = cls()
        acknowledgement._appended = appended
        return acknowledgement

    def then(self, callback: Callback) -> None:
        """Call `callback` once the append is settled, or immediately if it already is."""
        if self._appended is None and self._error is None:
            self._callbacks.append(callback)
        else:
            callback(self._appended, self._error)

    def settle(self, appended: Appended | None, error: Refused | None) -> None:
        """Called by the store, exactly once."""
        self._appended, self._error = appended, error
        for callback in self._callbacks:
            callback(appended, error)

    def __await__(self) -> Generator[Any, None, Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def wake(appended: Appended | None, error: Refused | None) -> None:
            if future.done():
                return  # the waiter was cancelled
            if error is not None:
                future.set_exception(error)
            elif appended is not None:
                future.set_result(appended)

        self.then(wake)
        return (yield from future)


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive bytes of a stream."""

    data: bytes
    start: int
    end: int
    tail: int
    closed: bool

    @property
    def up_to_date(self) -> bool:
        return self.end == self.tail


@dataclass(frozen=True, slots=True)
class Change:
    """One durable commit to a stream, as watchers see it."""

    path: str
    start: int
    data: bytes | None
    """None if the watcher must read the bytes from the store, because another server may have written them."""
    end: int
    closed: bool = False
    deleted: bool = False


Watcher = Callable[[Change], None]
"""Called on the event loop after a commit. Must not block and must not raise."""


@dataclass(frozen=True, slots=True)
class Created:
    info: StreamInfo
    new: bool
    """False if an identical stream already existed."""


class StreamStore(Protocol):
    """Durable streams of bytes. An acknowledged append is on disk; a failed one leaves no trace.

    Paths are relative (`threads/t-1`) and already validated. All methods must be called on the event loop that opened
    the store. Every access except `head` restarts a sliding TTL.
    """

    async def create(
        self, path: str, config: StreamConfig, data: bytes = b"", keyed: tuple[Keyed, ...] = ()
    ) -> Created:
        """Create a stream with its first bytes or keyed messages, or confirm that an identical one exists."""
        ...

    def append(self, path: str, request: AppendRequest) -> Acknowledgement:
        """Append, and close the stream if the request asks for it, in one atomic step.

        May raise at once or when the acknowledgement is awaited. Callbacks of the acknowledgement run before any
        watcher is notified.
        """
        ...

    async def append_many(self, path: str, request: AppendRequest) -> Acknowledgement:
        """Append many messages without blocking the event loop for long.

        The append has its place in the stream when this method returns. It is durable when the acknowledgement settles.
        """
        ...

    async def head(self, path: str) -> StreamInfo:
        """Returns the current state of a stream. Does not count as an access."""
        ...

    async def touch(self, path: str) -> StreamInfo:
        """Returns the current state of a stream. Counts as an access."""
        ...

    async def read(self, path: str, start: int, limit: int) -> Slice:
        """Returns whole messages from `start`, about `limit` bytes of them, and at least one if there is any."""
        ...

    async def delete(self, path: str) -> None:
        """Delete a stream. If it has forks, they keep the data they share with it."""
        ...

    async def list_paths(self, prefix: str = "") -> list[str]:
        """Returns the paths of all live streams with this prefix, sorted."""
        ...

    def watch(self, path: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every later change of one stream, in order and without gaps. Returns a function that stops
        it.
        """
        ...

    def observe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every change of every stream. Returns a function that stops it."""
        ...

    async def close(self) -> None:
        """Finish all accepted appends, then release the store."""
        ...


class ChangeFeed:
    """Watchers of single streams, by stream id, and observers of all streams. Must be used on the event loop.

    A store announces its own commits here. A store that several servers share also announces the commits of the others,
    which it learns from its database (PostgreSQL: LISTEN and NOTIFY). Such a change need not carry bytes: without them,
    watchers read from the store.
    """

    def __init__(self) -> None:
        self._watchers: dict[int, list[Watcher]] = {}
        self._observers: list[Watcher] = []

    def watch(self, stream: int, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every later change of a stream until it is deleted. Returns a function that stops it."""
        self._watchers.setdefault(stream, []).append(watcher)

        def stop() -> None:
            watchers = self._watchers.get(stream, [])
            if watcher in watchers:
                watchers.remove(watcher)
                if not watchers:
                    del self._watchers[stream]

        return stop

    def observe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for every later change of every stream. Returns a function that stops it."""
        self._observers.append(watcher)

        def stop() -> None:
            if watcher in self._observers:
                self._observers.remove(watcher)

        return stop

    def is_followed(self, stream: int) -> bool:
        """Returns whether anything watches this stream."""
        return bool(self._observers) or stream in self._watchers

    def announce(self, stream: int, change: Change) -> None:
        """Notify all followers of a stream of a durable change. Changes of one stream must be announced in order."""
        watchers = self._watchers.pop(stream, []) if change.deleted else self._watchers.get(stream, [])
        for watcher in (*watchers, *self._observers):
            try:
                watcher(change)
            except Exception:
                log.exception("a watcher of stream %s failed", change.path)
