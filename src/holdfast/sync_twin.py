"""The base classes of the sync twins, which run an async object on a private event loop.

`bin/generate` writes the twins (`*/sync.py`) from the async classes. They work without an event loop, inside a running
one (which they block, like any sync call) and in notebooks. Callbacks are called on the thread of the private loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from holdfast.loop_thread import Finalizer, LoopThread, finalize

T = TypeVar("T")
_END: Final = object()


class SyncHandle:
    """A twin of an object on the loop of its `_parent`. It keeps the parent alive."""

    _async: Any
    _loop: LoopThread
    _parent: SyncHandle | None

    @classmethod
    def _wrap(cls, found: Any, parent: SyncHandle) -> Self:
        handle = cls.__new__(cls)
        handle._async, handle._loop, handle._parent = found, parent._loop, parent
        return handle

    def __repr__(self) -> str:
        return repr(self._async).replace("<", "<Sync", 1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        """Called at the end of a `with` block. Twins that can be closed override it."""


class SyncOwner(SyncHandle):
    """A twin that owns its loop. Twins that it returns share the loop, and cannot be used after the owner is closed."""

    _finalizer: Finalizer | None = None

    def _own(self, make: Callable[[], Any]) -> None:
        """Start a loop, and create the async object on it."""

        async def make_there() -> Any:
            return make()

        self._loop, self._parent = LoopThread(), None
        try:
            self._async = self._loop.run(make_there())
        except BaseException:
            self._loop.close()
            raise

    def _end_when_dropped(self, end: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Call `end` when this object is dropped or the program ends, if it was not closed before."""
        self._finalizer = finalize(self, self._loop, end)

    def _enter(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self._loop.run(work)
        except BaseException:
            self._close_loop()
            raise

    def _end(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run the last coroutine and close the loop. A second call does nothing."""
        if self._loop.closed:
            return
        try:
            self._loop.run(work())
        finally:
            self._close_loop()

    def _close_loop(self) -> None:
        if self._parent is None:
            if self._finalizer is not None:
                self._finalizer.detach()
            self._loop.close()


class SyncIterator(SyncHandle, Generic[T]):
    """An async iterator for use with `for`. To stop before its end, use `with` or `close`, or drop it."""

    _async: AsyncIterator[T]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        # A future cannot carry StopAsyncIteration, so the end is a value.
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
    """Convert bytes or an iterable to what an async method takes."""
    return data if isinstance(data, bytes) else _items(data)


async def _items(data: Iterable[T]) -> AsyncIterator[T]:
    # The iterable may block, so it runs on another thread.
    iterator = iter(data)
    while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield item  # type: ignore[misc]
