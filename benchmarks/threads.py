"""Measures Holdfast's threads against the reference server of Durable Streams, on this machine, in one run.

    .holdfast/dev-*/bin/python benchmarks/threads.py [--quick] [--only ROW] [--json | --markdown]

docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import load
import servers
import uvloop
from report import (
    CALM_SHARE,
    OTHERS,
    SIDES,
    Goal,
    Result,
    Row,
    Sample,
    describe_machine,
    describe_sides,
    markdown_details,
    markdown_table,
    percentile,
    plain_details,
    plain_table,
)
from servers import CannotMeasure, Server, Side

Value = TypeVar("Value")

_STREAM: Final = "/v1/stream/benchmark/s-"
_THREAD: Final = "/v1/stream/threads/t-"
_CONNECTIONS: Final = 64
_SUBSCRIBERS: Final = 200
_BATCH: Final = 1000
_IDLE_TAILS: Final = 1000
_LIST_ONE: Final = "/v1/threads?limit=1"
_CALM_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything is done."""

    rounds: int
    latency_appends: int
    rate_seconds: float
    warm_up_seconds: float
    fan_out_appends: int
    catch_up_messages: int
    catch_up_reads: int
    streams: int
    entries_per_thread: int
    starts: int
    calm_seconds: float = 0.0
    """How long to wait for other processes to be calm before each measurement; 0: measure at once."""


FULL: Final = Extent(5, 3000, 4.0, 1.5, 100, 100_000, 3, 10_000, 100, 5)
QUICK: Final = Extent(1, 500, 1.5, 0.5, 20, 20_000, 2, 1000, 100, 2)


class Meter:
    """The share of one processor that the server, we and all others used, between the first mark and the last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._marks: list[tuple[float, float, float, float]] = []

    def mark(self) -> None:
        own = time.process_time()
        self._marks.append((time.perf_counter(), self._server.cpu_seconds(), own, servers.machine_cpu_seconds()))

    def shares(self) -> dict[str, float]:
        seconds, server, generator, machine = (
            late - early for early, late in zip(self._marks[0], self._marks[-1], strict=True)
        )
        others = max(machine - server - generator, 0.0)
        shares = {"server CPU %": server, "generator CPU %": generator, OTHERS: others}
        return {name: used / seconds * 100 for name, used in shares.items()}


def run(work: Coroutine[Any, Any, Value]) -> Value:
    return uvloop.run(work)


# What is measured of both sides


def append_latency(server: Server, extent: Extent, prefix: str = _STREAM) -> Sample:
    meter = Meter(server)

    async def work() -> list[float]:
        await load.create_streams(server.port, [f"{prefix}0"])
        warm_up = max(extent.latency_appends // 5, 100)
        return await load.measure_latency(server.port, f"{prefix}0", extent.latency_appends, warm_up, meter.mark)

    milliseconds = [seconds * 1000 for seconds in run(work())]
    return Sample(percentile(milliseconds, 0.5), {"p99 ms": percentile(milliseconds, 0.99), **meter.shares()})


def append_rate(server: Server, extent: Extent, streams: int, prefix: str = _STREAM) -> Sample:
    meter = Meter(server)
    created = [f"{prefix}{number}" for number in range(streams)]
    targets = list(itertools.islice(itertools.cycle(created), _CONNECTIONS))

    async def work() -> tuple[load.Rate, int]:
        await load.create_streams(server.port, created)
        rate = await load.measure_rate(server.port, targets, extent.rate_seconds, extent.warm_up_seconds, meter.mark)
        return rate, sum([(await load.measure_catch_up(server.port, target)).messages for target in created])

    rate, found = run(work())
    if found != rate.acknowledged:
        raise CannotMeasure(f"{rate.acknowledged} appends were acknowledged, and {found} messages are there")
    return Sample(rate.per_second, meter.shares())


def fan_out(server: Server, extent: Extent, prefix: str = _STREAM) -> Sample:
    meter = Meter(server)

    async def work() -> list[float]:
        await load.create_streams(server.port, [f"{prefix}0"])
        warm_up = max(extent.fan_out_appends // 10, 3)
        return await load.measure_fan_out(
            server.port, f"{prefix}0", _SUBSCRIBERS, extent.fan_out_appends, warm_up, meter.mark
        )

    milliseconds = [seconds * 1000 for seconds in run(work())]
    return Sample(
        percentile(milliseconds, 0.5),
        {"p99 ms": percentile(milliseconds, 0.99), "max ms": max(milliseconds), **meter.shares()},
    )


def catch_up(server: Server, extent: Extent, one_by_one: bool = False, prefix: str = _STREAM) -> Sample:
    meter = Meter(server)
    target, count = f"{prefix}0", extent.catch_up_messages

    async def work() -> list[load.CatchUp]:
        await load.create_streams(server.port, [target])
        if one_by_one:
            await load.append_one_by_one(server.port, target, count, _CONNECTIONS)
        else:
            await load.append_batches(server.port, target, count, _BATCH)
        meter.mark()
        reads = [await load.measure_catch_up(server.port, target) for _ in range(extent.catch_up_reads)]
        meter.mark()
        return reads

    reads = run(work())
    for read in reads:
        if read.messages != count:
            raise CannotMeasure(f"{count} messages were appended, and a catch-up read found {read.messages}")
    return Sample(
        statistics.median(read.messages / read.seconds for read in reads),
        {
            "first read /s": reads[0].messages / reads[0].seconds,
            "requests": reads[0].requests,
            "bytes per message": reads[0].size / count,
            OTHERS: meter.shares()[OTHERS],
        },
    )


# What is measured of ours alone


def memory(server: Server, extent: Extent, prefix: str = _STREAM) -> Sample:
    tails = min(_IDLE_TAILS, extent.streams)
    targets = [f"{prefix}{number:05d}" for number in range(extent.streams)]
    bodies = ((target, load.message(series, 0)) for series, target in enumerate(targets))

    async def work() -> tuple[float, tuple[float, float]]:
        await load.put_bodies(server.port, bodies, _CONNECTIONS)
        without_tails, _ = server.memory()
        async with load.idle_tails(server.port, targets[: tails // 2], targets[tails // 2 : tails]):
            await asyncio.sleep(3)
            return without_tails, server.memory()

    empty, _ = server.memory()
    without_tails, (now, peak) = run(work())
    return Sample(now, {"peak MB": peak, "empty MB": empty, "without tails MB": without_tails})


def starts(side: Side, extent: Extent, folder: Path) -> Sample:
    home = folder / "home"
    with side.serve(home) as server:
        run(load.put_bodies(server.port, _thread_bodies(extent), _CONNECTIONS))
    clean = [_time_start(side, home, Server.stop) for _ in range(extent.starts)]

    def append_and_kill(server: Server) -> None:
        targets = [f"{_THREAD}{number:05d}" for number in range(_CONNECTIONS)]
        run(load.measure_rate(server.port, targets, 1.0, 0.0, lambda: None))
        server.kill()

    _time_start(side, home, append_and_kill)
    killed, _ = _time_start(side, home, Server.stop)
    size = sum(file.stat().st_size for file in home.rglob("*") if file.is_file())
    return Sample(
        statistics.median(first for first, _ in clean),
        {
            "slowest s": max(first for first, _ in clean),
            "until threads are listed s": statistics.median(listed for _, listed in clean),
            "after SIGKILL s": killed,
            "home MB": size / 1e6,
        },
    )


def _thread_bodies(extent: Extent) -> Iterator[tuple[str, bytes]]:
    for series in range(extent.streams):
        # The writers of append_and_kill count in series of their own, from 0 to 63.
        yield f"{_THREAD}{series:05d}", load.batch(1000 + series, extent.entries_per_thread)


def _time_start(side: Side, home: Path, end: Callable[[Server], None]) -> tuple[float, float]:
    """Seconds from spawning the server until it has answered with a whole thread, and until it has listed threads."""
    port = servers.free_port()
    began = time.perf_counter()
    server = side.spawn(home, port)
    try:
        servers.wait_for_answer(server, f"{_THREAD}00000?offset=-1")
        first = time.perf_counter() - began
        servers.wait_for_answer(server, _LIST_ONE)
        listed = time.perf_counter() - began
        end(server)
    finally:
        if server.process.poll() is None:
            server.kill()
    return first, listed


# The rows


Measure = Callable[[Side, Extent, Path], Sample]


@dataclass(frozen=True, slots=True)
class Plan:
    row: Row
    measure: Measure
    sides: tuple[str, ...] = SIDES
    every_round: bool = True


def on_fresh(measure: Callable[..., Sample], **options: Any) -> Measure:
    """A measurement on a server and a folder of its own: the reference answers 404 past 100 active streams."""

    def measured(side: Side, extent: Extent, folder: Path) -> Sample:
        with side.serve_fresh(folder) as server:
            return measure(server, extent, **options)

    return measured


PLANS: Final = (
    Plan(
        Row("latency", "append, one connection, p50 latency", "ms", Goal("at most", 0.5, "≤ 0.5 of the reference")),
        on_fresh(append_latency),
    ),
    Plan(
        Row("streams", "append, 64 connections on 64 streams", "/s", Goal("at least", 12, "≥ 12 times")),
        on_fresh(append_rate, streams=64),
    ),
    Plan(
        Row("one-stream", "append, 64 connections on one stream", "/s", Goal("at least", 8, "≥ 8 times")),
        on_fresh(append_rate, streams=1),
    ),
    Plan(
        Row(
            "fan-out", "append to receipt at 200 SSE subscribers, p50", "ms", Goal("at most", 1 / 15, "≤ 1/15 (0.067)")
        ),
        on_fresh(fan_out),
    ),
    Plan(
        Row("catch-up", "catch-up read of 100,000 messages", "/s", Goal("at least", 2.5, "≥ 2.5 times")),
        on_fresh(catch_up),
    ),
    Plan(
        Row("memory", "memory with 10,000 streams and 1,000 idle tails", "MB", Goal("under", 300, "< 300 MB")),
        on_fresh(memory),
        sides=("holdfast",),
        every_round=False,
    ),
    Plan(
        Row("start", "start to first answer, 10,000 threads, 1,000,000 entries", "s", Goal("under", 1, "< 1 s")),
        starts,
        sides=("holdfast",),
        every_round=False,
    ),
)

VARIANTS: Final = (
    Plan(
        Row("catch-up-single", "catch-up read, appended one by one", "/s", None),
        on_fresh(catch_up, one_by_one=True),
        every_round=False,
    ),
    Plan(
        Row("threads-latency", "append to a thread, one connection, p50 latency", "ms", None),
        on_fresh(append_latency, prefix=_THREAD),
        sides=("holdfast",),
    ),
    Plan(
        Row("threads", "append, 64 connections on 64 threads", "/s", None),
        on_fresh(append_rate, streams=64, prefix=_THREAD),
        sides=("holdfast",),
    ),
    Plan(
        Row("one-thread", "append, 64 connections on one thread", "/s", None),
        on_fresh(append_rate, streams=1, prefix=_THREAD),
        sides=("holdfast",),
    ),
    Plan(
        Row("threads-memory", "memory with 10,000 threads and 1,000 idle tails", "MB", None),
        on_fresh(memory, prefix=_THREAD),
        sides=("holdfast",),
        every_round=False,
    ),
)


def measure_all(plans: list[Plan], sides: list[Side], extent: Extent, folder: Path) -> list[Result]:
    """Round by round, the sides in turns, so that a change of the machine's mood meets all alike."""
    results = [Result(plan.row, {side: [] for side in plan.sides}) for plan in plans]
    for number in range(extent.rounds):
        for plan, result in zip(plans, results, strict=True):
            if number and not plan.every_round:
                continue
            for side in sides if number % 2 == 0 else reversed(sides):
                if side.name in plan.sides:
                    sample = measure_calmly(plan, side, extent, folder)
                    result.samples[side.name].append(sample)
                    figures = ", ".join(f"{name} {value:,.4g}" for name, value in sample.details.items())
                    line = (
                        f"round {number + 1}  {plan.row.name:16} {side.name:10} {sample.value:>10,.2f} {plan.row.unit}"
                    )
                    print(f"{line:60}  {figures}", file=sys.stderr, flush=True)
    return results


def measure_calmly(plan: Plan, side: Side, extent: Extent, folder: Path) -> Sample:
    """One sample; where calm was asked for, one that other processes did not disturb, if that can be had."""
    samples: list[tuple[float, int, Sample]] = []
    for _ in range(_CALM_TRIES):
        wait_for_calm(extent.calm_seconds)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            sample = plan.measure(side, extent, Path(scratch))
        samples.append((sample.details.get(OTHERS, 0.0), len(samples), sample))
        if not extent.calm_seconds or not sample.disturbed:
            break
    return min(samples)[2]


def wait_for_calm(patience: float) -> None:
    """Wait until other processes leave the machine to us, but not longer than this."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        began, busy = time.perf_counter(), servers.machine_cpu_seconds()
        time.sleep(0.5)
        if (servers.machine_cpu_seconds() - busy) / (time.perf_counter() - began) * 100 < CALM_SHARE / 2:
            return


# The surroundings


def scratch_folder(wanted: Path | None) -> Path:
    """Where both sides keep their data: on a disk, as a sync to memory costs nothing."""
    folder = (wanted or Path(tempfile.gettempdir())).resolve()
    kinds = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        if folder.is_relative_to(mount):
            kinds[len(Path(mount).parts)] = kind
    if (kind := kinds[max(kinds)]) in ("tmpfs", "ramfs"):
        raise CannotMeasure(f"{folder} is in memory ({kind}): give a folder on a disk with --dir")
    return folder


def time_sync(folder: Path, count: int = 300) -> float:
    """Milliseconds that this disk takes to sync one page at the end of a file, median."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(count):
            os.write(file.fileno(), b"m" * 4096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def raise_file_limit() -> None:
    """Each connection is a file, here and in the server, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def parse_arguments() -> argparse.Namespace:
    names = [plan.row.name for plan in (*PLANS, *VARIANTS)]
    parser = argparse.ArgumentParser(description="Measure Holdfast's threads against the reference server.")
    parser.add_argument("--rounds", type=int, help=f"how often each row is measured (default {FULL.rounds})")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="ROW", help=f"one of {', '.join(names)}; repeatable"
    )
    parser.add_argument("--side", choices=SIDES, help="measure one side only")
    parser.add_argument("--variants", action="store_true", help="also measure the rows that have no goal")
    parser.add_argument("--quick", action="store_true", help="less of everything: to see that it works, not to quote")
    parser.add_argument(
        "--dir", type=Path, help="where both keep their data, on a disk (default: the system's temporary folder)"
    )
    parser.add_argument(
        "--ours", metavar="COMMAND", help="start Holdfast by this command, with {home} and {port} in it"
    )
    parser.add_argument(
        "--calm",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait up to so long for a calm machine before each measurement, and repeat those that were disturbed",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything measured as JSON")
    form.add_argument("--markdown", action="store_true", help="print the tables of docs/benchmarks.md")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> None:
    raise_file_limit()
    node = servers.find_node()
    servers.install_reference(node)
    sides = [servers.reference(node), servers.ours(shlex.split(arguments.ours) if arguments.ours else None)]
    if arguments.side:
        sides = [side for side in sides if side.name == arguments.side]
    everything = (*PLANS, *VARIANTS)
    if arguments.only:
        plans = [plan for plan in everything if plan.row.name in arguments.only]
    else:
        plans = list(everything if arguments.variants else PLANS)
    extent = QUICK if arguments.quick else FULL
    extent = replace(extent, rounds=arguments.rounds or extent.rounds, calm_seconds=arguments.calm)
    folder = scratch_folder(arguments.dir)
    surroundings = f"{describe_machine()}; fdatasync of 4 KB {time_sync(folder):.2f} ms"
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-", dir=folder) as scratch:
        results = measure_all(plans, sides, extent, Path(scratch))
    notes = [
        f"{surroundings}. Medians of {extent.rounds} rounds, without those that"
        f" other processes disturbed (more than {CALM_SHARE:.0f} % of one processor) where there are others.",
        *describe_sides(sides),
    ]
    if arguments.json:
        print(json.dumps({"notes": notes, "rows": [result.to_json() for result in results]}, indent=2))
    elif arguments.markdown:
        print(
            "\n\n".join((markdown_table(results), "\n".join(f"- {note}" for note in notes), markdown_details(results)))
        )
    else:
        print("\n\n".join((plain_table(results), plain_details(results), "\n".join(notes))))


def main() -> None:
    # Being told to end is no reason to leave a server or its data behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))
    try:
        measure(parse_arguments())
    except (CannotMeasure, load.LoadFailed) as error:
        sys.exit("\n".join((f"error: {error}", *getattr(error, "__notes__", ()))))


if __name__ == "__main__":
    main()
