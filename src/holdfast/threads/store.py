"""The contract of a stream store. SQLite keeps it embedded; other stores keep it at scale.

`holdfast.testing.store_suites.streams` is the contract as a test-suite: a store is right when it passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.threads.acknowledgement import Acknowledgement
from holdfast.threads.streams import AppendRequest, Change, Keyed, Slice, StreamConfig, StreamInfo

Watcher = Callable[[Change], None]
"""Called on the event loop after a commit; must not block and must not raise."""


@dataclass(frozen=True, slots=True)
class Created:
    info: StreamInfo
    new: bool
    """False where an identical stream was there already."""


class StreamStore(Protocol):
    """Durable streams of bytes. Whatever is acknowledged is on disk; whatever failed left no trace.

    Paths are relative (`threads/t-1`), already validated. All methods belong to the event loop that opened the store.
    Every access but `head` restarts a sliding TTL.
    """

    async def create(
        self, path: str, config: StreamConfig, data: bytes = b"", keyed: tuple[Keyed, ...] = ()
    ) -> Created:
        """Create the stream with its first bytes or keyed messages, or confirm that an identical one exists."""
        ...

    def append(self, path: str, request: AppendRequest) -> Acknowledgement:
        """Append and, where asked, close, in one atomic step. Refusals may be raised at the call or when awaited.

        Whoever is called back by the acknowledgement is called before watchers are told, however many there are.
        """
        ...

    async def append_many(self, path: str, request: AppendRequest) -> Acknowledgement:
        """The same for many messages, where what takes long does not hold the event loop up.

        The append has its place in the stream when this returns, and is durable when that is acknowledged.
        """
        ...

    async def head(self, path: str) -> StreamInfo:
        """The stream as it stands; does not count as an access."""
        ...

    async def touch(self, path: str) -> StreamInfo:
        """The stream as it stands, counting as an access."""
        ...

    async def read(self, path: str, start: int, limit: int) -> Slice:
        """Whole messages from `start` on, about `limit` bytes of them (at least one where there is one)."""
        ...

    async def delete(self, path: str) -> None:
        """Delete the stream. One that has forks is gone for all but its forks, which keep what they share."""
        ...

    async def list_paths(self, prefix: str = "") -> list[str]:
        """Paths of all live streams that start so, sorted."""
        ...

    def watch(self, path: str, watcher: Watcher) -> Callable[[], None]:
        """Be told of every later change of one stream, in order, with no gap; returns how to stop."""
        ...

    def observe(self, watcher: Watcher) -> Callable[[], None]:
        """Be told of every change of every stream; returns how to stop."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then let go of the store."""
        ...
