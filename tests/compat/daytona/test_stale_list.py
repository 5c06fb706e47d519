"""The intervals of sandboxes act on what a sandbox is now, and not on what a list said a moment ago."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.service.boxes import Boxes
from holdfast.compat.daytona.records import Record
from holdfast.compat.daytona.sandbox_record import KIND, Sandbox, SandboxDetails
from holdfast.compat.daytona.sandboxes import Sandboxes
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.daytona_records import SqliteDaytonaRecords
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import DummyProvider

pytestmark = pytest.mark.anyio
MINUTE = 60_000


class World:
    def __init__(self, boxes: Boxes, sandboxes: Sandboxes, records: SqliteDaytonaRecords, clock: ManualClock) -> None:
        self.boxes, self.sandboxes, self.records, self.clock = boxes, sandboxes, records, clock

    async def create(self, **details: Any) -> Sandbox:
        row = await self.boxes.create(BoxSpec(provider="dummy"))
        intervals = {"auto_stop": 0, "auto_archive": 0, "auto_delete": -1, **details}
        document = SandboxDetails(box=row.id, target="dummy", **intervals).to_document()
        now = self.clock.now()
        assert await self.records.insert(self.boxes.tenant, Record(KIND, row.id, row.id, document, now, now))
        return await self.sandboxes.find(row.id)

    async def state(self, sandbox: Sandbox) -> BoxState:
        return (await self.boxes.get(sandbox.row.id)).state

    @contextlib.contextmanager
    def after_the_list(self, patch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[Any]]) -> Any:
        """Something happens after the sweep has read its list."""
        real = self.sandboxes.all

        async def stale() -> list[Sandbox]:
            found = await real()
            await happens()
            return found

        with patch.context() as patched:
            patched.setattr(self.sandboxes, "all", stale)
            yield


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = ManualClock()
    nothing: Any = None
    async with (
        SqliteBoxes(tmp_path / "data.db") as rows,
        Database(tmp_path / "daytona.db") as database,
        DummyProvider(tmp_path / "dummy", clock=clock.now) as provider,
    ):
        boxes = Boxes(rows, {"dummy": provider}, node="here", clock=clock.now)
        records = SqliteDaytonaRecords(database)
        ignore = lambda *_: None  # noqa: E731
        sandboxes = Sandboxes(boxes, records, nothing, nothing, nothing, nothing, nothing, ignore, ignore)
        yield World(boxes, sandboxes, records, clock)
        await sandboxes.close()
        await boxes.close()


async def test_intervals_stop_and_delete_what_nobody_uses(world: World) -> None:
    idle = await world.create(auto_stop=1)
    world.clock.advance(MINUTE)
    await world.sandboxes.sweep()
    assert await world.state(idle) is BoxState.STOPPED
    await world.sandboxes.change(idle, auto_delete=1)
    world.clock.advance(MINUTE)
    await world.sandboxes.sweep()
    assert await world.state(idle) is BoxState.DELETED


async def test_a_sandbox_that_is_used_after_the_list_was_read_is_not_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await world.create(auto_stop=1)
    world.clock.advance(MINUTE)

    async def use() -> None:
        async with world.sandboxes.opened(sandbox):
            pass

    with world.after_the_list(monkeypatch, use):
        await world.sandboxes.sweep()
    assert await world.state(sandbox) is BoxState.RUNNING


async def test_a_sandbox_that_is_started_after_the_list_was_read_is_not_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await world.create(auto_delete=1)
    await world.boxes.stop(sandbox.row.id)
    world.clock.advance(MINUTE)
    with world.after_the_list(monkeypatch, lambda: world.boxes.start_box(sandbox.row.id)):
        await world.sandboxes.sweep()
    assert await world.state(sandbox) is BoxState.RUNNING


async def test_a_sandbox_whose_interval_is_changed_after_the_list_was_read_is_not_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await world.create(auto_delete=1)
    await world.boxes.stop(sandbox.row.id)
    world.clock.advance(MINUTE)
    with world.after_the_list(monkeypatch, lambda: world.sandboxes.change(sandbox, auto_delete=-1)):
        await world.sandboxes.sweep()
    assert await world.state(sandbox) is BoxState.STOPPED


async def test_a_sandbox_whose_time_is_over_is_deleted_although_it_is_used(world: World) -> None:
    sandbox = await world.create(ttl_minutes=1)
    world.clock.advance(MINUTE)
    async with world.sandboxes.opened(sandbox):
        await world.sandboxes.sweep()
    assert await world.state(sandbox) is BoxState.DELETED
