"""Measures checkpoints and forks of a thread whose workspace is large, with local boxes and without an agent.

    .holdfast/dev-*/bin/python benchmarks/fork.py [--quick] [--only ROW] [--json | --markdown]

docs/benchmarks.md says what each row is. The entries of the turns are written as a server and a runner write them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from measuring import Samples, add_folder, folder_of_boxes, options, print_results
from report import Goal, Result, Row

from holdfast.api.box.records import Owner
from holdfast.api.errors.agents import UnknownAgent
from holdfast.api.run.info import RunStatus
from holdfast.boxes.service.boxes import Boxes
from holdfast.egress.models.model import ModelChoice
from holdfast.harnesses.harness import Api
from holdfast.providers.local import LocalProvider
from holdfast.runs.launch.plan import LaunchPlanner, default_spec, key_of
from holdfast.runs.launch.steps import Launcher
from holdfast.runs.run_log import RunLog
from holdfast.runs.service import Runs
from holdfast.runs.workspace.store import Workspaces
from holdfast.server.clocks import Clocks
from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.threads.access.credentials import Access
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.run_events import box_found, end_id, finished, start_id, started
from holdfast.threads.service import Threads

_GIGABYTE: Final = 1 << 30
_SECRET: Final = b"of this benchmark"

ROWS: Final = (
    Row("checkpoint", "checkpoint of a turn, 2 GB workspace, median of 50", "ms", Goal("under", 200.0, "under 200 ms")),
    Row("fork", "fork of turn 50, 2 GB workspace: until its box is ready", "ms", Goal("under", 200.0, "under 200 ms")),
    Row("deep", "fork of the last of 500 turns, small workspace", "ms", Goal("under", 200.0, "under 200 ms")),
    Row("settled", "what a claim waits when the last turn is settled", "ms", Goal("under", 5.0, "under 5 ms")),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    written: int
    turns: int
    deep: int
    forks: int


FULL: Final = Size(written=2 * _GIGABYTE, turns=50, deep=500, forks=10)
QUICK: Final = Size(written=_GIGABYTE // 16, turns=5, deep=30, forks=2)


class Names:
    """The one model of this benchmark, which nothing asks."""

    def apis_of(self, wanted: str) -> tuple[Api, ...]:
        return (Api.OPENAI_CHAT,)

    def resolve(self, wanted: str | None = None) -> ModelChoice:
        return ModelChoice("m", "x", (Api.OPENAI_CHAT,), 1000, 100)


class NoAgents:
    def find(self, name: str) -> Any:
        raise UnknownAgent(f"there is no agent {name!r}")

    async def ensure(self, *_: Any) -> Any:
        raise AssertionError("no agent is started here")


class Bench:
    """The service of runs on an empty folder."""

    def __init__(self, runs: Runs, log: RunLog, threads: Threads, boxes: Boxes) -> None:
        self.runs = runs
        self.log = log
        self.threads = threads
        self.boxes = boxes
        self.samples = Samples()

    async def thread(self, written: int, turns: int) -> tuple[str, list[float]]:
        """A thread with a workspace of this size and so many turns. Returns the times of its checkpoints."""
        thread = (await self.threads.create()).id
        acquired = await self.boxes.acquire(key_of(thread), default_spec(), owner=Owner(thread=thread))
        times = []
        async with await self.boxes.open(acquired.row.id) as box:
            await box.exec(["sh", "-c", f"mkdir d; head -c {written} /dev/zero > d/large; sync"])
            for number in range(1, turns + 1):
                run = f"r-{thread}-{number}"
                await box.exec(["sh", "-c", f"echo {number} > state; echo {number} >> log"])
                await self._turn(thread, run, number, acquired.row.id)
                begin = time.perf_counter()
                await self.runs.checkpoints.settle(thread)
                times.append((time.perf_counter() - begin) * 1000)
        return thread, times

    async def _turn(self, thread: str, run: str, number: int, box: str) -> None:
        start = started(
            run=run,
            epoch=number,
            agent="none",
            model="m/x",
            provider="local",
            prompts=(),
            resumes=None,
            options={},
        )
        found = box_found(run=run, box=box, provider="local", how="live", files="kept", ms=0)
        end = finished(run=run, epoch=number, status=RunStatus.COMPLETED, ms=1, by="runner")
        entries = (
            self.log.entry(start, id=start_id(run)),
            self.log.entry(found),
            *(self.log.entry({"type": "none.assistant", "text": "x" * 2000}) for _ in range(20)),
            self.log.entry(end, id=end_id(run)),
        )
        await self.log.append(thread, *entries)

    async def forks(self, row: str, thread: str, count: int) -> None:
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            fork = await self.runs.forks.fork(thread)
            times.append((time.perf_counter() - begin) * 1000)
            await self.boxes.delete(fork.box.id)
        self.samples.add_median(row, "holdfast", times)

    async def settled(self, thread: str) -> None:
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            await self.runs.checkpoints.settle(thread)
            times.append((time.perf_counter() - begin) * 1000)
        self.samples.add_median("settled", "holdfast", times)


@asynccontextmanager
async def open_bench(folder: Path) -> AsyncIterator[Bench]:
    clocks = Clocks()
    seals = Seals(_SECRET)
    store = await SqliteStreams.open(folder / "holdfast.db")
    async with LocalProvider(folder) as provider, SqliteBoxes(folder / "holdfast.db") as rows:
        projection = Projection(store, SqliteThreadRows(store), seals)
        threads = Threads(store, projection)
        boxes = Boxes(rows, {"local": provider}, node="here")
        log = RunLog(store, threads, seals, clocks.now)
        workspaces = Workspaces(folder / "workspaces")

        async def ready() -> None:
            return None

        launcher = Launcher(
            log=log,
            boxes=boxes,
            workspaces=workspaces,
            agents=NoAgents(),
            access=Access(SqliteApiKeys(store), _SECRET),
            ticks=clocks.ticks,
            network_ready=ready,
        )
        planner = LaunchPlanner(NoAgents(), Names(), boxes)
        runs = Runs(store, threads, projection, boxes, planner, launcher, log, workspaces, ticks=clocks.ticks)
        try:
            yield Bench(runs, log, threads, boxes)
        finally:
            await runs.close()
            for row in await rows.live("default", "here"):
                await boxes.delete(row.id)
            await boxes.close()
            await projection.close()
    await store.close()


async def measure(size: Size, only: Sequence[str], folder: Path) -> list[Result]:
    wanted = set(only) or {row.name for row in ROWS}
    async with open_bench(folder) as bench:
        if wanted & {"checkpoint", "fork", "settled"}:
            thread, times = await bench.thread(size.written, size.turns)
            bench.samples.add("checkpoint", "holdfast", statistics.median(times), first=times[0], slowest=max(times))
            await bench.forks("fork", thread, size.forks)
            await bench.settled(thread)
        if "deep" in wanted:
            thread, times = await bench.thread(1, size.deep)
            await bench.forks("deep", thread, size.forks)
    await asyncio.sleep(0)
    return bench.samples.results(ROWS)


def main() -> None:
    parser = options(__doc__, ROWS)
    add_folder(parser)
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    with folder_of_boxes(given.dir) as folder:
        results = uvloop.run(measure(size, given.only, folder))
    print_results(given, results, "none")


if __name__ == "__main__":
    main()
