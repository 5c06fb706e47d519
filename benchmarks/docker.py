"""Measures boxes at Docker against `docker run --rm IMAGE true`, on one daemon of its own, in one run.

    .holdfast/dev-*/bin/python benchmarks/docker.py [--quick] [--only ROW] [--json | --markdown]

Needs root, dockerd and the docker command. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import uvloop
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
from holdfast.boxes.labels import POOL
from holdfast.providers.docker import DockerHost, DockerProvider
from holdfast.testing.docker_engine import PYTHON_IMAGE, CannotStart, DockerEngine
from holdfast.threads.ids import new_id, now_ms

_SPEC: Final = BoxSpec(provider="docker", image=PYTHON_IMAGE)
ROWS: Final = (
    Row("cold", "create → first command, median", "ms", Goal("at most", 1.1, "at most 1.1 times")),
    Row("pooled", "taken from the pool → first command, median", "ms", Goal("at most", 0.1, "at most a tenth")),
    Row("exec", "exec of `true` in a live box, median", "ms", None),
)


class Bench:
    def __init__(self, provider: DockerProvider, engine: DockerEngine, count: int) -> None:
        self.provider = provider
        self.engine = engine
        self.count = count
        self.samples: dict[str, dict[str, list[Sample]]] = {}

    def add(self, row: str, side: str, values: Sequence[float]) -> None:
        sample = Sample(statistics.median(values), {"p99": percentile(values, 0.99)})
        self.samples.setdefault(row, {}).setdefault(side, []).append(sample)

    def docker_run(self) -> float:
        begin = time.perf_counter()
        command = ["docker", "-H", self.engine.url, "run", "--rm", "--network", "none", PYTHON_IMAGE, "true"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return (time.perf_counter() - begin) * 1000

    async def cold(self) -> None:
        bare, ours = [], []
        for _ in range(self.count):
            bare.append(await asyncio.to_thread(self.docker_run))
            begin = time.perf_counter()
            box = await self.provider.create(_SPEC, id=new_id("b"))
            await box.exec(["true"])
            ours.append((time.perf_counter() - begin) * 1000)
            await box.delete()
        self.add("cold", "reference", bare)
        self.add("cold", "holdfast", ours)

    async def pooled(self) -> None:
        bare, ours = [], []
        for _ in range(self.count):
            bare.append(await asyncio.to_thread(self.docker_run))
            id = new_id("b")
            await self.provider.create(_SPEC, id=id, labels={POOL: _SPEC.hash})
            begin = time.perf_counter()
            box = await self.provider.hand_over(id, _SPEC, labels={"mine": "yes"}, created_at=now_ms())
            await box.exec(["true"])
            ours.append((time.perf_counter() - begin) * 1000)
            await box.delete()
        self.add("pooled", "reference", bare)
        self.add("pooled", "holdfast", ours)

    async def exec(self) -> None:
        box = await self.provider.create(_SPEC, id=new_id("b"))
        times = []
        for _ in range(10 * self.count):
            begin = time.perf_counter()
            await box.exec(["true"])
            times.append((time.perf_counter() - begin) * 1000)
        await box.delete()
        self.add("exec", "holdfast", times)

    async def run(self, names: Sequence[str]) -> list[Result]:
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "cold": self.cold, "pooled": self.pooled, "exec": self.exec
        }  # fmt: skip
        for name in names:
            await work[name]()
        return [Result(row, self.samples[row.name]) for row in ROWS if row.name in self.samples]


async def measure(count: int, names: Sequence[str]) -> list[Result]:
    with DockerEngine() as engine:
        async with DockerProvider(DockerHost(engine.url), ground="benchmark") as provider:
            await provider.runtime()
            return await Bench(provider, engine, count).run(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 of each instead of 50")
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if shutil.which("docker") is None:
        sys.exit("there is no docker command: apt-get install docker.io")
    names = options.only or [row.name for row in ROWS]
    try:
        results = uvloop.run(measure(5 if options.quick else 50, names))
    except CannotStart as error:
        sys.exit(str(error))
    machine = describe_machine()
    if options.json:
        print(json.dumps({"machine": machine, "rows": [each.to_json() for each in results]}, indent=1))
    elif options.markdown:
        print("\n\n".join((markdown_table(results, "docker run"), markdown_details(results), machine)))
    else:
        print("\n".join((plain_table(results, "docker run"), plain_details(results), machine)))


if __name__ == "__main__":
    main()
