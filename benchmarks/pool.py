"""Measures boxes out of the warm pool against the floor of this machine, a bare bubblewrap, in one run.

    .holdfast/dev-*/bin/python benchmarks/pool.py [--quick] [--only ROW] [--json | --markdown]

Each is made by the service, its row on disk, and has run its first command. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import uvloop
from floor import bare_sandbox
from measuring import Samples, add_folder, add_rounds, chosen, folder_of_boxes, in_rounds, options, print_results
from report import Goal, Result, Row, percentile

from holdfast.boxes import BoxSpec
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.pool_rules import PoolSettings
from holdfast.providers.local import LocalProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes

_SPEC: Final = BoxSpec()
_FILL_SECONDS: Final = 120.0
ROWS: Final = (
    Row("pooled", "create from the pool → first command, median", "ms", Goal("at most", 0.6, "at most 0.6 times")),
    Row(
        "setup",
        "a new box and one with a setup, both from the pool → first command, median",
        "ms",
        Goal("at most", 1.5, "at most 1.5 times"),
    ),
    Row("setup-cold", "a box with a setup → first command: restored now, and from the pool, median", "ms", None),
    Row("burst", "one from the pool, and 100 at once (p99)", "ms", Goal("at most", 3.0, "at most 3 times")),
    Row(
        "burst-cold",
        "one made cold, and 100 at once from the pool (p99)",
        "ms",
        Goal("at most", 3.0, "at most 3 times"),
    ),
    Row("burst-bare", "100 bare commands at once, and 100 at once from the pool (p99)", "ms", None),
    Row("beside", "a cold create alone, and while the pool is filled", "ms", Goal("at most", 1.5, "at most 1.5 times")),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    rounds: int
    creates: int
    burst: int


FULL: Final = Size(rounds=5, creates=50, burst=100)
QUICK: Final = Size(rounds=1, creates=10, burst=10)


def bare_commands(count: int) -> float:
    """Milliseconds that this machine takes for so many of the same command at once, with no box and nothing of ours."""
    begin = time.perf_counter()
    started = [os.posix_spawn("/usr/bin/true", ["true"], {}) for _ in range(count)]
    for process in started:
        os.waitpid(process, 0)
    return (time.perf_counter() - begin) * 1000


class Bench:
    """One service with a pool on an empty folder, and the bare sandbox with the same mounts beside it."""

    def __init__(self, provider: LocalProvider, boxes: Boxes, size: Size) -> None:
        self.provider = provider
        self.boxes = boxes
        self.size = size
        self.samples = Samples()

    async def first_command(self, spec: BoxSpec = _SPEC) -> tuple[float, str]:
        """Milliseconds from asking for a box to the end of its first command."""
        begin = time.perf_counter()
        row = await self.boxes.create(spec)
        async with await self.boxes.open(row.id) as box:
            done = await box.exec(["true"])
        taken = (time.perf_counter() - begin) * 1000
        if not done.ok:
            raise RuntimeError(f"the first command failed: {done}")
        return taken, row.id

    async def fill(self, count: int) -> None:
        await self.boxes.pool.keep(_SPEC, count)
        async with asyncio.timeout(_FILL_SECONDS):
            await self.boxes.pool.settled()

    async def cold(self) -> float:
        """By a spec that nobody asked for before."""
        spec = replace(_SPEC, env={"ONCE": str(time.perf_counter_ns())})
        taken, id = await self.first_command(spec)
        await self.boxes.delete(id)
        return taken

    async def pooled(self) -> None:
        """In turns, a tenth at a time, the pool full and at rest."""
        bare, ours = [], []
        for _ in range(10):
            count = max(1, self.size.creates // 10)
            await self.fill(count)
            for _ in range(count):
                bare.append(bare_sandbox(self.provider))
            used = []
            for _ in range(count):
                taken, id = await self.first_command()
                ours.append(taken)
                used.append(id)
            for id in used:
                await self.boxes.delete(id)
        self.samples.add_median("pooled", "reference", bare)
        self.samples.add_median("pooled", "holdfast", ours)

    async def setup(self) -> None:
        """In turns. A setup is a snapshot, and a run in its environment acquires a box that starts from it."""
        source = await self.boxes.create(_SPEC)
        async with await self.boxes.open(source.id) as box:
            await box.exec(["sh", "-c", "echo made > made"])
        await self.boxes.stop(source.id)
        snapshot = (await self.boxes.snapshot(source.id)).id
        took: dict[str, list[float]] = {"new": [], "setup": [], "restored": []}
        for _ in range(self.size.creates):
            await self.boxes.pool.keep(_SPEC, 1, snapshot)
            await self.fill(1)
            took["new"].append(await self._acquired(_SPEC, None))
            took["setup"].append(await self._acquired(_SPEC, snapshot))
            once = replace(_SPEC, env={"ONCE": str(time.perf_counter_ns())})
            took["restored"].append(await self._acquired(once, snapshot))
        await self.boxes.pool.keep(_SPEC, 0, snapshot)
        await self.boxes.pool.keep(_SPEC, 0)
        await self.boxes.delete(source.id)
        await self.boxes.delete_snapshot(snapshot)
        self.samples.add_median("setup", "reference", took["new"])
        self.samples.add_median("setup", "holdfast", took["setup"])
        self.samples.add_median("setup-cold", "reference", took["restored"])
        self.samples.add_median("setup-cold", "holdfast", took["setup"])

    async def _acquired(self, spec: BoxSpec, start: str | None) -> float:
        begin = time.perf_counter()
        row = (await self.boxes.acquire(f"key-{time.perf_counter_ns()}", spec, start=start)).row
        async with await self.boxes.open(row.id) as box:
            done = await box.exec(["true"])
        taken = (time.perf_counter() - begin) * 1000
        if not done.ok:
            raise RuntimeError(f"the first command failed: {done}")
        await self.boxes.delete(row.id)
        return taken

    async def burst(self) -> None:
        cold = [await self.cold() for _ in range(10)]
        alone = []
        for _ in range(10):
            await self.fill(2)
            taken, id = await self.first_command()
            alone.append(taken)
            await self.boxes.delete(id)
        await self.fill(self.size.burst)
        bare = bare_commands(self.size.burst)
        before, used = self.boxes.pool.statistics(), time.process_time()
        made = await asyncio.gather(*(self.first_command() for _ in range(self.size.burst)))
        used = (time.process_time() - used) * 1000 / self.size.burst
        misses = self.boxes.pool.statistics().misses - before.misses
        times = [taken for taken, _ in made]
        details = {"p50": statistics.median(times), "misses": float(misses), "our CPU ms per box": used}
        self.samples.add("burst", "reference", statistics.median(alone))
        self.samples.add("burst", "holdfast", percentile(times, 0.99), **details)
        self.samples.add("burst-cold", "reference", statistics.median(cold))
        self.samples.add("burst-cold", "holdfast", percentile(times, 0.99), **details)
        self.samples.add("burst-bare", "reference", bare)
        self.samples.add("burst-bare", "holdfast", percentile(times, 0.99))
        await self.boxes.pool.keep(_SPEC, 0)
        await asyncio.gather(*(self.boxes.delete(id) for _, id in made))

    async def beside(self) -> None:
        await self.boxes.pool.keep(_SPEC, 0)
        await self.boxes.pool.drain()
        alone = [await self.cold() for _ in range(self.size.creates)]
        await self.boxes.pool.keep(_SPEC, self.size.burst)
        beside = [await self.cold() for _ in range(self.size.creates)]
        self.samples.add_median("beside", "reference", alone)
        self.samples.add_median("beside", "holdfast", beside)
        await self.boxes.pool.keep(_SPEC, 0)
        await self.boxes.pool.drain()


_WORK: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "pooled": Bench.pooled,
    "setup": Bench.setup,
    "burst": Bench.burst,
    "beside": Bench.beside,
}
_ALSO: Final = {"setup-cold": "setup", "burst-cold": "burst", "burst-bare": "burst"}
"""Rows that come of another row's work."""


async def measure(size: Size, only: Sequence[str], folder: Path) -> list[Result]:
    names = chosen(only, list(_WORK), _ALSO)
    # What was asked for is forgotten at once, so that each row has the pool that it fills.
    settings = PoolSettings(boxes=2 * size.burst, half_life=0.001)
    async with LocalProvider(folder) as provider, SqliteBoxes(folder / "data.db") as rows:
        boxes = Boxes(rows, {provider.name: provider}, node="here", pool=settings)
        try:
            bench = Bench(provider, boxes, size)
            for name in in_rounds(names, size.rounds):
                await _WORK[name](bench)
        finally:
            await boxes.close()
    return bench.samples.results(ROWS)


def main() -> None:
    parser = options(__doc__, ROWS)
    add_rounds(parser)
    add_folder(parser)
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    with folder_of_boxes(given.dir) as folder:
        results = uvloop.run(measure(replace(size, rounds=given.rounds or size.rounds), given.only, folder))
    print_results(given, results, "floor")


if __name__ == "__main__":
    main()
