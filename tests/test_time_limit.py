"""Time limits hold also in a task that is being cancelled, where code ends what it began."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.time_limit import _TimeLimit, time_limit

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("limit", ["ours", "older"])
async def test_a_limit_after_a_cancellation_ends_in_a_timeout(limit: str) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                soon = asyncio.get_running_loop().time() + 0.01
                async with time_limit(0.01) if limit == "ours" else _TimeLimit(soon):
                    await asyncio.Event().wait()
            except TimeoutError:
                ended.append("in time")
            raise

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["in time"]


async def test_a_cancellation_within_a_limit_is_no_timeout() -> None:
    async def work() -> None:
        async with _TimeLimit(asyncio.get_running_loop().time() + 60):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_ends_in_time_is_left_alone() -> None:
    async with time_limit(240), time_limit(None), _TimeLimit(None):
        await asyncio.sleep(0)
