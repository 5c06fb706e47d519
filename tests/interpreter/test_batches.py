"""Batches: ordered, bounded, all or nothing."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.interpreter.bridge.batches import BatchFailed, all_or_nothing

pytestmark = pytest.mark.anyio


async def test_results_come_in_the_order_of_the_items_and_no_more_run_at_once_than_said() -> None:
    running, most = 0, 0

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20 - item):  # the later, the sooner it is done
            await asyncio.sleep(0)
        running -= 1
        return item * 10

    assert await all_or_nothing(range(20), work, at_once=8) == [item * 10 for item in range(20)]
    assert most == 8


async def test_nothing_to_do_is_done() -> None:
    async def work(item: int) -> int:
        raise AssertionError

    assert await all_or_nothing([], work, at_once=8) == []


async def test_where_one_fails_the_others_are_cancelled_and_none_is_begun() -> None:
    begun, ended = [], []

    async def work(item: int) -> None:
        begun.append(item)
        try:
            if item == 2:
                raise ValueError("no such thing")
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    with pytest.raises(BatchFailed, match="3 of 10: no such thing") as caught:
        await all_or_nothing(range(10), work, at_once=4)
    assert caught.value.index == 2
    assert isinstance(caught.value.error, ValueError)
    assert sorted(begun) == sorted(ended) == [0, 1, 2]


async def test_who_cancels_a_batch_cancels_all_of_it() -> None:
    begun, ended = asyncio.Event(), []

    async def work(item: int) -> None:
        if item == 3:
            begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    batch = asyncio.create_task(all_or_nothing(range(10), work, at_once=4))
    await begun.wait()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    assert sorted(ended) == [0, 1, 2, 3]


async def test_work_that_cancels_itself_leaves_no_hole() -> None:
    async def work(item: int) -> int:
        if item == 1:
            raise asyncio.CancelledError
        return item

    with pytest.raises(BatchFailed, match="2 of 3: it was cancelled"):
        await all_or_nothing(range(3), work, at_once=1)
