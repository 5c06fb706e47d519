"""Ends long-lived responses when the server stops, so that they do not delay it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from holdfast.api.errors import Unavailable

T = TypeVar("T")


class Stopping(Unavailable):
    """The server is stopping. Its work in a box continues there, or was ended."""


class Shutdown:
    """The event that the server is stopping."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()

    def begin(self) -> None:
        """End all iterations of `until_stopping`, and complete `begun`."""
        self._begun.set()
        if not self.begun.done():
            self.begun.set_result(None)

    @functools.cached_property
    def begun(self) -> asyncio.Future[None]:
        """Done when the server stops. All who wait for it share it, so nobody may cancel it."""
        return asyncio.get_running_loop().create_future()

    async def until_stopping(self, pieces: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield from an endless source, such as the output of a process. Raises `Stopping` when the server stops."""
        stopping = asyncio.ensure_future(self._begun.wait())
        following: asyncio.Future[T] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(pieces))
                await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    raise Stopping("the server is stopping", hint="ask again when it is back")
                try:
                    piece = following.result()
                except StopAsyncIteration:
                    return
                yield piece
        finally:
            stopping.cancel()
            if following is not None:
                following.cancel()
                # Also if it is done: a caller that leaves just then does not ask how it ended.
                await asyncio.gather(following, return_exceptions=True)
            await close_pieces(pieces)


async def close_pieces(pieces: AsyncIterator[T]) -> None:
    """Let an async generator clean up now."""
    if isinstance(pieces, AsyncGenerator):
        await pieces.aclose()
