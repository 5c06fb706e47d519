"""Runs work to completion even if the caller is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


async def nothing() -> None:
    """Do nothing. Use it where an awaitable is required."""


async def settled(*tasks: asyncio.Future[Any]) -> None:
    """Wait until all tasks have ended, in any way."""
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work even if the caller is cancelled. Raises `CancelledError` afterwards in that case."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.warning("cleanup failed, the next sweep will retry: %s", problem)
        raise cancelled
    return task.result()
