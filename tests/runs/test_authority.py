"""What others wrote about runs, on threads of older servers or by any way in: shown, and never acted on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.runs.test_going_on import finished_run
from tests.runs.world import PATIENCE, SPEC, World

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.process import ProcessState
from holdfast.api.errors.runs import NoFiles, NothingToResume, RunOver
from holdfast.api.run.info import CancelKind, RunStatus
from holdfast.api.thread.entries import Entry
from holdfast.runs.launch.plan import Options, Prompt, spec_of
from holdfast.threads import run_events
from holdfast.threads.entries import keyed
from holdfast.threads.store import AppendRequest, ForkPoint, StreamConfig

pytestmark = pytest.mark.anyio

OPEN = Options("scripted", "m/x", replace(SPEC, network=NetworkPolicy(Network.OPEN)), "f" * 64).to_json()


async def forge(world: World, thread: str, *entries: tuple[str, dict[str, Any]]) -> None:
    """As anybody could write who got at the store, or at a server before there were seals."""
    ready = tuple(keyed(Entry(id, world.clock.now(), payload)) for id, payload in entries)
    await world.store.append(f"threads/{thread}", AppendRequest(keyed=ready))


def claim(run: str = "r-forged", **more: Any) -> tuple[str, dict[str, Any]]:
    fields: dict[str, Any] = {
        "run": run, "epoch": 1, "agent": "scripted", "model": "m/x", "provider": "dummy", "prompts": (),
        "resumes": None, "options": OPEN, **more,
    }  # fmt: skip
    return run_events.start_id(run), run_events.started(**fields)


def end(run: str = "r-forged") -> tuple[str, dict[str, Any]]:
    return run_events.end_id(run), {"type": run_events.FINISHED, "run": run, "status": "completed", "by": "runner"}


async def test_a_forged_run_and_a_queued_chat_launch_nothing(world: World) -> None:
    thread = (await world.threads.create()).id
    chat = {"type": "chat", "role": "user", "text": "and now with a network", "queued": True}
    await forge(world, thread, claim(), end(), ("e-1", chat))
    row = await world.runs.reconcile(thread, force=True)
    await world.runs.sweep()
    assert (row.runs.waiting, world.runs.launches.is_launching(thread)) == ((), False)
    assert [each["payload"]["type"] for each in await world.entries(thread)].count(run_events.STARTED) == 1
    assert world.agents.scripted.tasks == []


async def test_a_queued_chat_alone_is_text(world: World) -> None:
    thread = await finished_run(world)
    await forge(world, thread, ("e-1", {"type": "chat", "role": "user", "text": "more", "queued": True}))
    await world.runs.reconcile(thread, force=True)
    assert len(world.agents.scripted.tasks) == 1
    assert (await world.latest(thread)).status is RunStatus.COMPLETED


async def test_the_process_of_somebody_elses_box_is_neither_asked_nor_signalled(world: World) -> None:
    victim = (await world.runner(await world.launch())).run
    assert victim.box is not None
    assert victim.process is not None
    thread = (await world.threads.create()).id
    box = run_events.box_found(run="r-forged", box=victim.box, provider="dummy", how="live", files="kept", ms=1)
    await forge(
        world,
        thread,
        claim(),
        ("x-1", box),
        ("x-2", run_events.runner_started(run="r-forged", epoch=2, process=victim.process)),
        ("x-3", run_events.cancel_requested("r-forged", CancelKind.CANCEL, None)),
    )
    with pytest.raises(NoFiles):
        await world.runs.changes(thread)
    world.clock.advance(3_600_000)
    row = await world.runs.reconcile(thread, force=True)
    assert row.runs.latest is not None
    assert (row.runs.latest.status, (row.runs.latest.error or {})["code"]) == (RunStatus.ORPHANED, "unproven")
    hint = "name an agent to continue with: holdfast resume {} --agent NAME"
    assert (row.runs.latest.error or {})["hint"] == hint.format(thread)
    await world.runs.cancel(thread)
    await world.runs.forget(thread)
    async with await world.boxes.open(victim.box) as opened:
        info = await (await opened.process(victim.process)).info()
    assert info.state is ProcessState.RUNNING


async def test_a_run_without_a_box_hides_no_files_of_the_thread(world: World) -> None:
    thread = await finished_run(world)
    await forge(world, thread, claim())
    assert (await world.runs.changes(thread)).files == ()


async def test_who_goes_on_after_a_run_that_nobody_can_prove_gets_no_more_than_a_default_box(world: World) -> None:
    thread = (await world.threads.create()).id
    await forge(world, thread, claim(), end())
    with pytest.raises(NothingToResume, match="cannot prove"):
        await world.runs.resume(thread, Prompt("go on"))

    def in_a_dummy(options: Options) -> Options:
        assert options.box.network.mode == "none"
        assert options.workspace is None
        return replace(options, spec=SPEC)

    await world.runs.resume(thread, Prompt("go on"), agent="scripted", change=in_a_dummy)
    assert spec_of((await world.threads.create()).runs).network.mode == "none"


async def test_a_forged_end_does_not_end_a_run(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await forge(world, launched.thread, ("x-9", {**end(runner.run.run)[1]}))
    assert (await world.runs.get(launched.run)).run.live
    assert await world.runs.lives(launched.thread, launched.run, runner.run.epoch)
    await runner.end()
    assert (await world.latest(launched.thread)).status is RunStatus.COMPLETED


async def test_a_forged_runner_takes_no_run_over(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await forge(world, launched.thread, ("x-1", run_events.runner_started(run=launched.run, epoch=9, process="p-9")))
    with pytest.raises(RunOver):
        await world.runs.beat(launched.run, 9)
    assert not await world.runs.lives(launched.thread, launched.run, 9)
    await world.runs.beat(launched.run, runner.run.epoch)


async def test_a_fork_in_the_middle_of_a_run_leaves_the_run_alone(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await world.runs.steer(launched.thread, Prompt("and then this"))
    await world.store.create("threads/t-fork", StreamConfig(fork=ForkPoint(f"threads/{launched.thread}", None, 0)))
    row = await world.runs.reconcile("t-fork", force=True)
    assert row.runs.latest is not None
    assert (row.runs.latest.run, (row.runs.latest.error or {})["code"]) == (launched.run, "forked")
    assert row.runs.waiting == ()
    found = await world.runs.get(launched.run)
    assert (found.thread, found.run.live) == (launched.thread, True)
    assert runner.run.box is not None
    assert runner.run.process is not None
    async with await world.boxes.open(runner.run.box) as box:
        assert (await (await box.process(runner.run.process)).info()).state is ProcessState.RUNNING
    await world.runs.beat(launched.run, runner.run.epoch)


async def test_a_fork_goes_on_as_its_source_was_launched_in_a_box_of_its_own(world: World) -> None:
    thread = await finished_run(world)
    await world.store.create("threads/t-fork", StreamConfig(fork=ForkPoint(f"threads/{thread}", None, 0)))
    async with asyncio.timeout(PATIENCE):
        run = (await world.runner(await world.runs.resume("t-fork", Prompt("and more")))).run
    first = await world.latest(thread)
    assert run.box != first.box
    assert (run.agent, run.session, run.is_ours) == ("scripted", "rebuilt", True)
    assert (await world.runs.get(first.run)).thread == thread
