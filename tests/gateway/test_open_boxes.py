"""Boxes that stay open between requests: opened once, closed in the end, opened again after an error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import pytest

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxGone
from holdfast.gateway.open_boxes import OpenBoxes
from holdfast.gateway.sessions import SessionView

pytestmark = pytest.mark.anyio

SESSION = SessionView("t-1", "t-1", "running", "b-1")


class World:
    """Counts what is opened and closed."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails = False
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.closed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def open(self, session: SessionView) -> AsyncIterator[Box]:
        self.events.append("open")
        await self.may_open.wait()
        if self.fails:
            raise BoxGone("b-1 is gone")
        try:
            yield cast("Box", session.box)
        finally:
            self.events.append("close")
            self.closed.set()


async def test_requests_share_one_open_box_which_is_closed_after_the_last() -> None:
    world = World()
    boxes = OpenBoxes(world.open, linger_seconds=0.02)
    world.may_open.clear()

    async def use() -> None:
        async with boxes.open(SESSION) as box:
            assert cast("object", box) == "b-1"

    using = [asyncio.create_task(use()) for _ in range(5)]
    await asyncio.sleep(0)
    using[0].cancel()  # one that leaves does not take it from the others
    world.may_open.set()
    await asyncio.gather(*using[1:])
    assert world.events == ["open"]
    await asyncio.wait_for(world.closed.wait(), 10)
    assert world.events == ["open", "close"]
    await use()
    await boxes.close()
    assert world.events == ["open", "close"] * 2


async def test_after_an_error_the_box_is_opened_again() -> None:
    world = World()
    boxes = OpenBoxes(world.open, linger_seconds=60)
    async with boxes.open(SESSION):
        with pytest.raises(BoxGone):
            async with boxes.open(SESSION):
                raise BoxGone("b-1 is gone")
        async with boxes.open(SESSION):
            assert world.events == ["open", "open"]
    world.fails = True
    for _ in range(2):
        boxes = OpenBoxes(world.open)
        with pytest.raises(BoxGone):
            async with boxes.open(SESSION):
                pass
        await boxes.close()
