"""Who follows an execution gets its output, as much as is held, and what came of it. The server holds no more."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.interpreter.results import Execution
from holdfast.server.interpreters import Missed, Underway

pytestmark = pytest.mark.anyio


async def begun(underway: Underway) -> asyncio.Future[Execution]:
    ending: asyncio.Future[Execution] = asyncio.get_running_loop().create_future()

    async def run() -> Execution:
        return await ending

    underway.begin(asyncio.create_task(run()))
    return ending


async def test_all_who_follow_get_all_of_it_whenever_they_come() -> None:
    underway = Underway("x-1")
    ending = await begun(underway)
    early = asyncio.create_task(_all(underway))
    underway.took("stdout", b"one")
    await asyncio.sleep(0)
    underway.took("stderr", b"two")
    ending.set_result(Execution("x-1"))
    wanted = [("stdout", b"one"), ("stderr", b"two"), Execution("x-1")]
    assert await early == wanted
    assert await _all(underway) == wanted


async def test_what_is_not_held_is_counted() -> None:
    underway = Underway("x-1")
    ending = await begun(underway)
    piece = b"x" * 65536
    for _ in range(100):
        underway.took("stdout", piece)
    ending.set_result(Execution("x-1"))
    events = await _all(underway)
    assert isinstance(events[0], Missed)
    kept = [event for event in events if isinstance(event, tuple)]
    assert (events[0].chunks + len(kept), len(kept)) == (100, 64)
    for _ in range(10_000):
        underway.took("stdout", b".")
    assert len([event for event in await _all(underway) if isinstance(event, tuple)]) == 4096


async def test_what_raises_is_raised_to_all_who_follow() -> None:
    underway = Underway("x-1")
    ending = await begun(underway)
    ending.set_exception(RuntimeError("the box is gone"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the box is gone"):
            await _all(underway)


async def _all(underway: Underway) -> list[object]:
    return [event async for event in underway.follow()]
