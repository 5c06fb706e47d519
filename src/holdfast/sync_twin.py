"""What the sync twins stand on: handles that run an async object on a private event loop.

The twins themselves (`*/sync.py`) are written by `bin/generate` from the async classes. They work without an event
loop, inside a running one (which they block, as any sync call does) and in notebooks. Callbacks are called on the
thread of the private loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from holdfast.loop_thread import Forgotten, LoopThread, at_the_end

T = TypeVar("T")
_END: Final = object()


class SyncHandle:
    """A twin of an object that lives on somebody else's loop. It keeps the owner of that loop alive."""

    _async: Any
    _loop: LoopThread
    _above: SyncHandle | None

    @classmethod
    def _wrap(cls, found: Any, above: SyncHandle) -> Self:
        handle = cls.__new__(cls)
        handle._async, handle._loop, handle._above = found, above._loop, above
        return handle

    def __repr__(self) -> str:
        return repr(self._async).replace("<", "<Sync", 1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        """What the end of a `with` block does. Twins that can be closed override it."""


class SyncOwner(SyncHandle):
    """A twin that owns its loop. What it hands out shares the loop, and must not be used once the owner is closed."""

    _forgotten: Forgotten | None = None

    def _own(self, make: Callable[[], Any]) -> None:
        """Start a loop, and make the async object on it."""

        async def make_there() -> Any:
            return make()

        self._loop, self._above = LoopThread(), None
        try:
            self._async = self._loop.run(make_there())
        except BaseException:
            self._loop.close()
            raise

    def _end_when_dropped(self, end: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Have it ended where nobody does so: when it is dropped, or when the program ends."""
        self._forgotten = at_the_end(self, self._loop, end)

    def _enter(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self._loop.run(work)
        except BaseException:
            self._close_loop()
            raise

    def _end(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Do the last piece of work, and end the loop. Doing so twice does nothing."""
        if self._loop.closed:
            return
        try:
            self._loop.run(work())
        finally:
            self._close_loop()

    def _close_loop(self) -> None:
        if self._above is None:
            if self._forgotten is not None:
                self._forgotten.detach()
            self._loop.close()


class SyncIterator(SyncHandle, Generic[T]):
    """An async iterator for `for`. Left before its end, it is closed by `with`, by `close`, or when it is dropped."""

    _async: AsyncIterator[T]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        # StopAsyncIteration cannot cross a future, so the end is a value.
        item = self._loop.run(_next(self._async))
        if item is _END:
            raise StopIteration
        return item  # type: ignore[return-value]

    def close(self) -> None:
        """Stop. Closing twice does nothing."""
        self._loop.run(_close(self._async))

    def __enter__(self) -> Self:
        return self

    def _leave(self) -> None:
        self.close()


async def _next(items: AsyncIterator[T]) -> T | object:
    return await anext(items, _END)


async def _close(items: object) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


@overload
def feed(data: bytes) -> bytes: ...  # type: ignore[overload-overlap]


@overload
def feed(data: Iterable[T]) -> AsyncIterator[T]: ...


def feed(data: bytes | Iterable[T]) -> bytes | AsyncIterator[T]:
    """Returns what an async method takes where the caller has bytes, or an iterable."""
    return data if isinstance(data, bytes) else _items(data)


async def _items(data: Iterable[T]) -> AsyncIterator[T]:
    # The iterable may block, so a thread of its own asks it.
    iterator = iter(data)
    while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield item  # type: ignore[misc]
