"""Threads for slow work on the disk, and tasks in the background. A provider owns them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

_THREADS: Final = 4
P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """The owner calls `close`, after which the workers can be used again."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def on_disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run slow work on separate threads, so that reading a small file does not wait for a large removal."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-disk")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(work, *args, **kwargs))

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until the tasks in the background have ended."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
