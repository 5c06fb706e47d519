"""Measures the interpreter beside a Jupyter kernel and dspy's LocalInterpreter, which has no sandbox, in one run.

    .holdfast/dev-*/bin/python benchmarks/interpreter.py [--quick] [--only ROW] [--json | --markdown]

Ours is used as a script does it: `Interpreter` with the server of a home, which runs in a process of its own, real
local boxes, its thread on disk. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
import uvloop
from kernels import PIECE, Ipykernel, Local, forget_peak, printing, resident
from measuring import Samples, add_folder, add_rounds, chosen, folder_of_boxes, in_rounds, options, print_results
from report import Goal, Result, Row, percentile

from holdfast.api.model.models import Api
from holdfast.client import Client
from holdfast.interpreter.bridge.budget import Limits
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.interpreter import Interpreter
from holdfast.testing.model import ScriptedModel
from holdfast.testing.model.steps import Step
from holdfast.testing.server import ServerProcess

_FILL_SECONDS: Final = 60.0
_MODEL_SECONDS: Final = 0.1
_BRANCHES: Final = 8
ROWS: Final = (
    Row(
        "execute",
        "execute 1+1 in a warm context, median: ipykernel, ours",
        "ms",
        Goal("at most", 0.2, "at most 0.2 times"),
    ),
    Row(
        "execute-local",
        "execute 1+1 in a warm context, median: LocalInterpreter, ours",
        "ms",
        Goal("at most", 4.0, "at most 4 times"),
    ),
    Row(
        "start-cold",
        "start → first result, with a new box: ipykernel, ours",
        "ms",
        Goal("at most", 0.25, "at most 0.25 times"),
    ),
    Row(
        "start-pooled",
        "start → first result, a box out of the pool: LocalInterpreter, ours",
        "ms",
        Goal("at most", 1.0, "at most the same"),
    ),
    Row(
        "callback",
        "a call to the host and back, median: LocalInterpreter, ours",
        "ms",
        Goal("under", 1.5, "under 1.5 ms"),
    ),
    Row("batched", "llm_query_batched of 64 at 100 ms each: ideal, ours", "s", Goal("under", 1.0, "under 1 s")),
    Row(
        "output",
        "100 MB of standard output: ipykernel, ours",
        "s",
        Goal("under", 1.0, "under 1 s, that is over 100 MB/s"),
    ),
    Row("output-memory", "growth of the host's memory meanwhile", "MB", Goal("under", 16.0, "flat: under 16 MB")),
    Row(
        "fork", "live fork of a 1 GB context, 8 ways, until each has answered", "ms", Goal("under", 100, "under 100 ms")
    ),
    Row("fork-memory", "memory of all eight beyond the context", "MB", Goal("under", 50.0, "under 50 MB")),
    Row("restore", "execute 1+1: without, with a restore point", "ms", Goal("under", 5.0, "under 5 ms")),
    Row("variables", "100 MB of text in: files.write, a variable", "s", Goal("at most", 2.0, "at most twice")),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    rounds: int
    executions: int
    starts: int
    callbacks: int
    prompts: int
    megabytes: int
    loaded: int
    """Megabytes in memory when it is forked."""


FULL: Final = Size(rounds=5, executions=300, starts=10, callbacks=500, prompts=64, megabytes=100, loaded=1024)
QUICK: Final = Size(rounds=1, executions=30, starts=2, callbacks=30, prompts=16, megabytes=10, loaded=64)

_CALLBACKS: Final = """\
import time
took = []
for number in range({count}):
    began = time.perf_counter()
    echo(number)
    took.append((time.perf_counter() - began) * 1000)
took
"""
_SHARED: Final = """\
import os
total = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        for line in open("/proc/%s/smaps_rollup" % pid):
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    except OSError:
        pass
print(total / 1024)
"""


def echo(number: int) -> int:
    return number


class Bench:
    """A server without a pool, one with a pool, and the other sides, which are started where they are needed."""

    def __init__(self, cold: ServerProcess, pooled: ServerProcess, model: ScriptedModel, size: Size) -> None:
        self._cold = cold
        self._pooled = pooled
        self._model = model
        self._size = size

    # --- executions ---

    async def execute(self, samples: Samples) -> None:
        """A tenth of each side at a time."""
        took: dict[str, list[float]] = {"ipykernel": [], "local": [], "ours": []}
        async with AsyncExitStack() as stack:
            jupyter, local = stack.enter_context(Ipykernel()), stack.enter_context(Local())
            jupyter.start()
            local.start()
            py = await stack.enter_async_context(self._interpreter(self._cold))
            for _ in range(10):
                for _ in range(max(1, self._size.executions // 10)):
                    took["ipykernel"].append(jupyter.execute("1+1"))
                for _ in range(max(1, self._size.executions // 10)):
                    took["local"].append(local.execute("1+1"))
                for _ in range(max(1, self._size.executions // 10)):
                    took["ours"].append(await _timed(py, "1+1"))
        for row, reference in (("execute", "ipykernel"), ("execute-local", "local")):
            samples.add_median(row, "reference", took[reference])
            samples.add_median(row, "holdfast", took["ours"])

    async def restore(self, samples: Samples) -> None:
        """A live fork before each execution: what it costs."""
        plain, kept = [], []
        async with self._interpreter(self._cold) as py, self._interpreter(self._cold, restore="fork") as forking:
            for _ in range(self._size.executions):
                plain.append(await _timed(py, "1+1"))
                kept.append(await _timed(forking, "1+1"))
        samples.add_median("restore", "reference", plain)
        samples.add_median("restore", "holdfast", kept)

    async def variables(self, samples: Samples) -> None:
        text = "0123456789" * (self._size.megabytes * 100_000)
        async with self._interpreter(self._cold) as py:
            await py.execute("1")
            began = time.perf_counter()
            await py.box.files.write("/tmp/text", text.encode())
            written = time.perf_counter()
            done = await py.execute("len(text)", {"text": text})
            sent = time.perf_counter()
        assert done.value == len(text), done.text
        samples.add_median("variables", "reference", [written - began])
        samples.add_median("variables", "holdfast", [sent - written])

    # --- starts ---

    async def start_cold(self, samples: Samples) -> None:
        theirs, ours = [], []
        for _ in range(self._size.starts):
            with Ipykernel() as jupyter:
                theirs.append(jupyter.start())
            ours.append(await self._start(self._cold))
        samples.add_median("start-cold", "reference", theirs)
        samples.add_median("start-cold", "holdfast", ours)

    async def start_pooled(self, samples: Samples) -> None:
        for _ in range(3):  # so that there is a demand
            await self._start(self._pooled)
        theirs, ours = [], []
        misses = await self._pool('takes_total{outcome="miss"}')
        for _ in range(self._size.starts):
            await self._filled()
            with Local() as local:
                theirs.append(local.start())
            ours.append(await self._start(self._pooled))
        misses = await self._pool('takes_total{outcome="miss"}') - misses
        samples.add_median("start-pooled", "reference", theirs)
        samples.add("start-pooled", "holdfast", statistics.median(ours), p99=percentile(ours, 0.99), misses=misses)

    async def _start(self, server: ServerProcess) -> float:
        """With the connection to the server, as a script has to make it."""
        began = time.perf_counter()
        async with self._interpreter(server) as py:
            await py.start()
            await _timed(py, "1+1")
            return (time.perf_counter() - began) * 1000

    async def _filled(self) -> None:
        deadline = time.monotonic() + _FILL_SECONDS
        while await self._pool("boxes") < max(1, await self._pool("wanted")) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)  # and at rest

    async def _pool(self, name: str) -> float:
        async with httpx.AsyncClient() as client:
            headers = {"authorization": f"Bearer {self._pooled.api_key}"}
            told = (await client.get(f"{self._pooled.url}/metrics", headers=headers)).text
        [line] = [each for each in told.splitlines() if each.startswith(f"holdfast_pool_{name} ")]
        return float(line.split()[-1])

    # --- callbacks ---

    async def callback(self, samples: Samples) -> None:
        code = _CALLBACKS.format(count=self._size.callbacks)
        with Local() as local:
            local.interpreter.tools["echo"] = echo
            theirs = local.interpreter.execute(code)
        async with self._interpreter(self._cold, tools=[echo]) as py:
            done = await py.execute(code)
        assert done.ok, done.text
        samples.add_median("callback", "reference", theirs)
        samples.add_median("callback", "holdfast", done.value)

    async def batched(self, samples: Samples) -> None:
        """By the gateway of the server, to a model that takes its time."""
        self._model.answer_sides(Step(text="Yes.", delay=_MODEL_SECONDS))  # who offers no tools is no agent
        limits = Limits(calls=None)
        async with self._interpreter(self._cold, model="scripted", limits=limits) as py:
            done = await py.execute(
                "import time\nbegan = time.perf_counter()\n"
                f"said = llm_query_batched(['Is it {{}}?'.format(n) for n in range({self._size.prompts})])\n"
                "said, time.perf_counter() - began"
            )
        assert done.ok, done.text
        said, took = done.value
        assert said == ["Yes."] * self._size.prompts
        samples.add("batched", "reference", self._size.prompts / 8 * _MODEL_SECONDS)
        samples.add("batched", "holdfast", took)

    # --- much ---

    async def output(self, samples: Samples) -> None:
        code = printing(self._size.megabytes)
        share = 100 / self._size.megabytes
        with Ipykernel() as jupyter:
            jupyter.start()
            theirs = jupyter.execute(code) / 1000
        async with self._interpreter(self._cold) as py:
            await py.execute(printing(1))
            got = 0

            def count(stream: str, data: bytes) -> None:
                nonlocal got
                got += len(data)

            forget_peak()
            before, began = resident(), time.perf_counter()
            done = await py.execute(code, on_output=count)
            took, peak = time.perf_counter() - began, resident(name="VmHWM")
        assert done.ok, done.text
        assert got == self._size.megabytes * PIECE, got
        samples.add("output", "reference", theirs * share)
        samples.add("output", "holdfast", took * share)
        samples.add("output-memory", "holdfast", max(0.0, peak - before))

    async def fork(self, samples: Samples) -> None:
        async with self._interpreter(self._cold) as py:
            loaded = await py.execute(
                f"import os\ndata = [os.urandom(1 << 20) for _ in range({self._size.loaded})]\nlen(data)"
            )
            assert loaded.value == self._size.loaded, loaded.text
            before = await self._shared(py)
            began = time.perf_counter()
            branches = await py.fork(_BRANCHES)
            connected = (time.perf_counter() - began) * 1000
            answers = await asyncio.gather(*(each.execute("len(data)") for each in branches))
            took = (time.perf_counter() - began) * 1000
            assert [each.value for each in answers] == [self._size.loaded] * _BRANCHES
            extra = await self._shared(py) - before
            for each in branches:
                await each.shutdown()
        samples.add("fork", "holdfast", took, connected=connected)
        samples.add("fork-memory", "holdfast", extra)

    @staticmethod
    async def _shared(py: Interpreter) -> float:
        """Megabytes that all processes of the box have together, what is shared counted once."""
        done = await py.box.exec(["python3", "-c", _SHARED])
        return float(done.stdout)

    def _interpreter(self, server: ServerProcess, **options: Any) -> _Opened:
        return _Opened(server.home, options)


class _Opened:
    """An interpreter with a host of its own."""

    def __init__(self, home: Path, options: dict[str, Any]) -> None:
        self._home = home
        self._options = options

    async def __aenter__(self) -> Interpreter:
        self._host = await ClientHost.of_home(self._home)
        self._interpreter = Interpreter(host=self._host, **self._options)
        return await self._interpreter.start()

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._interpreter.shutdown()
        finally:
            await self._host.close()


async def _timed(py: Interpreter, code: str) -> float:
    began = time.perf_counter()
    done = await py.execute(code)
    took = (time.perf_counter() - began) * 1000
    assert done.value_text is not None, done.text
    return took


async def measure(size: Size, only: Sequence[str], folder: Path) -> list[Result]:
    samples = Samples()
    with ScriptedModel(key="sk-of-the-model") as model:
        async with (
            ServerProcess(folder / "cold", log_level="warning", pool=0) as cold,
            ServerProcess(folder / "pooled", log_level="warning", pool=8) as pooled,
        ):
            async with Client(cold.url, api_key=cold.api_key) as client:
                await client.models.add(
                    "scripted",
                    apis=[Api.OPENAI_CHAT],
                    base_url=model.openai_url,
                    key="sk-of-the-model",
                    model="scripted",
                )
            bench = Bench(cold, pooled, model, size)
            work = {
                "execute": bench.execute, "start-cold": bench.start_cold, "start-pooled": bench.start_pooled,
                "callback": bench.callback, "batched": bench.batched, "output": bench.output, "fork": bench.fork,
                "restore": bench.restore, "variables": bench.variables,
            }  # fmt: skip
            also = {"execute-local": "execute", "output-memory": "output", "fork-memory": "fork"}
            for name in in_rounds(chosen(only, list(work), also), size.rounds):
                await work[name](samples)
    return samples.results(ROWS)


def main() -> None:
    parser = options(__doc__, ROWS)
    add_rounds(parser)
    add_folder(parser)
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    with folder_of_boxes(given.dir) as folder:
        results = uvloop.run(measure(replace(size, rounds=given.rounds or size.rounds), given.only, folder))
    print_results(given, results, "the other")


if __name__ == "__main__":
    main()
