"""Lazy parts of a server: loaded and opened in the background, while it already answers requests.

FastAPI, providers and agents take about half of a start. A client that follows a thread does not wait for them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_loading: Final[set[object]] = set()
_one_loader: Final = threading.Lock()


class Lazy(Generic[T]):
    """Opens a part once, when it is begun or first asked for, and closes it again.

    The opener may use parts that are lazy themselves: it waits for them.
    """

    def __init__(self, name: str, open: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        """`name` is for the log."""
        self._name = name
        self._open = open
        self._stack = AsyncExitStack()
        self._opening: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Start to open it, and return at once."""
        self._begin()

    async def get(self) -> T:
        """Returns the part as soon as it is open. Raises what opening it raised."""
        return await asyncio.shield(self._begin())

    @property
    def opened(self) -> T | None:
        """The part, if it is open by now."""
        task = self._opening
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def close(self) -> None:
        """Close the part, or give up opening it."""
        if self._opening is not None:
            if not self._opening.done():
                self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._stack.aclose()

    def _begin(self) -> asyncio.Task[T]:
        if self._opening is None:
            self._opening = asyncio.create_task(
                self._stack.enter_async_context(self._open()), name=f"opening {self._name}"
            )
            self._opening.add_done_callback(self._log_failure)
        return self._opening

    def _log_failure(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the %s failed to open", self._name, exc_info=error)


def _one_at_a_time(load: Callable[[], T]) -> T:
    with _one_loader:
        return load()


async def load_in_thread(load: Callable[[], T]) -> T:
    """Returns what `load` returns, without holding up the event loop.

    Only one thread loads at a time: of two that import modules which import each other's, Python may give one up
    (`deadlock detected`), and the part would stay closed. What is loaded stays for good. It is moved out of reach of
    the garbage collector: a full collection would visit all of it each time, a tenth of a second without an answer.
    """
    mark = object()
    _loading.add(mark)
    gc.disable()
    try:
        return await asyncio.to_thread(_one_at_a_time, load)
    finally:
        _loading.discard(mark)
        if not _loading:
            gc.freeze()
            gc.enable()
