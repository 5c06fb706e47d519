"""Measures boxes at Docker against `docker run --rm IMAGE true`, on one daemon of its own, in one run.

    .holdfast/dev-*/bin/python benchmarks/docker.py [--quick] [--only ROW] [--json | --markdown]

Needs root, dockerd and the docker command. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import checkout  # noqa: F401 - for what is imported from tests
import uvloop
from measuring import Samples, chosen, options, print_results
from report import Goal, Result, Row
from tests.providers.docker.engine import PYTHON_IMAGE, CannotStart, DockerEngine

from holdfast.api.ids import new_id, now_ms
from holdfast.boxes import BoxSpec
from holdfast.boxes.labels import POOL
from holdfast.providers.docker import DockerHost, DockerProvider

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
        self.samples = Samples()

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
        self.samples.add_median("cold", "reference", bare)
        self.samples.add_median("cold", "holdfast", ours)

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
        self.samples.add_median("pooled", "reference", bare)
        self.samples.add_median("pooled", "holdfast", ours)

    async def exec(self) -> None:
        box = await self.provider.create(_SPEC, id=new_id("b"))
        times = []
        for _ in range(10 * self.count):
            begin = time.perf_counter()
            await box.exec(["true"])
            times.append((time.perf_counter() - begin) * 1000)
        await box.delete()
        self.samples.add_median("exec", "holdfast", times)


_WORK: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "cold": Bench.cold,
    "pooled": Bench.pooled,
    "exec": Bench.exec,
}


async def measure(count: int, only: Sequence[str]) -> list[Result]:
    with DockerEngine() as engine:
        async with DockerProvider(DockerHost(engine.url), namespace="benchmark") as provider:
            await provider.runtime()
            bench = Bench(provider, engine, count)
            for name in chosen(only, list(_WORK), {}):
                await _WORK[name](bench)
    return bench.samples.results(ROWS)


def main() -> None:
    given = options(__doc__, ROWS).parse_args()
    if shutil.which("docker") is None:
        sys.exit("there is no docker command: apt-get install docker.io")
    try:
        results = uvloop.run(measure(5 if given.quick else 50, given.only))
    except CannotStart as error:
        sys.exit(str(error))
    print_results(given, results, "docker run")


if __name__ == "__main__":
    main()
