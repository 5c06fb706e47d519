"""A launch, step by step, and what becomes of it when it dies at any of them."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator

import pytest
from tests.runs.world import PATIENCE, SPEC, World, config_of

from holdfast.api.box.box import Liveness
from holdfast.api.errors.agents import CannotInstall, UnknownAgent
from holdfast.api.errors.boxes import BoxStopped, BoxUnreachable, CreateFailed
from holdfast.api.errors.runs import InvalidRun, ThreadBusy, WorkspaceNotFound
from holdfast.api.errors.threads import StaleEpoch
from holdfast.api.run.info import RunStatus, Stage
from holdfast.runs.launch.plan import Options, Prompt
from holdfast.runs.reconcile.rules import Thresholds
from holdfast.threads.access.credentials import RunScope
from holdfast.threads.rows import ThreadRow

pytestmark = pytest.mark.anyio
LIMITS = Thresholds()


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


def tar(**files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


async def test_the_thread_tells_every_step_and_the_runner_gets_what_it_needs(world: World) -> None:
    digest = await world.runs.workspaces.keep(pieces(tar(a="one\n")))
    launched = await world.launch("fix it", workspace=digest)
    run = await world.settled(launched)
    assert (run.status, run.stage, run.files, run.session) == (RunStatus.RUNNING, Stage.RUNNER, "workspace", "new")
    types = [each["payload"]["type"] for each in await world.entries(launched.thread)]
    assert types == [
        "signal.thread.created",
        "chat",
        "signal.run.started",
        "signal.run.box",
        "signal.run.provisioned",
        "signal.run.runner",
    ]
    config = await config_of(world, run)
    assert (config["run"], config["epoch"]) == (run.run, run.epoch)
    assert run.box is not None
    grant = world.access.grant_run(config["token"], run.box)
    assert (grant.thread, grant.run, grant.epoch) == (launched.thread, run.run, run.epoch)
    assert (grant.scope, grant.agent) == (RunScope.RUNNER, "scripted")
    assert config["argv"] == ["agent", "fix it"]
    [task] = world.agents.scripted.tasks
    grant = world.access.grant_run(task.model.token, run.box)
    assert (grant.run, grant.epoch, grant.scope, grant.model) == (run.run, run.epoch, RunScope.MODEL, "m/x")
    assert run.box is not None
    async with await world.boxes.open(run.box) as box:
        assert await box.files.read("a") == b"one\n"


async def test_what_has_to_be_installed_first_is_told_before_it_is_there(world: World) -> None:
    world.agents.installs = True
    launched = await world.launch()
    run = await world.settled(launched)
    told = [each["payload"] for each in await world.entries(launched.thread)]
    kinds = [each["type"] for each in told]
    at = kinds.index("signal.run.installing")
    assert kinds[at - 1 : at + 3] == [
        "signal.run.box", "signal.run.installing", "signal.run.installing", "signal.run.provisioned"
    ]  # fmt: skip
    began, done = ({name: value for name, value in each.items() if name != "seal"} for each in told[at : at + 2])
    assert began == {"type": "signal.run.installing", "run": run.run, "what": "agent 1.0"}
    assert done == {**began, "ms": 1500}


async def test_a_thread_has_one_run_at_a_time(world: World) -> None:
    launched = await world.launch()
    with pytest.raises(ThreadBusy) as busy:
        await world.launch("and this", thread=launched.thread)
    assert "steer" in (busy.value.hint or "")
    await world.settled(launched)
    with pytest.raises(ThreadBusy):
        await world.launch("and this", thread=launched.thread)


async def test_of_many_that_launch_at_once_one_does(world: World) -> None:
    thread = (await world.threads.create()).id
    results = await asyncio.gather(
        *(world.launch(f"{number}", thread=thread) for number in range(8)), return_exceptions=True
    )
    assert sum(not isinstance(each, BaseException) for each in results) == 1
    assert sum(isinstance(each, ThreadBusy) for each in results) == 7
    entries = await world.entries(thread)
    assert sum(each["payload"]["type"] == "chat" for each in entries) == 1  # nobody else's prompt is left lying about
    await world.settled(next(each for each in results if not isinstance(each, BaseException)))


async def test_to_launch_again_with_the_same_prompt_is_to_launch_once(world: World) -> None:
    prompt = Prompt("do it", id="e-mine")
    options = Options("scripted", None, SPEC)
    first = await world.runs.launch(prompt, options, new_thread="t-mine")
    again = await world.runs.launch(prompt, options, new_thread="t-mine")
    assert again == first
    await world.settled(first)


async def test_what_cannot_be_is_refused_before_anything_is_made(world: World) -> None:
    with pytest.raises(UnknownAgent):
        await world.runs.launch(Prompt("x"), Options("nobody", None, SPEC))
    with pytest.raises(WorkspaceNotFound):
        await world.launch(workspace="0" * 64)
    with pytest.raises(InvalidRun):
        await world.launch("  ")
    assert await world.store.list_paths("threads/") == []


@pytest.mark.parametrize("point", ["create", "open_guest_api", "spawn"])
async def test_a_step_that_fails_ends_the_run_and_says_why(world: World, point: str) -> None:
    world.provider.fail_next(point, CreateFailed("no luck", hint="try the other one"))
    launched = await world.launch()
    run = await world.settled(launched)
    assert (run.status, run.ended_by) == (RunStatus.FAILED, "launch")
    assert run.error == {"code": "create_failed", "message": "no luck", "hint": "try the other one"}
    again = await world.launch("again", thread=launched.thread)
    assert (await world.settled(again)).live


async def test_a_box_that_dies_while_it_is_made_ready_is_taken_up_again(world: World) -> None:
    digest = await world.runs.workspaces.keep(pieces(tar(a="one\n")))
    world.provider.fail_next("open_guest_api", BoxStopped("it was dying when it was looked at"))
    launched = await world.launch(workspace=digest)
    run = await world.settled(launched)
    assert (run.status, run.stage, run.files) == (RunStatus.RUNNING, Stage.RUNNER, "workspace")
    kinds = [each["payload"]["type"] for each in await world.entries(launched.thread)]
    assert kinds.count("signal.run.box") == 1


async def test_an_agent_that_cannot_be_installed_ends_the_run(world: World) -> None:
    async def fail() -> None:
        raise CannotInstall("no node", hint="get one")

    world.agents.hook = fail
    run = await world.settled(await world.launch())
    assert run.error == {"code": "agent_not_installed", "message": "no node", "hint": "get one"}


async def test_a_file_that_cannot_be_written_ends_the_run_by_name(world: World) -> None:
    world.agents.scripted.more = ["config.json/below"]  # which is a file
    run = await world.settled(await world.launch())
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["code"] != "launch_failed"
    assert "config.json" in run.error["message"]


async def test_a_fault_of_ours_ends_the_run_too(world: World) -> None:
    async def fail() -> None:
        raise RuntimeError("a mistake")

    world.agents.hook = fail
    run = await world.settled(await world.launch())
    assert (run.status, run.error) == (RunStatus.FAILED, {"code": "launch_failed", "message": "a mistake"})


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_a_server_killed_at_any_step_leaves_a_run_that_the_next_one_settles(world: World, nth: int) -> None:
    """1 is the claim: nothing is launched then. The others: box, provisioned, runner."""
    thread = (await world.threads.create()).id
    world.log.die_at = nth
    if nth == 1:
        with pytest.raises(Exception, match="dead"):
            await world.launch(thread=thread)
        assert (await world.threads.get(thread)).runs.latest is None
    else:
        await world.settled(await world.launch(thread=thread))
        await world.restart()
        await world.runs.sweep()
        assert (await world.latest(thread)).live  # it may be somebody else's, and alive
        world.clock.advance(LIMITS.soft)
        await world.runs.sweep()
        run = await world.latest(thread)
        assert (run.status, run.ended_by) == (RunStatus.ORPHANED, "reconciler")
        assert run.error is not None
        assert run.error["code"] == "launch_lost"
    await world.restart()
    again = await world.launch("again", thread=thread)
    assert (await world.settled(again)).live
    assert len(await world.ends(thread)) == (0 if nth == 1 else 1)


async def test_a_server_killed_before_its_runner_has_its_code_leaves_one_that_is_given_up(world: World) -> None:
    launched = await world.launch()
    run = await world.settled(launched)
    await world.restart()
    await world.runs.sweep()
    world.clock.advance(LIMITS.start)
    await world.runs.sweep()
    run = await world.latest(launched.thread)
    assert run.error is not None
    assert (run.status, run.error["code"]) == (RunStatus.ORPHANED, "runner_silent")
    assert run.box is not None
    async with await world.boxes.open(run.box) as box:
        assert run.process is not None
        async with asyncio.timeout(PATIENCE):
            await (await box.process(run.process)).wait()  # it was killed


async def test_a_run_is_cancelled_before_its_agent_is_started(world: World) -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await never.wait()

    world.agents.hook = hang
    launched = await world.launch()
    async with asyncio.timeout(PATIENCE):
        await reached.wait()
    row = await world.runs.cancel(launched.run)
    assert (row.run.status, row.run.ended_by) == (RunStatus.CANCELLED, "launch")
    assert (await world.runs.cancel(launched.run)).run == row.run
    assert len(await world.ends(launched.thread)) == 1


async def test_a_server_that_stops_ends_what_it_was_launching(world: World) -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await never.wait()

    world.agents.hook = hang
    launched = await world.launch()
    async with asyncio.timeout(PATIENCE):
        await reached.wait()
    await world.runs.close()
    run = await world.latest(launched.thread)
    assert run.error is not None
    assert (run.status, run.error["code"]) == (RunStatus.FAILED, "server_stopped")


async def test_a_launch_that_ends_while_its_thread_is_read_is_not_taken_for_lost(world: World) -> None:
    world.start(Thresholds(launch=0))
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go.wait()

    world.agents.hook = wait
    launched = await world.launch()
    async with asyncio.timeout(PATIENCE):
        await reached.wait()
    reads, read = 0, world.log.row

    async def slowly(thread: str) -> ThreadRow:
        nonlocal reads
        reads += 1
        row = await read(thread)
        if reads == 2:  # the one that is decided by
            go.set()
            await world.settled(launched)
        return row

    world.log.row = slowly  # type: ignore[method-assign]
    await world.runs.reconcile(launched.thread)
    assert reads == 2
    run = await world.latest(launched.thread)
    assert (run.live, run.stage) == (True, Stage.RUNNER)


async def test_a_box_that_is_gone_orphans_its_run_and_its_runner_is_refused(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await runner.post(type="scripted.call", call="c-1", name="bash", arguments={"command": "sleep"})
    await runner.post(type="scripted.delta", message="m-1", text="I am ab")
    await runner.post(type="scripted.delta", message="m-1", text="out to")
    assert (await world.runs.reconcile(launched.thread)).runs.live is not None
    assert runner.run.box is not None
    world.provider.liveness[runner.run.box] = Liveness.GONE
    world.clock.advance(LIMITS.look)
    row = await world.runs.reconcile(launched.thread)
    run = row.runs.latest
    assert run is not None
    assert run.error is not None
    assert (run.status, run.error["code"], row.status) == (RunStatus.ORPHANED, "box_gone", "failed")
    cut, interrupted, end = [each["payload"] for each in (await world.entries(launched.thread))[-3:]]
    assert (cut["type"], cut["text"], cut["partial"]) == ("scripted.assistant", "I am about to", True)
    assert (interrupted["type"], interrupted["call"], interrupted["status"]) == (
        "scripted.tool",
        "c-1",
        "interrupted",
    )
    assert end["status"] == "orphaned"
    with pytest.raises(StaleEpoch):
        await runner.say("I am still here")
    with pytest.raises(StaleEpoch):
        await runner.end()
    world.provider.liveness.clear()


async def test_silence_counts_from_when_this_server_came_up(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await runner.session("s-1")
    world.clock.advance(LIMITS.hard - 1)
    await world.restart()  # it was away for long, and so was nobody to be heard by
    await world.runs.sweep()
    assert (await world.latest(launched.thread)).live
    world.clock.advance(LIMITS.hard - 1)
    assert await world.runs.beat(launched.run, runner.run.epoch) is None
    await world.runs.sweep()
    world.clock.advance(LIMITS.hard - 1)
    await world.runs.sweep()
    assert (await world.latest(launched.thread)).live
    world.clock.advance(2)
    await world.runs.sweep()
    assert (await world.latest(launched.thread)).status is RunStatus.ORPHANED


async def test_a_runner_is_told_the_time_that_is_left_and_a_frozen_one_is_ended_for_it(world: World) -> None:
    launched = await world.launch(timeout=600)
    run = (await world.runner(launched)).run
    limits = (await config_of(world, run))["limits"]
    assert limits["timeout"] == 600
    assert 500 < limits["timeout_left"] <= 600
    world.clock.advance(600_000)
    await world.runs.sweep()
    assert (await world.latest(launched.thread)).live  # its runner may be ending it
    world.clock.advance(Thresholds().soft)
    await world.runs.sweep()
    [end] = await world.ends(launched.thread)
    assert (end["status"], end["error"]["code"]) == ("failed", "timed_out")


async def test_a_box_whose_provider_was_away_when_the_server_came_back_is_let_in_later(world: World) -> None:
    launched = await world.launch()
    assert (await world.settled(launched)).live
    await world.restart()
    for _ in range(2):
        world.provider.fail_next("open_guest_api", BoxUnreachable("the control plane is away"))
    before = world.provider.calls["open_guest_api"]
    for attempts in (1, 2, 3, 3):  # until it works, and then no more
        await world.runs.get(launched.thread)
        await world.runs.tasks.join()
        assert world.provider.calls["open_guest_api"] - before == attempts
