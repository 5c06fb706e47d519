"""What is made of a whole thread, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.ids import now_ms
from holdfast.runs.run_log import RunLog
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.service import Threads

pytestmark = pytest.mark.anyio

SEALS = Seals(b"of these tests")
ENTRIES = 40
THREAD = "t-long"


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[RunLog]:
    """With a thread that is read in several pieces."""
    store = await SqliteStreams.open(tmp_path / "data.db")
    projection = Projection(store, SqliteThreadRows(store), SEALS)
    threads = Threads(store, projection)
    log = RunLog(store, threads, SEALS, now_ms)
    await threads.create(id=THREAD)
    for number in range(ENTRIES):
        text = f"{number} " + "x,\n" * 50_000
        await log.append(THREAD, log.entry({"type": "pi.assistant", "text": text}))
    yield log
    await projection.close()
    await store.close()


async def test_it_is_made_of_every_entry_in_order_and_not_on_the_event_loop(log: RunLog) -> None:
    def make(entries: Iterator[dict[str, Any]]) -> tuple[list[dict[str, Any]], threading.Thread]:
        return list(entries), threading.current_thread()

    made, maker = await log.make_of(THREAD, make)
    assert made == [entry async for entry in log.entries(THREAD)]
    assert len(made) > ENTRIES
    assert maker is not threading.current_thread()


async def test_what_is_raised_while_it_is_made_is_raised(log: RunLog) -> None:
    def make(entries: Iterator[dict[str, Any]]) -> None:
        raise ValueError(next(entries)["payload"]["type"])

    with pytest.raises(ValueError, match="signal"):
        await log.make_of(THREAD, make)


async def test_who_gives_up_has_no_more_read(log: RunLog) -> None:
    begun, given_up, ended = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    taken = []

    def make(entries: Iterator[dict[str, Any]]) -> None:
        try:
            for entry in entries:
                taken.append(entry)
                loop.call_soon_threadsafe(begun.set)
                given_up.wait()
        finally:
            loop.call_soon_threadsafe(ended.set)

    making = asyncio.create_task(log.make_of(THREAD, make))
    await begun.wait()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    given_up.set()
    await ended.wait()
    assert len(taken) < ENTRIES
