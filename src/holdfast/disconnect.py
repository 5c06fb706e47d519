"""Ends work when the client that asked for it disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")


async def work_until_disconnect(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]], work: Awaitable[T], left: Callable[[], Exception]
) -> T:
    """Returns the result of some work, which is cancelled when the client leaves. Raises what `left` returns then.

    `receive` is that of an ASGI request, whose body must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise left()
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
