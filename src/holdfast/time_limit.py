"""`asyncio.timeout` as in Python 3.11.3, but also for Python 3.11.2, which Debian 12 has.

Before 3.11.3, a timeout in a task that was being cancelled raised `CancelledError` instead of `TimeoutError`, so
that code which cleans up after a cancellation stopped half-way. Use this module everywhere.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType


class _TimeLimit(asyncio.Timeout):  # type: ignore[misc]
    """Distinguishes its own cancellation from earlier ones."""

    async def __aenter__(self) -> asyncio.Timeout:
        task = asyncio.current_task()
        self._cancelled_before = 0 if task is None else task.cancelling()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        task = asyncio.current_task()
        if (
            self.expired()
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
            and task is not None
            and task.cancelling() <= self._cancelled_before
        ):
            raise TimeoutError from error


_Limit = asyncio.Timeout if sys.version_info[:3] >= (3, 11, 3) else _TimeLimit


def time_limit(seconds: float | None) -> asyncio.Timeout:
    """Raises `TimeoutError` if the block takes longer than this. None means no limit."""
    return time_limit_at(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def time_limit_at(when: float | None) -> asyncio.Timeout:
    """Like `time_limit`, with a time of the event loop's clock."""
    return _Limit(when)
