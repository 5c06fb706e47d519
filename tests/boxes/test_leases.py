"""Leases by which processes take turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.boxes.service.leases import LEASE, Leases
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_turns_are_taken_one_at_a_time_and_the_dead_lose_theirs(
    rows: SqliteBoxes, tmp_path: Path, clock: ManualClock
) -> None:
    async with SqliteBoxes(tmp_path / "data.db") as other_rows:
        mine, other = Leases(rows, "default", clock.now), Leases(other_rows, "default", clock.now)
        await mine.join()
        await other.join()
        assert await mine.holders() == {mine.holder, other.holder}
        at_once = most = 0

        async def work(turns: Leases) -> None:
            nonlocal at_once, most
            async with turns.turn("x"):
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0)
                at_once -= 1

        await asyncio.gather(*(work(turns) for turns in (mine, other) * 5))
        assert most == 1
        async with asyncio.timeout(240), other.turn("x"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), mine.turn("x"):
                    pass
            clock.advance(LEASE)  # as if it had died
            assert await mine.holders() == {mine.holder}
            async with mine.turn("x"):
                pass
        await mine.close()
        await other.close()


async def test_a_wait_that_is_cancelled_leaves_no_lease_behind(rows: SqliteBoxes, clock: ManualClock) -> None:
    turns = Leases(rows, "default", clock.now)

    async def hold() -> None:
        async with turns.turn("x"):
            await asyncio.Event().wait()

    for steps in range(20):
        holding = asyncio.create_task(hold())
        for _ in range(steps):
            await asyncio.sleep(0)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    assert await rows.held("default", "x", clock.now()) == set()
