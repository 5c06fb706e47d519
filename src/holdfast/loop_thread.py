"""A private event loop on its own thread, for sync code, and for code that must not block its own loop."""

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
"""How long the end of a program waits for objects that were not closed."""


class LoopThread:
    """Runs coroutines for callers on any other thread. The loop starts with the first one, and ends with `close`.

    The thread is a daemon, so a program that does not close the loop still ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. An interrupt (Ctrl-C) cancels it."""
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
                raise RuntimeError("this object is closed: create a new one")
            if threading.current_thread() is self._thread:
                raise RuntimeError("sync methods cannot be called from their own event loop: use the async ones there")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="holdfast-sync", daemon=True)
                self._thread.start()
            return self._loop


class Finalizer:
    """Calls `end` when the owner is dropped or the program ends, unless `detach` is called before."""

    def __init__(self, owner: object, end: Callable[[], None]) -> None:
        self._end = end
        self._finalizer = weakref.finalize(owner, self._start)
        self._finalizer.atexit = False  # too late: then no thread can be started, and connecting needs one
        self._thread: threading.Thread | None = None
        _FINALIZERS.add(self)

    def detach(self) -> None:
        self._finalizer.detach()
        _FINALIZERS.discard(self)

    def _start(self) -> None:
        # Do not wait: the code that drops the owner may be in the middle of anything.
        self._thread = threading.Thread(target=self._run, name="holdfast-end", daemon=True)
        with contextlib.suppress(RuntimeError):  # the program has ended
            self._thread.start()

    def _run(self) -> None:
        try:
            self._end()
        finally:
            _FINALIZERS.discard(self)

    def finish(self, seconds: float) -> None:
        """Call `end` if that has not happened, and wait for it."""
        self._finalizer()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(seconds)


_FINALIZERS: set[Finalizer] = set()


def finalize(owner: object, loop: LoopThread, work: Callable[[], Coroutine[Any, Any, Any]]) -> Finalizer:
    """Run `work` on a loop and close the loop, when the owner is dropped or the program ends.

    `work` must not hold a reference to the owner.
    """

    def end() -> None:
        with contextlib.suppress(Exception):  # no caller is left to handle it
            loop.run(work())
        loop.close()

    _register_finish()
    return Finalizer(owner, end)


@functools.cache
def _register_finish() -> None:
    # `atexit` is too late. Load the thread pool of asyncio first, so that it is still usable when `_finish` runs.
    import concurrent.futures.thread  # noqa: F401

    register = getattr(threading, "_register_atexit", None) or atexit.register
    with contextlib.suppress(RuntimeError):  # the program is ending
        register(_finish)


def _finish() -> None:
    deadline = time.monotonic() + _END_SECONDS
    for each in list(_FINALIZERS):
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
