"""A sweep, or an acquire, judges a box by a row that it read. What changed since then is not what was judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.boxes.conftest import SPEC

from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import Lifetime
from holdfast.boxes.labels import KEY, NODE, TENANT
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.acquire_rules import How
from holdfast.boxes.service.boxes import Boxes
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import DummyProvider

pytestmark = pytest.mark.anyio

EPHEMERAL: Final = replace(SPEC, lifetime=Lifetime.EPHEMERAL)
STRESS_STARTS: Final = 200
STRESS_AT_ONCE: Final = 20

Other = Callable[[], Awaitable[object]]


class PausingRows(SqliteBoxes):
    """Lets somebody else act, once, between what is read of the rows and what is done about it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.before_live: Other | None = None
        """Before all rows of the node are read."""
        self.before_holders: Other | None = None
        """After a row was read, before it is asked who is alive."""

    async def live(self, tenant: str, node: str) -> list[BoxRow]:
        other, self.before_live = self.before_live, None
        if other is not None:
            await other()
        return await super().live(tenant, node)

    async def held(self, tenant: str, prefix: str, now: int) -> set[str]:
        other, self.before_holders = self.before_holders, None
        if other is not None:
            await other()
        return await super().held(tenant, prefix, now)


@pytest.fixture
async def rows(tmp_path: Path) -> AsyncIterator[PausingRows]:
    async with PausingRows(tmp_path / "data.db") as rows:
        yield rows


class Gate:
    """A point of the provider where whoever comes first waits until the gate is opened."""

    def __init__(self, provider: DummyProvider, point: str) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()
        self._hooks = provider.at
        self._point = point
        self._hooks[point] = self._wait

    async def _wait(self) -> None:
        self._hooks.pop(self._point, None)
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


async def test_a_box_that_is_finished_while_the_sweep_looks_is_not_removed(
    boxes: Boxes, provider: DummyProvider, rows: PausingRows
) -> None:
    gate = Gate(provider, "create.made")
    creating = asyncio.create_task(boxes.create(SPEC))
    await gate.reached.wait()

    async def finish() -> None:
        gate.open()
        await creating

    rows.before_holders = finish  # the sweep has read that the box is being created
    swept = await boxes.sweep()
    assert rows.before_holders is None
    assert swept.removed == ()
    assert (await boxes.get((await creating).id)).state is BoxState.RUNNING
    assert len(await provider.find()) == 1


async def test_a_box_of_a_key_that_is_finished_while_an_acquire_looks_is_given_out(
    boxes: Boxes, provider: DummyProvider, rows: PausingRows
) -> None:
    source = await boxes.create(SPEC)
    gate = Gate(provider, "create.made")
    forking = asyncio.create_task(boxes.fork(source.id, key="k"))
    await gate.reached.wait()

    async def finish() -> None:
        gate.open()
        await forking

    rows.before_holders = finish  # the acquire has read that the box is being created
    acquired = await boxes.acquire("k", SPEC)
    assert rows.before_holders is None
    assert (acquired.row.id, acquired.how) == ((await forking).id, How.RESUMED)
    assert (await boxes.get(acquired.row.id)).state is BoxState.RUNNING


async def test_a_stranger_that_an_acquire_takes_up_while_the_sweep_looks_is_not_removed(
    boxes: Boxes, provider: DummyProvider, clock: ManualClock
) -> None:
    first = (await boxes.acquire("k", SPEC)).row
    await provider.create(SPEC, id="second", labels={TENANT: "default", NODE: "here", KEY: "k"})
    clock.advance(100_000)

    gate = Gate(provider, "probe")
    sweeping = asyncio.create_task(boxes.sweep())
    await gate.reached.wait()  # judged: the key has another box
    await boxes.delete(first.id)
    assert (await boxes.acquire("k", SPEC)).row.id == "second"
    gate.open()
    assert (await sweeping).removed == ()
    assert (await boxes.get("second")).state is BoxState.RUNNING
    assert [info.id for info in await provider.find()] == ["second"]


async def test_a_box_that_is_started_while_the_sweep_looks_is_not_taken_for_stopped(
    boxes: Boxes, provider: DummyProvider, rows: PausingRows
) -> None:
    row = await boxes.create(EPHEMERAL)
    await boxes.stop(row.id)

    async def start() -> None:
        await boxes.start_box(row.id)
        async with await boxes.open(row.id) as box:
            await box.spawn(["sleep", "60"])

    rows.before_live = start  # the provider has said that the box is stopped
    assert (await boxes.prune()).removed == ()
    assert rows.before_live is None
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


async def test_a_deletion_that_failed_and_is_tried_again_is_finished_once(
    boxes: Boxes, provider: DummyProvider, rows: PausingRows
) -> None:
    row = await boxes.create(SPEC)
    gate = Gate(provider, "remove.half")
    deleting = asyncio.create_task(boxes.delete(row.id))
    await gate.reached.wait()

    async def finish() -> None:
        gate.open()
        await deleting

    rows.before_holders = finish
    assert (await boxes.sweep()).removed == ()
    ended = await boxes.get(row.id)
    assert (ended.state, ended.ended_why) == (BoxState.DELETED, "deleted")


async def test_hundreds_of_starts_under_constant_sweeps_lose_no_box(
    boxes: Boxes, provider: DummyProvider, rows: PausingRows, clock: ManualClock
) -> None:
    """Bounded: so many starts, and sweeps one after the other until they are done."""
    slots = asyncio.Semaphore(STRESS_AT_ONCE)

    async def create() -> BoxRow:
        async with slots:
            return await boxes.create(SPEC)

    async def sweep() -> list[str]:
        removed: list[str] = []
        while not making.done():
            removed += [each.why for each in (await boxes.sweep()).removed]
        return removed

    making = asyncio.gather(*(create() for _ in range(STRESS_STARTS)))
    sweeping = asyncio.create_task(sweep())
    made = await making
    assert await sweeping == []
    assert {info.id for info in await provider.find()} == {row.id for row in made}
    assert {row.id for row in await rows.live("default", "here")} == {row.id for row in made}
