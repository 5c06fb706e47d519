"""A store, a dummy provider and the service on them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.service.boxes import Boxes
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import DummyProvider

SPEC = BoxSpec(provider="dummy")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def rows(tmp_path: Path) -> AsyncIterator[SqliteBoxes]:
    async with SqliteBoxes(tmp_path / "data.db") as rows:
        yield rows


@pytest.fixture
async def provider(tmp_path: Path, clock: ManualClock) -> AsyncIterator[DummyProvider]:
    async with DummyProvider(tmp_path / "dummy", clock=clock.now) as provider:
        yield provider


@pytest.fixture
async def boxes(rows: SqliteBoxes, provider: DummyProvider, clock: ManualClock) -> AsyncIterator[Boxes]:
    boxes = Boxes(rows, {"dummy": provider}, node="here", clock=clock.now)
    yield boxes
    await boxes.close()
