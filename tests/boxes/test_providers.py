"""Providers that come and go while the service runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.boxes.conftest import SPEC

from holdfast.api.box.box import Liveness
from holdfast.api.errors.boxes import BoxConflict, BoxUnreachable, Unsupported
from holdfast.boxes.rows import BoxFilter
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.pool_rules import PoolSettings
from holdfast.boxes.service.providers import Providers
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import DummyProvider

pytestmark = pytest.mark.anyio


async def test_a_provider_that_came_is_used_and_one_that_went_is_missed(
    rows: SqliteBoxes, provider: DummyProvider, clock: ManualClock
) -> None:
    providers = Providers({})
    boxes = Boxes(rows, providers, node="here", clock=clock.now)
    with pytest.raises(Unsupported, match="there is no provider dummy"):
        await boxes.create(SPEC)
    providers.put("dummy", provider)
    row = await boxes.create(SPEC)
    providers.take_out("dummy")
    assert await boxes.look(row) == (Liveness.UNKNOWN, None)
    swept = await boxes.sweep()
    assert (swept.gone, swept.removed, swept.failed) == ((), (), ())
    for work in (boxes.open, boxes.stop, boxes.delete, boxes.snapshot):
        with pytest.raises(BoxUnreachable, match=f"box {row.id} is at the provider dummy, which this server") as caught:
            await work(row.id)
        assert caught.value.hint == "add its account again: holdfast provider add dummy"
    providers.put("dummy", provider)
    await boxes.delete(row.id)
    await boxes.close()


async def test_no_box_is_created_at_a_provider_that_is_about_to_go(
    rows: SqliteBoxes, provider: DummyProvider, clock: ManualClock, tmp_path: Path
) -> None:
    providers = Providers({"dummy": provider})
    boxes = Boxes(rows, providers, node="here", clock=clock.now)
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        entered.set()
        await go_on.wait()

    provider.at["create"] = hold
    creating = asyncio.create_task(boxes.create(SPEC))
    await entered.wait()
    with pytest.raises(BoxConflict, match="a box is being created"), providers.closed("dummy"):
        pass
    go_on.set()
    row = await creating
    with providers.closed("dummy"), pytest.raises(BoxConflict, match="is being changed"):
        await boxes.create(SPEC)
    assert [each.id for each in (await boxes.list(BoxFilter(live_only=False))).rows] == [row.id]
    # Who looked the provider up before it was replaced does not use the old one.
    before = providers["dummy"]
    async with DummyProvider(tmp_path / "other", name="dummy") as other:
        providers.put("dummy", other)
        with pytest.raises(BoxConflict), providers.creating("dummy", before):
            pass
        providers.put("dummy", before)
    await boxes.delete(row.id)
    await boxes.close()


async def test_the_pool_of_a_provider_goes_with_it(
    rows: SqliteBoxes, provider: DummyProvider, clock: ManualClock
) -> None:
    boxes = Boxes(
        rows,
        {"dummy": provider},
        node="here",
        clock=clock.now,
        pool=PoolSettings(boxes=2, quiet_seconds=0.0, memory=lambda: 1.0),
    )
    row = await boxes.create(SPEC)
    await boxes.pool.keep(SPEC, 2)
    await asyncio.wait_for(boxes.pool.settled(), 60)
    assert len(await provider.find()) == 3
    await boxes.pool.drain_provider("dummy")
    assert [info.id for info in await provider.find()] == [row.id]
    assert boxes.pool.statistics().size == 0
    await boxes.delete(row.id)
    await boxes.close()
