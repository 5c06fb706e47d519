"""Finishing what has to be finished, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


async def nothing() -> None:
    """For where something to await is wanted, and nothing is to be done."""


async def settled(*tasks: asyncio.Future[Any]) -> None:
    """Wait until all have ended, however they did."""
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Do work that has to be done even when the caller is cancelled meanwhile; it is told of that afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.warning("a clean-up failed, the sweep will see to it: %s", problem)
        raise cancelled
    return task.result()
