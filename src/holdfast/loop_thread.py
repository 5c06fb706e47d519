"""A private event loop on a thread of its own, for code that has none, or has one that it must not block on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
