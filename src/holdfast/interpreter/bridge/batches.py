"""Concurrent work on a batch: bounded, with results in order, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class BatchFailed(Exception):
    """One item of a batch failed, and the others were cancelled. The cause is the error of that item."""

    def __init__(self, index: int, count: int, error: Exception) -> None:
        super().__init__(f"{index + 1} of {count}: {error}")
        self.index = index
        self.count = count
        self.error = error


async def all_or_nothing(
    items: Sequence[Item], work: Callable[[Item], Awaitable[Result]], *, at_once: int
) -> list[Result]:
    """Return the results, in the order of the items. If one fails, or the caller is cancelled, the others are cancelled
    and awaited. Raises `BatchFailed` for the first that failed."""
    results: dict[int, Result] = {}
    waiting = iter(enumerate(items))
    failed: list[BatchFailed] = []

    async def take() -> None:
        for index, item in waiting:
            if failed:
                return
            try:
                results[index] = await work(item)
            except Exception as error:
                failed.append(BatchFailed(index, len(items), error))
                raise

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(items))):
                group.create_task(take())
    except* Exception:
        pass  # raised below: a group has no order
    if failed:
        raise failed[0] from failed[0].error
    for index in range(len(items)):
        if index not in results:  # it cancelled itself, which a group does not report
            raise BatchFailed(index, len(items), RuntimeError("it was cancelled"))
    return [results[index] for index in range(len(items))]
