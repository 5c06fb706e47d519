"""Measures runs on a whole server: how soon one is launched, how soon its agent is at work, and how soon it is heard.

    .holdfast/dev-*/bin/python benchmarks/runs.py [--quick] [--only ROW] [--json | --markdown]

A real server in a process of its own, real boxes, the real runner. The agent is pi where its own start is measured, and
a trivial one where ours is. docs/benchmarks.md says what each row is; the runner alone is measured by runner.py.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import checkout  # noqa: F401 - for what is imported from tests
import uvloop
from measuring import Samples, add_folder, add_rounds, chosen, folder_of_boxes, in_rounds, options, print_results
from report import Goal, Result, Row, percentile
from tests.harnesses import scripted_agent

from holdfast.api.model.models import Api
from holdfast.client import Client
from holdfast.harnesses.harness import ModelAccess, Place, Task
from holdfast.harnesses.installation import Installed, Tools
from holdfast.harnesses.registry import find
from holdfast.testing.model import ScriptedModel
from holdfast.testing.model.requests import Request
from holdfast.testing.model.steps import Step
from holdfast.testing.server import ServerProcess

_WAIT: Final = 120.0
_KEEP: Final = Path(__file__).parents[1] / ".holdfast"
ROWS: Final = (
    Row("launch", "launch call → thread id returned, median", "ms", Goal("under", 20, "under 20 ms")),
    Row("first-request", "agent's start to its first model request: bare, and by launch in a live box", "ms", None),
    Row("beyond", "what a launch adds to the agent's own start", "ms", Goal("under", 80, "under 80 ms")),
    Row("heard", "an event of the agent → at an SSE reader, median", "ms", Goal("under", 10, "under 10 ms")),
    Row("heard-late", "an event of the agent → at an SSE reader, p99", "ms", Goal("under", 50, "under 50 ms")),
    Row("crowd", "50 runs at once: the ideal, and the last to end", "s", Goal("at most", 2, "at most 2 times")),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    rounds: int
    launches: int
    starts: int
    words: int
    crowd: int
    crowd_seconds: float


FULL: Final = Size(rounds=3, launches=20, starts=7, words=300, crowd=50, crowd_seconds=20.0)
QUICK: Final = Size(rounds=1, launches=3, starts=1, words=30, crowd=4, crowd_seconds=2.0)


class Bench:
    """One server with the agents installed, a scripted model, and somebody who asks it for runs."""

    def __init__(self, client: Client, model: ScriptedModel, pi: Installed, folder: Path, size: Size) -> None:
        self._client = client
        self._model = model
        self._pi = pi
        self._folder = folder
        self._size = size

    async def launch(self, samples: Samples) -> None:
        took = []
        for _ in range(self._size.launches):
            began = time.perf_counter()
            launched = await self._client.runs.launch('{"words": 1}', agent="scripted", model="scripted")
            took.append((time.perf_counter() - began) * 1000)
            await self._end(launched.thread, launched.run)
        samples.add_median("launch", "holdfast", took)

    async def first_request(self, samples: Samples) -> None:
        """Alternately bare, as a process of this machine, and by a run on a thread whose box is there."""
        self._model.script([Step(text="Done.")])
        first = await self._client.runs.launch("Say that you are done.", agent="pi", model="scripted")
        await self._client.runs.wait(first.run)
        bare, ours = [], []
        for _ in range(self._size.starts):
            bare.append(await self._bare())
            ours.append(await self._asked_after(self._client.runs.resume(first.thread, "Say it again.")))
            await self._client.runs.wait(first.thread)
        await self._forget(first.thread)
        samples.add_median("first-request", "reference", bare)
        samples.add_median("first-request", "holdfast", ours)
        samples.add("beyond", "holdfast", statistics.median(ours) - statistics.median(bare))

    async def _bare(self) -> float:
        """The same program, with the same files, on this machine."""
        state = self._folder / f"bare-{time.monotonic_ns()}"
        workspace = state / "workspace"
        workspace.mkdir(parents=True)
        harness = find("pi")
        access = ModelAccess(Api.OPENAI_CHAT, self._model.url, "sk-of-the-model", "scripted")
        place = Place(str(workspace), str(state), str(self._pi.folder), str(self._pi.node), (sys.executable,))
        task = Task("Say that you are done.", place, access)
        for path, data in harness.files(task).items():
            await asyncio.to_thread(_write, Path(path), data)
        command = harness.command(task)
        started: list[Process] = []

        async def start() -> None:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                env={**os.environ, **command.env},
                cwd=workspace,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            assert process.stdin is not None
            process.stdin.write((command.stdin or "").encode())
            started.append(process)

        try:
            return await self._asked_after(start())
        finally:
            for process in started:
                process.kill()
                await process.wait()

    async def _asked_after(self, begin: Coroutine[Any, Any, object]) -> float:
        """Milliseconds from here to the question that the model is asked."""
        asked: Future[float] = Future()

        def answer(request: Request) -> Step:
            if not asked.done():
                asked.set_result(time.perf_counter())
            return Step(text="Done.")

        self._model.script([answer])
        began = time.perf_counter()
        await begin
        return (await asyncio.wait_for(asyncio.wrap_future(asked), _WAIT) - began) * 1000

    async def heard(self, samples: Samples) -> None:
        """Words that say when they were said, ten in a second."""
        prompt = f'{{"words": {self._size.words}, "pace": 0.1}}'
        launched = await self._client.runs.launch(prompt, agent="scripted", model="scripted")
        late: list[float] = []
        async with self._client.thread(launched.thread).tail() as tail:
            async for entry in tail:
                now = time.time()
                if entry.type == "scripted.delta":
                    late += [(now - float(said)) * 1000 for said in entry.payload["text"].split()]
                elif entry.type == "signal.run.finished":
                    break
        await self._forget(launched.thread)
        assert len(late) == self._size.words
        samples.add_median("heard", "holdfast", late)
        samples.add("heard-late", "holdfast", percentile(late, 0.99))

    async def crowd(self, samples: Samples) -> None:
        """Each says a word ten times a second. The ideal is that of an agent which has the machine to itself."""
        words = int(self._size.crowd_seconds * 10)
        prompt = f'{{"words": {words}, "pace": 0.1}}'
        began = time.perf_counter()

        async def one() -> tuple[str, float]:
            launched = await self._client.runs.launch(prompt, agent="scripted", model="scripted")
            async with self._client.thread(launched.thread).tail() as tail:
                async for entry in tail:
                    if entry.type == "signal.run.finished":
                        assert entry.payload["status"] == "completed", entry.payload
                        break
            return launched.thread, time.perf_counter() - began

        ended = await asyncio.gather(*(one() for _ in range(self._size.crowd)))
        samples.add("crowd", "reference", self._size.crowd_seconds)
        samples.add("crowd", "holdfast", max(took for _, took in ended))
        for thread, _ in ended:
            await self._forget(thread)

    async def _end(self, thread: str, run: str) -> None:
        await self._client.runs.wait(run)
        await self._forget(thread)

    async def _forget(self, thread: str) -> None:
        box = (await self._client.runs.get(thread)).box
        if box is not None:
            await self._client.boxes.delete(box)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


async def measure(size: Size, only: Sequence[str], folder: Path) -> list[Result]:
    samples = Samples()
    home = folder / "home"
    home.mkdir()
    tools = Tools(_KEEP)
    pi = await tools.install(find("pi"))
    (home / "tools").symlink_to(tools.folder.resolve())
    with ScriptedModel(key="sk-of-the-model") as model:
        async with (
            ServerProcess(home, agents=scripted_agent.find, log_level="warning") as server,
            Client(server.url, api_key=server.api_key) as client,
        ):
            await client.models.add(
                "scripted",
                apis=[Api.OPENAI_CHAT],
                base_url=model.openai_url,
                key="sk-of-the-model",
                model="scripted",
            )
            bench = Bench(client, model, pi, folder, size)
            work = {
                "launch": bench.launch, "first-request": bench.first_request, "heard": bench.heard,
                "crowd": bench.crowd,
            }  # fmt: skip
            names = chosen(only, list(work), {"beyond": "first-request", "heard-late": "heard"})
            for name in in_rounds(names, size.rounds):
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
    print_results(given, results, "bare")


if __name__ == "__main__":
    main()
