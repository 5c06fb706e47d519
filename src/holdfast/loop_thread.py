"""A private event loop on a thread of its own, for code that has none, or has one that it must not block on."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
_END_SECONDS: Final = 30.0
"""How long a program that ends waits for what was forgotten."""


class LoopThread:
    """Runs coroutines for callers of any other thread. Starts with the first one; ends with `close`.

    The thread is a daemon: a program that forgets to close ends all the same.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result. Interrupted (Ctrl-C), the coroutine is cancelled."""
        try:
            loop = self._running_loop()
        except BaseException:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the loop. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise RuntimeError("this is closed: make a new one")
            if threading.current_thread() is self._thread:
                raise RuntimeError("sync calls cannot be made from their own event loop: use the async ones there")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="holdfast-sync", daemon=True)
                self._thread.start()
            return self._loop


class Forgotten:
    """Ends something that its owner did not end, when the owner is dropped or the program ends. `detach`: it did."""

    def __init__(self, owner: object, end: Callable[[], None]) -> None:
        self._end = end
        self._finalizer = weakref.finalize(owner, self._start)
        self._finalizer.atexit = False  # too late: no thread can be started then, and connecting needs one
        self._thread: threading.Thread | None = None
        _FORGOTTEN.add(self)

    def detach(self) -> None:
        self._finalizer.detach()
        _FORGOTTEN.discard(self)

    def _start(self) -> None:
        # Nobody waits for it here: whoever drops the owner may be in the middle of anything.
        self._thread = threading.Thread(target=self._run, name="holdfast-end", daemon=True)
        with contextlib.suppress(RuntimeError):  # the program has ended
            self._thread.start()

    def _run(self) -> None:
        try:
            self._end()
        finally:
            _FORGOTTEN.discard(self)

    def finish(self, seconds: float) -> None:
        """Be done with it, or give up."""
        self._finalizer()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(seconds)


_FORGOTTEN: set[Forgotten] = set()


def at_the_end(owner: object, loop: LoopThread, work: Callable[[], Coroutine[Any, Any, Any]]) -> Forgotten:
    """Have work done on a loop, and the loop closed, when its owner is dropped, or the program ends. `work` must not
    hold the owner."""

    def end() -> None:
        with contextlib.suppress(Exception):  # nobody is left who could be told
            loop.run(work())
        loop.close()

    _watch_the_end()
    return Forgotten(owner, end)


@functools.cache
def _watch_the_end() -> None:
    # `atexit` is too late. What asyncio runs threads by ends as early as this does, unless it was loaded before.
    import concurrent.futures.thread  # noqa: F401

    register = getattr(threading, "_register_atexit", None) or atexit.register
    with contextlib.suppress(RuntimeError):  # the program is ending
        register(_finish)


def _finish() -> None:
    deadline = time.monotonic() + _END_SECONDS
    for each in list(_FORGOTTEN):
        each.finish(max(0.0, deadline - time.monotonic()))


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_leftover())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(_cancel_leftover())  # generators that were dropped meanwhile are closed by tasks
    finally:
        loop.close()


async def _cancel_leftover() -> None:
    leftover = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftover:
        task.cancel()
    await asyncio.gather(*leftover, return_exceptions=True)
