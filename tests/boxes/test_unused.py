"""A box that was chosen by its row is stopped or deleted only if it is still as that row says."""

from __future__ import annotations

import pytest
from tests.boxes.conftest import SPEC

from holdfast.api.box.records import BoxState
from holdfast.api.errors.boxes import BoxConflict
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.testing.clock import ManualClock

pytestmark = pytest.mark.anyio
ACTIONS = ["stop", "delete"]


async def act(boxes: Boxes, action: str, row: BoxRow) -> None:
    if action == "stop":
        await boxes.stop_unused(row)
    else:
        await boxes.delete_unused(row, "it was idle")


@pytest.mark.parametrize(("action", "state"), [("stop", BoxState.STOPPED), ("delete", BoxState.DELETED)])
async def test_what_is_as_it_was_is_done(boxes: Boxes, action: str, state: BoxState) -> None:
    row = await boxes.create(SPEC)
    await act(boxes, action, row)
    assert (await boxes.get(row.id)).state is state


async def test_a_box_that_was_used_since_is_left_alone(boxes: Boxes, clock: ManualClock) -> None:
    row = await boxes.create(SPEC)
    with boxes.working(row.id), pytest.raises(BoxConflict):
        await boxes.stop_unused(row)
    clock.advance(1)
    with boxes.working(row.id):
        pass
    with pytest.raises(BoxConflict):  # although the store does not have it yet
        await boxes.stop_unused(row)
    with pytest.raises(BoxConflict):
        await boxes.pause_unused(row)
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_box_that_was_stopped_and_started_since_is_left_alone(
    boxes: Boxes, clock: ManualClock, action: str
) -> None:
    row = await boxes.create(SPEC)
    clock.advance(1)
    await boxes.stop(row.id)
    await boxes.start_box(row.id)
    with pytest.raises(BoxConflict):
        await act(boxes, action, row)
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


async def test_a_stopped_box_that_was_started_since_is_not_deleted(boxes: Boxes, clock: ManualClock) -> None:
    row = await boxes.stop((await boxes.create(SPEC)).id)
    clock.advance(1)
    await boxes.start_box(row.id)
    with pytest.raises(BoxConflict):
        await boxes.delete_unused(row, "it was idle")
    assert (await boxes.get(row.id)).state is BoxState.RUNNING
