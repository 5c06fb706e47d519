"""What a thread is told of a model that gives no answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.ids import now_ms
from holdfast.runs.live_runs import ModelErrors
from holdfast.runs.run_log import RunLog
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.service import Threads

pytestmark = pytest.mark.anyio

SEALS = Seals(b"of these tests")
THREAD = "t-1"


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[RunLog]:
    store = await SqliteStreams.open(tmp_path / "data.db")
    projection = Projection(store, SqliteThreadRows(store), SEALS)
    threads = Threads(store, projection)
    await threads.create(id=THREAD)
    yield RunLog(store, threads, SEALS, now_ms)
    await projection.close()
    await store.close()


async def test_a_reason_is_told_once_however_often_an_agent_tries(log: RunLog) -> None:
    trouble = ModelErrors(log)
    for message in ("no name", "no name", "refused", "no name"):
        await trouble.report(THREAD, "r-1", message)
    await trouble.report(THREAD, "r-2", "no name")
    told = [entry["payload"] async for entry in log.entries(THREAD)]
    assert [(each["run"], each["message"]) for each in told if each["type"] == "signal.run.model_trouble"] == [
        ("r-1", "no name"), ("r-1", "refused"), ("r-1", "no name"), ("r-2", "no name"),
    ]  # fmt: skip


async def test_a_thread_that_is_gone_costs_the_agent_no_answer(log: RunLog) -> None:
    await ModelErrors(log).report("t-gone", "r-1", "no name")
