"""Measures local boxes against the floor of this machine (a bare bubblewrap, a bare spawn, a bare pipe), in one run.

    .holdfast/dev-*/bin/python benchmarks/boxes.py [--quick] [--only ROW] [--json | --markdown]

docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import uvloop
from floor import bare_sandbox
from measuring import Samples, add_folder, add_rounds, chosen, folder_of_boxes, in_rounds, options, print_results
from report import Goal, Result, Row, percentile

from holdfast.api.ids import new_id
from holdfast.boxes import Box, BoxSpec
from holdfast.boxes.service.boxes import Boxes
from holdfast.providers.local import LocalProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes

_GIGABYTE: Final = 1 << 30
_PIECE: Final = 1 << 16

ROWS: Final = (
    Row("cold", "create → first command's output, median of 100", "ms", Goal("at most", 4.0, "at most 4 times")),
    Row("burst", "one create, and 100 at once (p99)", "ms", Goal("at most", 100.0, "at most 100 times")),
    Row("exec", "exec of `true` in a live box, p50", "ms", Goal("at most", 2.0, "at most 2 times")),
    Row("stream", "exec streaming 1 GB of stdout", "MB/s", Goal("at least", 0.3, "at least 0.3 times")),
    Row("snapshot", "snapshot of an idle box: 1 MB, and 2 GB written", "ms", Goal("at most", 1.5, "at most 1.5 times")),
    Row("snapshot-bound", "snapshot of an idle box with 2 GB", "ms", Goal("under", 100.0, "under 100 ms")),
    Row("fork", "create, and fork from a snapshot → first output", "ms", Goal("at most", 1.3, "at most 1.3 times")),
    Row("wake", "create, and wake of a hibernated box → first output", "ms", Goal("at most", 2.0, "at most 2 times")),
    Row("memory", "memory of an idle box, host side (PSS)", "MB", Goal("under", 12.0, "under 12 MB")),
    Row("crowd", "exec in one of 200 idle boxes, p99", "ms", Goal("under", 50.0, "under 50 ms")),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    rounds: int
    creates: int
    burst: int
    execs: int
    streamed: int
    written: int
    crowd: int


FULL: Final = Size(rounds=5, creates=100, burst=100, execs=500, streamed=_GIGABYTE, written=2 * _GIGABYTE, crowd=200)
QUICK: Final = Size(rounds=1, creates=10, burst=10, execs=50, streamed=_GIGABYTE // 8, written=_GIGABYTE // 8, crowd=10)


class Bench:
    """One provider on an empty folder, and the bare sandbox with the same mounts beside it."""

    def __init__(self, provider: LocalProvider, size: Size) -> None:
        self.provider = provider
        self.size = size
        self.samples = Samples()

    @asynccontextmanager
    async def box(self) -> AsyncIterator[Box]:
        box = await self.provider.create(BoxSpec(), id=new_id("b"))
        try:
            yield box
        finally:
            await box.delete()

    async def first_output(self, made: Awaitable[Box]) -> Box:
        box = await made
        done = await box.exec(["echo", "up"])
        if done.stdout != b"up\n":
            raise RuntimeError(f"the first command printed {done.stdout!r}")
        return box

    def create(self) -> Awaitable[Box]:
        return self.provider.create(BoxSpec(), id=new_id("b"))

    # --- rows ---

    async def cold(self) -> None:
        """In turns, a tenth at a time."""
        bare, ours = [], []
        for _ in range(10):
            for _ in range(max(1, self.size.creates // 10)):
                bare.append(bare_sandbox(self.provider))
            for _ in range(max(1, self.size.creates // 10)):
                begin = time.perf_counter()
                box = await self.first_output(self.create())
                ours.append((time.perf_counter() - begin) * 1000)
                await box.delete()
        self.samples.add_median("cold", "reference", bare)
        self.samples.add_median("cold", "holdfast", ours)

    async def burst(self) -> None:
        alone = []
        for _ in range(20):
            begin = time.perf_counter()
            box = await self.first_output(self.create())
            alone.append((time.perf_counter() - begin) * 1000)
            await box.delete()
        times: list[float] = []

        async def one() -> Box:
            begin = time.perf_counter()
            box = await self.first_output(self.create())
            times.append((time.perf_counter() - begin) * 1000)
            return box

        boxes = await asyncio.gather(*[one() for _ in range(self.size.burst)])
        self.samples.add("burst", "reference", statistics.median(alone))
        self.samples.add("burst", "holdfast", percentile(times, 0.99), p50=statistics.median(times), failed=0.0)
        await asyncio.gather(*[box.delete() for box in boxes])

    async def exec(self) -> None:
        async with self.box() as box:
            await box.exec(["true"])
            bare, ours = [], []
            for _ in range(self.size.execs):
                begin = time.perf_counter()
                subprocess.run(["true"], check=True)  # noqa: ASYNC221 - it is what is measured
                bare.append((time.perf_counter() - begin) * 1000)
                begin = time.perf_counter()
                await box.exec(["true"])
                ours.append((time.perf_counter() - begin) * 1000)
            self.samples.add_median("exec", "reference", bare)
            self.samples.add_median("exec", "holdfast", ours)

    async def stream(self) -> None:
        command = ["head", "-c", str(self.size.streamed), "/dev/zero"]
        async with self.box() as box:
            begin = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
                assert process.stdout is not None
                count = 0
                while data := os.read(process.stdout.fileno(), _PIECE):
                    count += len(data)
            self.samples.add("stream", "reference", count / (time.perf_counter() - begin) / 1e6)
            count = 0

            def take(data: bytes) -> None:
                nonlocal count
                count += len(data)

            before = _resident()
            begin = time.perf_counter()
            await box.exec(command, on_stdout=take)
            taken = time.perf_counter() - begin
            if count != self.size.streamed:
                raise RuntimeError(f"{count} bytes arrived")
            self.samples.add(
                "stream", "holdfast", count / taken / 1e6, **{"memory grew by MB": (_resident() - before) / 1e6}
            )

    async def snapshot(self) -> None:
        small = await self._snapshot(1 << 20)
        large = await self._snapshot(self.size.written)
        self.samples.add("snapshot", "reference", small)
        self.samples.add("snapshot", "holdfast", large)
        self.samples.add("snapshot-bound", "holdfast", large)

    async def _snapshot(self, size: int) -> float:
        async with self.box() as box:
            await box.exec(["sh", "-c", f"head -c {size} /dev/urandom > /workspace/data"])
            begin = time.perf_counter()
            snapshot = await box.snapshot()
            taken = (time.perf_counter() - begin) * 1000
            if (await box.files.stat("/workspace/data")).size != size:
                raise RuntimeError("the box lost its file")
        await self.provider.delete_snapshot(snapshot.id)
        return taken

    async def fork(self) -> None:
        async with self.box() as box:
            await box.files.write("/workspace/data", b"x" * (1 << 20))
            snapshot = await box.snapshot()
        cold, forked = [], []
        for _ in range(max(3, self.size.creates // 5)):
            begin = time.perf_counter()
            made = await self.first_output(self.create())
            cold.append((time.perf_counter() - begin) * 1000)
            await made.delete()
            begin = time.perf_counter()
            made = await self.first_output(self.provider.restore(snapshot.id, BoxSpec(), id=new_id("b")))
            forked.append((time.perf_counter() - begin) * 1000)
            await made.delete()
        await self.provider.delete_snapshot(snapshot.id)
        self.samples.add("fork", "reference", statistics.median(cold))
        self.samples.add("fork", "holdfast", statistics.median(forked))

    async def wake(self) -> None:
        """By the service, as a request finds it: rows and all."""
        async with SqliteBoxes(self.provider.data_dir.path / "rows.db") as rows:
            boxes = Boxes(rows, {"local": self.provider}, node="benchmark")
            await boxes.join()
            cold, woken = [], []
            for _ in range(max(3, self.size.creates // 5)):
                begin = time.perf_counter()
                row = await boxes.create(BoxSpec())
                await self.first_output(boxes.open(row.id))
                cold.append((time.perf_counter() - begin) * 1000)
                async with await boxes.open(row.id) as box:
                    await box.files.write("/workspace/data", b"x" * (1 << 20))
                await boxes.hibernate(row.id)
                begin = time.perf_counter()
                await self.first_output(boxes.open(row.id))
                woken.append((time.perf_counter() - begin) * 1000)
                await boxes.delete(row.id)
            await boxes.sweep()  # what was kept of their sleep
            await boxes.close()
        self.samples.add_median("wake", "reference", cold)
        self.samples.add_median("wake", "holdfast", woken)

    async def crowd(self) -> None:
        boxes: list[Box] = []
        try:
            for _ in range(self.size.crowd):
                boxes.append(await self.first_output(self.create()))
            sizes = [_proportional(box) for box in boxes]
            self.samples.add("memory", "holdfast", statistics.median(sizes) / 1e6, largest=max(sizes) / 1e6)
            times = []
            for _ in range(3):
                for box in boxes:
                    begin = time.perf_counter()
                    await box.exec(["true"])
                    times.append((time.perf_counter() - begin) * 1000)
            self.samples.add("crowd", "holdfast", percentile(times, 0.99), p50=statistics.median(times))
        finally:
            for box in boxes:
                await box.delete()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _proportional(box: Box) -> int:
    """Bytes of the guest and of the sandbox's monitor, memory that is shared counted by share."""
    guest = box.link.pid()  # type: ignore[attr-defined]
    parent = next(
        line.split()[1] for line in Path(f"/proc/{guest}/status").read_text().splitlines() if line.startswith("PPid")
    )
    total = 0
    for pid in (guest, parent):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


_WORK: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "cold": Bench.cold,
    "burst": Bench.burst,
    "exec": Bench.exec,
    "stream": Bench.stream,
    "snapshot": Bench.snapshot,
    "fork": Bench.fork,
    "wake": Bench.wake,
    "crowd": Bench.crowd,
}
_ALSO: Final = {"snapshot-bound": "snapshot", "memory": "crowd"}
"""Rows that come of another row's work."""
_ONCE: Final = frozenset({"crowd"})


async def measure(size: Size, only: Sequence[str], folder: Path) -> list[Result]:
    names = chosen(only, list(_WORK), _ALSO)
    async with LocalProvider(folder) as provider:
        bench = Bench(provider, size)
        for name in in_rounds(names, size.rounds, _ONCE):
            await _WORK[name](bench)
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
