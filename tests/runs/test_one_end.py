"""A run ends exactly once, whoever ends it and however they interleave: on the real store, with two servers at once."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runs.world import SPEC

from holdfast.api.errors import Conflict
from holdfast.api.errors.runs import RunOver, ThreadBusy
from holdfast.api.errors.threads import StaleEpoch
from holdfast.api.ids import now_ms
from holdfast.api.run.info import CancelKind, RunStatus
from holdfast.api.thread.entries import Entry
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.launch.launch import Launch
from holdfast.runs.launch.plan import LaunchPlanner, Options, Prompt
from holdfast.runs.launch.steps import Launcher
from holdfast.runs.reconcile.rules import End
from holdfast.runs.run_log import RunLog
from holdfast.runs.service import Runs
from holdfast.runs.workspace.store import Workspaces
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.run_events import PRODUCER, ThreadRuns, runner_started
from holdfast.threads.service import Threads
from holdfast.threads.store import Producer


class NoBox:
    """A launcher that needs no box: it takes the epoch of the runner, and that is all."""

    def __init__(self, log: RunLog) -> None:
        self._log = log

    async def carry_out(self, launch: Launch, plan: object) -> int:
        def claimed(epoch: int, runs: ThreadRuns) -> list[Entry]:
            if runs.live is None or runs.live.run != launch.run:
                raise RunOver("it was ended meanwhile")
            return [self._log.entry(runner_started(run=launch.run, epoch=epoch, process="p"))]

        return await self._log.claim(launch.thread, claimed)


class NoBoxes:
    node = "here"


class NoPlans:
    def plan(self, options: Options) -> None:
        return None


class Server:
    def __init__(self, store: SqliteStreams, threads: Threads, projection: Projection, folder: Path) -> None:
        self.log = RunLog(store, threads, SEALS, now_ms)
        self.runs = Runs(
            store,
            threads,
            projection,
            cast(Boxes, NoBoxes()),
            cast(LaunchPlanner, NoPlans()),
            cast(Launcher, NoBox(self.log)),
            self.log,
            Workspaces(folder),
            ticks=now_ms,
            sweep_seconds=3600,
        )


Act = tuple[str, int, list[int]]
"""Who does what, on which server, and after how many turns of the loop each step."""

SEALS = Seals(b"of these tests")

_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["launch", "runner", "orphan", "fail", "cancel", "steer", "interrupt"]),
        st.integers(0, 1),
        st.lists(st.integers(0, 6), min_size=3, max_size=3),
    ),
    min_size=2,
    max_size=9,
)


async def play(folder: Path, acts: list[Act]) -> list[dict[str, Any]]:
    store = await SqliteStreams.open(folder / "holdfast.db")
    projection = Projection(store, SqliteThreadRows(store), SEALS)
    threads = Threads(store, projection)
    servers = [Server(store, threads, projection, folder) for _ in range(2)]
    thread = (await threads.create()).id

    async def launch(server: Server) -> None:
        with suppress(ThreadBusy):
            await server.runs.launches.claim(thread, Prompt("go"), Options("pi", "m/x", SPEC))

    async def current(server: Server) -> tuple[str, int] | None:
        live = (await server.log.runs(thread)).live
        return None if live is None else (live.run, live.epoch)

    async def runner(server: Server, pauses: list[int]) -> None:
        """Two events and the end, in the epoch that is current when it begins; it stops where it is refused."""
        found = await current(server)
        if found is None:
            return
        run, epoch = found
        end: dict[str, Any] = {
            "type": "signal.run.finished",
            "run": run,
            "status": "completed",
            "by": "runner",
            "ms": 1,
        }
        told: list[tuple[str, dict[str, Any]]] = [
            (f"{run}-{epoch}-1", {"type": "pi.delta", "message": "m", "text": "a"}),
            (f"{run}-{epoch}-2", {"type": "pi.call", "call": "c", "name": "bash", "arguments": {}}),
            (f"end-{run}", end),
        ]
        for seq, (id, payload) in enumerate(told, start=1):
            await turns(pauses[seq - 1])
            try:
                await server.log.append(
                    thread, server.log.entry(payload, id=id), producer=Producer(PRODUCER, epoch, seq)
                )
            except (StaleEpoch, Conflict):
                return

    async def finish(server: Server, status: RunStatus) -> None:
        found = await current(server)
        if found is not None:
            await server.runs.ends.post(thread, found[0], End(status, "x", "why"), by="reconciler")

    async def steer(server: Server, interrupt: bool) -> None:
        chat = {"type": "chat", "role": "user", "text": "and this", "queued": True}
        await server.log.append(thread, server.log.entry(chat))
        found = (await server.log.runs(thread)).live
        if found is not None and interrupt:
            await server.runs.cancellation.request(thread, found, CancelKind.INTERRUPT, None)

    async def cancel(server: Server) -> None:
        found = (await server.log.runs(thread)).live
        if found is not None:
            await server.runs.cancellation.request(thread, found, CancelKind.CANCEL, None)

    def work(name: str, server: Server, pauses: list[int]) -> Awaitable[None]:
        doing: dict[str, Callable[[], Awaitable[None]]] = {
            "launch": lambda: launch(server),
            "runner": lambda: runner(server, pauses),
            "orphan": lambda: finish(server, RunStatus.ORPHANED),
            "fail": lambda: finish(server, RunStatus.FAILED),
            "cancel": lambda: cancel(server),
            "steer": lambda: steer(server, False),
            "interrupt": lambda: steer(server, True),
        }
        return doing[name]()

    async def act(name: str, server: Server, pauses: list[int]) -> None:
        await turns(sum(pauses))
        await work(name, server, pauses)

    try:
        await launch(servers[0])
        await asyncio.gather(*(act(name, servers[which], pauses) for name, which, pauses in acts))
        for server in servers:
            await server.runs.launches.wait(thread)
        # Whatever is left is ended by two at once, as often as something is left.
        for _ in range(20):
            if await current(servers[0]) is None:
                break
            await asyncio.gather(*(finish(server, RunStatus.ORPHANED) for server in servers))
        assert await current(servers[1]) is None
        return [entry async for entry in servers[0].log.entries(thread)]
    finally:
        for server in servers:
            await server.runs.close()
        await projection.close()
        await store.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def check(entries: list[dict[str, Any]]) -> None:
    ids = [each["id"] for each in entries]
    assert len(ids) == len(set(ids))
    live: str | None = None
    begun: list[str] = []
    ended: list[str] = []
    taken: list[str] = []
    for each in entries:
        payload = each["payload"]
        kind, run = payload["type"], payload.get("run")
        if kind == "signal.run.started":
            assert live is None, "two runs at once"
            live = run
            begun.append(run)
            taken += payload["prompts"]
        elif kind == "signal.run.finished":
            assert live == run, "the end of a run that is not the thread's"
            live = None
            ended.append(run)
        elif kind.startswith("pi."):
            assert live is not None, "somebody wrote after the end"
            assert each["id"].startswith(live)
    assert live is None
    assert begun == ended
    assert len(taken) == len(set(taken)), "a prompt was launched twice"


@given(_ACTS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_run_ends_exactly_once(acts: list[Act]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(asyncio.run(play(Path(folder), acts)))
