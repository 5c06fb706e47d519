"""Who follows an execution gets its output, as much as is held, and what came of it. The server holds no more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.api.box.process import Stream
from holdfast.interpreter.execution import Execution, OutputCallback
from holdfast.server.interpreter.interpreters import Missed, Underway

pytestmark = pytest.mark.anyio


class Begun:
    """An execution whose output and end a test decides."""

    def __init__(self) -> None:
        self.ending: asyncio.Future[Execution] = asyncio.get_running_loop().create_future()
        self._callbacks: list[OutputCallback] = []
        self.underway = Underway("x-1", self._run)

    def _run(self, on_output: OutputCallback) -> Coroutine[Any, Any, Execution]:
        self._callbacks.append(on_output)
        return self._wait()

    async def _wait(self) -> Execution:
        return await self.ending

    def print(self, stream: Stream, data: bytes) -> None:
        for each in self._callbacks:
            each(stream, data)


async def test_all_who_follow_get_all_of_it_whenever_they_come() -> None:
    begun = Begun()
    underway, ending = begun.underway, begun.ending
    early = asyncio.create_task(_all(underway))
    begun.print("stdout", b"one")
    await asyncio.sleep(0)
    begun.print("stderr", b"two")
    ending.set_result(Execution("x-1"))
    wanted = [("stdout", b"one"), ("stderr", b"two"), Execution("x-1")]
    assert await early == wanted
    assert await _all(underway) == wanted


async def test_what_is_not_held_is_counted() -> None:
    begun = Begun()
    underway, ending = begun.underway, begun.ending
    piece = b"x" * 65536
    for _ in range(100):
        begun.print("stdout", piece)
    ending.set_result(Execution("x-1"))
    events = await _all(underway)
    assert isinstance(events[0], Missed)
    kept = [event for event in events if isinstance(event, tuple)]
    assert (events[0].chunks + len(kept), len(kept)) == (100, 64)
    for _ in range(10_000):
        begun.print("stdout", b".")
    assert len([event for event in await _all(underway) if isinstance(event, tuple)]) == 4096


async def test_what_raises_is_raised_to_all_who_follow() -> None:
    begun = Begun()
    underway, ending = begun.underway, begun.ending
    ending.set_exception(RuntimeError("the box is gone"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the box is gone"):
            await _all(underway)


async def _all(underway: Underway) -> list[object]:
    return [event async for event in underway.follow()]
