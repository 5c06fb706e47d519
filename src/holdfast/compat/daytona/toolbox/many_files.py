"""Many files in one request. Each takes a few turns between server and box, so some are under way at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Final, Self, TypeVar

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxError

_AT_ONCE: Final = 16
SMALL: Final = 256 * 1024
"""Up to how many bytes a file is kept in memory."""
T = TypeVar("T")


async def in_turns(paths: Iterable[str], work: Callable[[str], Awaitable[T]]) -> list[T]:
    """The result of `work` for each path, in their order."""
    return [result async for _, result in ahead(paths, work)]


async def ahead(paths: Iterable[str], work: Callable[[str], Awaitable[T]]) -> AsyncGenerator[tuple[str, T], None]:
    """Yields each path with the result of `work`, in their order, and begins with the next ones meanwhile."""
    waiting = deque[tuple[str, asyncio.Future[T]]]()
    try:
        for path in paths:
            if len(waiting) == _AT_ONCE:
                first, task = waiting[0]
                yield first, await task
                waiting.popleft()
            waiting.append((path, asyncio.ensure_future(work(path))))
        while waiting:
            first, task = waiting[0]
            yield first, await task
            waiting.popleft()
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


class Writes:
    """Writes small files side by side, and large ones as they come. Waits in the end for all of them."""

    def __init__(self, box: Box, errors: list[str]) -> None:
        """Files that could not be written are noted in `errors`."""
        self._box = box
        self._errors = errors
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for task in self._under_way.values():
                task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=kind is not None)

    async def add(self, path: str, data: AsyncIterator[bytes]) -> None:
        if path in self._under_way:  # the later one is to stay
            await self._under_way.pop(path)
        pieces = bytearray()
        async for piece in data:
            pieces += piece
            if len(pieces) > SMALL:
                await self._write(path, _joined(bytes(pieces), data))
                return
        while len(self._under_way) >= _AT_ONCE:
            await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)
            for done in [each for each, task in self._under_way.items() if task.done()]:
                await self._under_way.pop(done)
        self._under_way[path] = asyncio.create_task(self._write(path, bytes(pieces)))

    async def _write(self, path: str, data: bytes | AsyncIterator[bytes]) -> None:
        try:
            await self._box.files.write(path, data)
        except BoxError as error:
            self._errors.append(f"{path}: {error.message}")


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
