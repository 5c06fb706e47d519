"""Tasks that a service starts, and cancels when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any


class BackgroundTasks:
    """Owns its tasks until `close`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        """Start `work` in a new context, because it may outlive the request that started it."""
        task = asyncio.create_task(work, name=name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def join(self) -> None:
        """Wait until all tasks that run now have ended."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self, seconds: float) -> None:
        """Cancel all tasks. Waits for their end, but no longer than this."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
