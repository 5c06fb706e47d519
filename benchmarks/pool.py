"""Measures boxes out of the warm pool against the floor of this machine, a bare bubblewrap, in one run.

    .holdfast/dev-*/bin/python benchmarks/pool.py [--quick] [--only ROW] [--json | --markdown]

Each is made by the service, its row on disk, and has run its first command. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import uvloop
from floor import bare_sandbox
from report import (
    Goal,
    Result,
    Row,
    Sample,
    describe_machine,
    markdown_details,
    markdown_table,
    percentile,
    plain_details,
    plain_table,
)

from holdfast.boxes import BoxSpec
from holdfast.boxes.pool import PoolSettings
from holdfast.boxes.service import Boxes
from holdfast.boxes.sqlite import SqliteBoxes
from holdfast.providers.local import LocalProvider

_SPEC: Final = BoxSpec()
_FILL_SECONDS: Final = 120.0
ROWS: Final = (
    Row("pooled", "create from the pool → first command, median", "ms", Goal("at most", 0.6, "at most 0.6 times")),
    Row("burst", "one from the pool, and 100 at once (p99)", "ms", Goal("at most", 3.0, "at most 3 times")),
    Row(
        "burst-cold",
        "one made cold, and 100 at once from the pool (p99)",
        "ms",
        Goal("at most", 3.0, "at most 3 times"),
    ),
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


class Bench:
    """One service with a pool on an empty folder, and the bare sandbox with the same mounts beside it."""

    def __init__(self, provider: LocalProvider, boxes: Boxes, size: Size) -> None:
        self.provider = provider
        self.boxes = boxes
        self.size = size
        self.samples: dict[str, dict[str, list[Sample]]] = {}

    def add(self, row: str, side: str, value: float, **details: float) -> None:
        self.samples.setdefault(row, {}).setdefault(side, []).append(Sample(value, details))

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
        self.add("pooled", "reference", statistics.median(bare), p99=percentile(bare, 0.99))
        self.add("pooled", "holdfast", statistics.median(ours), p99=percentile(ours, 0.99))

    async def burst(self) -> None:
        cold = [await self.cold() for _ in range(10)]
        alone = []
        for _ in range(10):
            await self.fill(2)
            taken, id = await self.first_command()
            alone.append(taken)
            await self.boxes.delete(id)
        await self.fill(self.size.burst)
        before = self.boxes.pool.statistics()
        made = await asyncio.gather(*(self.first_command() for _ in range(self.size.burst)))
        misses = self.boxes.pool.statistics().misses - before.misses
        times = [taken for taken, _ in made]
        details = {"p50": statistics.median(times), "misses": float(misses)}
        self.add("burst", "reference", statistics.median(alone))
        self.add("burst", "holdfast", percentile(times, 0.99), **details)
        self.add("burst-cold", "reference", statistics.median(cold))
        self.add("burst-cold", "holdfast", percentile(times, 0.99), **details)
        await self.boxes.pool.keep(_SPEC, 0)
        await asyncio.gather(*(self.boxes.delete(id) for _, id in made))

    async def beside(self) -> None:
        await self.boxes.pool.keep(_SPEC, 0)
        await self.boxes.pool.drain()
        alone = [await self.cold() for _ in range(self.size.creates)]
        await self.boxes.pool.keep(_SPEC, self.size.burst)
        beside = [await self.cold() for _ in range(self.size.creates)]
        self.add("beside", "reference", statistics.median(alone), p99=percentile(alone, 0.99))
        self.add("beside", "holdfast", statistics.median(beside), p99=percentile(beside, 0.99))
        await self.boxes.pool.keep(_SPEC, 0)
        await self.boxes.pool.drain()


_WORK: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "pooled": Bench.pooled,
    "burst": Bench.burst,
    "beside": Bench.beside,
}
_ALSO: Final = {"burst-cold": "burst"}
"""Rows that come of another row's work."""


async def measure(size: Size, only: Sequence[str], folder: Path) -> list[Result]:
    names = [_ALSO.get(name, name) for name in only] or list(_WORK)
    # What was asked for is forgotten at once, so that each row has the pool that it fills.
    settings = PoolSettings(boxes=2 * size.burst, half_life=0.001)
    async with LocalProvider(folder) as provider, SqliteBoxes(folder / "data.db") as rows:
        boxes = Boxes(rows, {provider.name: provider}, node="here", pool=settings)
        try:
            bench = Bench(provider, boxes, size)
            for round_number in range(size.rounds):
                for name, work in _WORK.items():
                    if name in names:
                        print(f"{name} {round_number + 1}/{size.rounds}", file=sys.stderr)
                        await work(bench)
        finally:
            await boxes.close()
    return [Result(row, bench.samples[row.name]) for row in ROWS if row.name in bench.samples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="does it work? Not to be quoted")
    parser.add_argument("--only", action="append", default=[], choices=[row.name for row in ROWS])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--dir", type=Path, help="where boxes are kept; on a disk, for figures that mean something")
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    if given.rounds:
        size = replace(size, rounds=given.rounds)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pool-", dir=given.dir))
    folder.chmod(0o711)  # the bare sandbox runs as the boxes' user, and has to get there
    try:
        results = uvloop.run(measure(size, given.only, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        print(json.dumps({"machine": describe_machine(), "rows": [result.to_json() for result in results]}, indent=2))
    elif given.markdown:
        print("\n\n".join((markdown_table(results, "floor"), describe_machine(), markdown_details(results))))
    else:
        print("\n\n".join((plain_table(results, "floor"), plain_details(results), describe_machine())))


if __name__ == "__main__":
    main()
