"""The contract of a stream store. SQLite is the embedded implementation.

`holdfast.testing.store_suites.streams` is the contract as a test suite: a store that passes it is correct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.threads.acknowledgement import Acknowledgement
from holdfast.threads.streams import AppendRequest, Change, Keyed, Slice, StreamConfig, StreamInfo

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
