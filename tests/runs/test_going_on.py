"""Threads that go on: in the same box, in a fresh one, under another agent, with prompts that waited."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.runs.test_launch import pieces, tar
from tests.runs.world import PATIENCE, SPEC, World, config_of

from holdfast.api.box.box import Liveness
from holdfast.api.errors.boxes import NoSpace
from holdfast.api.errors.runs import NothingToResume, RunNotFound, RunOver, ThreadBusy, TooManyWaiting
from holdfast.api.run.info import CancelKind, RunStatus
from holdfast.runs.diagnosis import diagnose
from holdfast.runs.launch.plan import Options, Prompt
from holdfast.runs.reconcile.rules import ProbeResult, RunnerState, Thresholds
from holdfast.threads.run_events import MAX_WAITING, ThreadRuns

pytestmark = pytest.mark.anyio
LIMITS = Thresholds()


async def finished_run(world: World, prompt: str = "do it", **options: Any) -> str:
    """A thread whose first run has ended well."""
    launched = await world.launch(prompt, **options)
    runner = await world.runner(launched)
    await runner.session("s-1")
    await runner.say("I did it")
    await runner.end()
    return launched.thread


async def test_a_follow_up_goes_on_in_the_same_box_from_the_agents_own_files(world: World) -> None:
    thread = await finished_run(world)
    first = await world.latest(thread)
    run = (await world.runner(await world.runs.resume(thread, Prompt("and more")))).run
    assert (run.box, run.box_how, run.files, run.session) == (first.box, "live", "kept", "continued")
    assert run.resumes == first.run
    task = world.agents.scripted.tasks[-1]
    assert (task.session, task.prompt) == ("s-1", "and more")


async def test_after_a_crash_the_session_is_rebuilt_in_the_same_box(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await runner.session("s-1")
    await runner.say("I did half of it")
    await runner.post(type="scripted.delta", message="m-2", text="and n")
    assert runner.run.box is not None
    assert runner.run.process is not None
    async with await world.boxes.open(runner.run.box) as box:
        process = await box.process(runner.run.process)
        await process.kill()
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    resumed = await world.runs.resume(launched.thread)  # which looks at once
    first = (await world.ends(launched.thread))[0]
    assert (first["status"], first["by"], first["error"]["code"]) == ("orphaned", "reconciler", "runner_lost")
    run = (await world.runner(resumed)).run
    assert (run.session, run.files) == ("rebuilt", "kept")
    assert world.agents.scripted.rebuilt_from == [["I did half of it", "and n"]]
    task = world.agents.scripted.tasks[-1]
    assert task.session == "rebuilt-session"
    assert "cut off" in task.prompt
    assert task.prompt.endswith("Go on.")


@pytest.mark.parametrize("workspace", [True, False])
async def test_a_fresh_box_after_the_old_one_is_gone_begins_as_the_first_did(world: World, workspace: bool) -> None:
    digest = await world.runs.workspaces.keep(pieces(tar(a="one\n"))) if workspace else None
    thread = await finished_run(world, workspace=digest)
    first = await world.latest(thread)
    assert first.box is not None
    async with await world.boxes.open(first.box) as box:
        await box.files.write("b", b"two\n")
    await world.boxes.delete(first.box)
    run = (await world.runner(await world.runs.resume(thread, Prompt("and more")))).run
    assert run.box != first.box
    assert (run.box_how, run.files, run.session) == ("created", "workspace" if workspace else "empty", "rebuilt")
    assert "are lost" in world.agents.scripted.tasks[-1].prompt
    assert run.box is not None
    async with await world.boxes.open(run.box) as box:
        assert await box.files.exists("a") == workspace
        assert not await box.files.exists("b")


async def test_a_fresh_box_on_request_has_the_files_of_the_old_one(world: World) -> None:
    thread = await finished_run(world)
    first = await world.latest(thread)
    assert first.box is not None
    async with await world.boxes.open(first.box) as box:
        await box.files.write("b", b"two\n")
    resumed = await world.runs.resume(thread, change=lambda options: replace(options, fresh=True))
    run = (await world.runner(resumed)).run
    assert run.box != first.box
    assert (run.box_how, run.files, run.session) == ("restored", "snapshot", "rebuilt")
    assert run.box is not None
    async with await world.boxes.open(run.box) as box:
        assert await box.files.read("b") == b"two\n"
    assert (await world.boxes.get(first.box)).tombstone


@pytest.mark.parametrize("stopped", [True, False])
async def test_another_machine_gets_the_files_of_the_one_before(world: World, stopped: bool) -> None:
    thread = await finished_run(world)
    first = await world.latest(thread)
    assert first.box is not None
    async with await world.boxes.open(first.box) as box:
        await box.files.write("b", b"two\n")
    if stopped:
        await world.boxes.stop(first.box)
    other = replace(SPEC, workdir="/elsewhere")  # what is left of the last run in the old one is ended for it
    run = (await world.runner(await world.runs.resume(thread, change=lambda old: replace(old, spec=other)))).run
    assert run.box is not None
    assert run.box != first.box
    assert (run.box_how, run.files, run.session) == ("moved", "kept", "rebuilt")
    assert "another machine, with the same files" in world.agents.scripted.tasks[-1].prompt
    async with await world.boxes.open(run.box) as box:
        assert await box.files.read("/elsewhere/b") == b"two\n"
    # Who launches again and says nothing of a box gets this one.
    await (await world.runner(await world.runs.get(thread))).end()  # type: ignore[arg-type]
    launched = await world.runs.launch(Prompt("more"), Options("scripted", None), thread=thread)
    assert (await world.runner(launched)).run.box == run.box


async def test_a_thread_that_is_deleted_takes_its_run_and_its_box_with_it(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    assert runner.run.box is not None
    await world.runs.forget(launched.thread)
    assert (await world.latest(launched.thread)).status is RunStatus.CANCELLED
    async with asyncio.timeout(PATIENCE):
        await world.runs.tasks.join()
    assert (await world.boxes.get(runner.run.box)).tombstone


async def test_a_stopped_box_is_started_on_its_files(world: World) -> None:
    thread = await finished_run(world)
    first = await world.latest(thread)
    assert first.box is not None
    await world.boxes.stop(first.box)
    run = (await world.runner(await world.runs.resume(thread, Prompt("and more")))).run
    assert (run.box, run.box_how, run.files, run.session) == (first.box, "started", "kept", "continued")


async def test_another_agent_is_told_what_was_said_and_done(world: World) -> None:
    thread = await finished_run(world, "paint it red")
    run = (await world.runner(await world.runs.resume(thread, Prompt("now blue"), agent="other"))).run
    assert (run.agent, run.session) == ("other", "handed-over")
    prompt = world.agents.other.tasks[-1].prompt
    assert "User: paint it red" in prompt
    assert "Assistant (scripted): I did it" in prompt
    assert prompt.endswith("now blue")
    assert prompt.count("now blue") == 1
    # And back: its own session, and what the other one did meanwhile.
    runner = await world.runner(await world.runs.get(thread))  # type: ignore[arg-type]
    await runner.say("It is blue", agent="other")
    await runner.end()
    back = (await world.runner(await world.runs.resume(thread, Prompt("now green"), agent="scripted"))).run
    assert back.session == "continued"
    prompt = world.agents.scripted.tasks[-1].prompt
    assert "Assistant (other): It is blue" in prompt
    assert "I did it" not in prompt


async def test_who_takes_over_a_long_thread_is_told_the_task_and_where_the_rest_is(world: World) -> None:
    launched = await world.launch("paint the house red, but never the door")
    runner = await world.runner(launched)
    for number in range(400):
        await runner.say(f"step {number}: " + "w" * 1000)
    await runner.end()
    run = (await world.runner(await world.runs.resume(launched.thread, Prompt("now blue"), agent="other"))).run
    prompt = world.agents.other.tasks[-1].prompt
    assert "User: paint the house red, but never the door" in prompt
    assert "step 399: " in prompt
    assert "step 0: " not in prompt
    found = re.search(r"\[… (\d+) entries are left out here …\]", prompt)
    assert found is not None
    assert f"step {int(found[1])}: " in prompt
    assert f"step {int(found[1]) - 1}: " not in prompt
    path = re.search(r"transcript is in (\S+) in this machine", prompt)
    assert path is not None
    assert run.box is not None
    async with await world.boxes.open(run.box) as box:
        whole = (await box.files.read(path[1])).decode()
    assert whole.startswith("User: paint the house red, but never the door\n\nAssistant (scripted): step 0: ")
    assert whole.count("Assistant (scripted): step ") == 400


async def test_a_prompt_waits_for_the_end_and_is_launched_once(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    steered = await world.runs.steer(launched.thread, Prompt("and this"))
    also = await world.runs.steer(launched.thread, Prompt("and that"))
    assert (steered.how, steered.run, also.how) == ("queued", launched.run, "queued")
    await runner.end()
    other = world.runs
    world.start()  # two servers see it
    await asyncio.gather(other.reconcile(launched.thread), world.runs.reconcile(launched.thread))
    for server in (other, world.runs):
        await server.launches.wait(launched.thread)
    run = await world.latest(launched.thread)
    assert run.run != launched.run
    assert run.prompts == (steered.prompt, also.prompt)
    starts = [e for e in await world.entries(launched.thread) if e["payload"]["type"] == "signal.run.started"]
    assert len(starts) == 2
    assert world.agents.scripted.tasks[-1].prompt == "and this\n\nand that"


async def test_the_next_server_launches_what_waited(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await world.runs.steer(launched.thread, Prompt("and this"))
    world.kill()
    await runner.end()
    await world.restart()
    await world.runs.sweep()
    run = await world.settled(launched)
    assert (run.live, run.run != launched.run) == (True, True)


async def test_an_interruption_ends_the_run_and_goes_on_with_the_prompt(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await runner.session("s-1")
    await runner.say("I begin")
    steered = await world.runs.steer(launched.thread, Prompt("stop, do this"), interrupt=True)
    assert steered.how == "interrupting"
    assert await world.runs.beat(launched.run, runner.run.epoch) == "interrupt"
    await runner.end("cancelled")
    await world.runs.reconcile(launched.thread)
    run = (await world.runner(launched)).run
    assert (run.prompts, run.session) == ((steered.prompt,), "rebuilt")


async def test_after_a_cancel_prompts_wait_for_somebody_to_go_on(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    steered = await world.runs.steer(launched.thread, Prompt("and this"))
    await world.runs.cancel(launched.run)
    await runner.end("cancelled")
    await world.runs.sweep()
    assert (await world.latest(launched.thread)).run == launched.run
    resumed = await world.runs.resume(launched.thread)
    run = (await world.runner(resumed)).run
    assert run.prompts == (steered.prompt,)


async def test_to_steer_an_idle_thread_is_to_launch(world: World) -> None:
    thread = await finished_run(world)
    steered = await world.runs.steer(thread, Prompt("and more"))
    assert steered.how == "launched"
    assert (await world.settled(steered)).live  # type: ignore[arg-type]


async def test_not_everything_waits(world: World) -> None:
    launched = await world.launch()
    await world.settled(launched)
    for number in range(MAX_WAITING):
        await world.runs.steer(launched.thread, Prompt(f"{number}"))
    with pytest.raises(TooManyWaiting):
        await world.runs.steer(launched.thread, Prompt("one more"))


async def test_a_cancel_reaches_the_runner_by_its_next_beat(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    assert await world.runs.beat(launched.run, runner.run.epoch) is None
    await config_of(world, runner.run)  # it is up
    row = await world.runs.cancel(launched.thread, by="me")
    assert (row.run.status, row.run.cancel) == (RunStatus.RUNNING, CancelKind.CANCEL)
    await world.runs.cancel(launched.thread)
    assert sum(e["payload"]["type"] == "signal.run.cancel_requested" for e in await world.entries(launched.thread)) == 1
    # It was signalled too, and this one dies of that: the reconciler tells its end.
    assert runner.run.box is not None
    assert runner.run.process is not None
    async with asyncio.timeout(PATIENCE), await world.boxes.open(runner.run.box) as box:
        await (await box.process(runner.run.process)).wait()
    await world.runs.reconcile(launched.thread, force=True)
    assert (await world.latest(launched.thread)).status is RunStatus.CANCELLED
    with pytest.raises(RunOver):
        await world.runs.beat(launched.run, runner.run.epoch)
    assert not await world.runs.lives(launched.thread, launched.run, runner.run.epoch)


async def test_a_beat_is_good_only_in_the_runners_epoch(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    for epoch in (runner.run.epoch - 1, runner.run.epoch + 1):
        with pytest.raises(RunOver):
            await world.runs.beat(launched.run, epoch)
        assert not await world.runs.lives(launched.thread, launched.run, epoch)
    assert await world.runs.lives(launched.thread, launched.run, runner.run.epoch)
    with pytest.raises(RunNotFound):
        await world.runs.beat("r-nobody", 1)


async def test_what_there_is_nothing_of_cannot_be_gone_on_with(world: World) -> None:
    thread = (await world.threads.create()).id
    with pytest.raises(NothingToResume):
        await world.runs.resume(thread)
    with pytest.raises(RunNotFound):
        await world.runs.get(thread)
    launched = await world.launch(thread=thread)
    with pytest.raises(ThreadBusy):
        await world.runs.resume(thread)
    await world.settled(launched)
    await config_of(world, await world.latest(thread))


async def test_a_thread_without_a_run_begins_with_an_agent_and_a_prompt(world: World) -> None:
    thread = (await world.threads.create()).id
    for prompt, agent in ((None, "scripted"), (Prompt("go"), None)):
        with pytest.raises(NothingToResume) as nothing:
            await world.runs.resume(thread, prompt, agent=agent)
        assert "--agent" in (nothing.value.hint or "")
    resumed = await world.runs.resume(
        thread, Prompt("go"), agent="scripted", change=lambda options: replace(options, spec=SPEC)
    )
    assert (await world.runner(resumed)).run.session == "new"


async def test_a_half_unpacked_workspace_is_unpacked_again(world: World) -> None:
    digest = await world.runs.workspaces.keep(pieces(tar(a="one\n")))
    thread = (await world.threads.create()).id
    world.provider.fail_next("upload_tar", RuntimeError("killed"))
    world.log.die_at = 2
    await world.settled(await world.launch(thread=thread, workspace=digest))
    await world.restart()
    await world.runs.sweep()
    world.clock.advance(LIMITS.soft)
    await world.runs.sweep()
    run = (await world.runner(await world.runs.resume(thread))).run
    assert run.box is not None
    async with await world.boxes.open(run.box) as box:
        assert await box.files.read("a") == b"one\n"


async def test_the_changes_of_a_workspace_are_told_against_its_beginning(world: World) -> None:
    digest = await world.runs.workspaces.keep(pieces(tar(a="one\n", b="same\n", c="gone\n")))
    thread = await finished_run(world, workspace=digest)
    run = await world.latest(thread)
    assert run.box is not None
    async with await world.boxes.open(run.box) as box:
        await box.files.write("a", b"two\n")
        await box.files.write("d/new.bin", b"\0\1")
        await box.files.delete("c")
    changes = await world.runs.changes(thread)
    assert [(each.path, each.how, each.binary) for each in changes.files] == [
        ("a", "changed", False),
        ("c", "deleted", False),
        ("d/new.bin", "added", True),
    ]
    assert "-one\n+two\n" in changes.patch
    assert "GIT binary patch" in changes.patch


async def test_a_run_whose_box_was_stopped_under_it_says_so_and_goes_on_in_it(world: World) -> None:
    launched = await world.launch()
    runner = await world.runner(launched)
    await runner.say("I did half of it")
    assert runner.run.box is not None
    await world.boxes.stop(runner.run.box)
    resumed = await world.runs.resume(launched.thread)  # which looks at once
    [end] = await world.ends(launched.thread)
    assert (end["status"], end["error"]["code"]) == ("orphaned", "box_stopped")
    assert f"box {runner.run.box} was stopped or killed" in end["error"]["message"]
    assert "starts its box again with its files" in end["error"]["hint"]
    run = (await world.runner(resumed)).run
    assert (run.box, run.box_how, run.files, run.session) == (runner.run.box, "started", "kept", "rebuilt")


async def test_a_box_that_cannot_be_replaced_is_kept_with_its_files(world: World) -> None:
    thread = await finished_run(world)
    box = (await world.latest(thread)).box
    assert box is not None
    async with await world.boxes.open(box) as opened:
        await opened.files.write("b", b"two\n")
    world.provider.fail_next("create", NoSpace("the new box is full"))
    other = replace(SPEC, env={"OTHER": "machine"})
    resumed = await world.runs.resume(thread, change=lambda options: replace(options, spec=other))
    error = (await world.settled(resumed)).error or {}
    assert (error["code"], error["message"]) == ("no_space", "the new box is full")
    run = (await world.runner(await world.runs.resume(thread))).run
    assert (run.box, run.files) == (box, "kept")
    async with await world.boxes.open(box) as opened:
        assert await opened.files.read("b") == b"two\n"


async def test_a_diagnosis_names_a_box_that_was_stopped_under_its_run(world: World) -> None:
    runner = await world.runner(await world.launch())
    stopped = ProbeResult(Liveness.LIVE, RunnerState.STOPPED)
    found = diagnose(
        runner.thread, ThreadRuns(latest=runner.run), launching=False, silence=0, look=stopped, thresholds=LIMITS
    )
    assert found.wrong is not None
    assert found.wrong.startswith("box: ")
    assert found.wrong.endswith("it was stopped or killed")
    assert found.next_step == f"holdfast resume {runner.thread} starts it again"


async def test_a_diagnosis_says_how_far_it_came_and_what_to_do(world: World) -> None:
    thread = (await world.threads.create()).id
    found = await world.runs.diagnose(thread)
    assert (found.run, found.wrong) == (None, "the thread has had no run")
    launched = await world.launch(thread=thread)
    runner = await world.runner(launched)
    stages = {each.stage: each.ok for each in (await world.runs.diagnose(thread)).findings}
    assert list(stages) == [
        "thread", "claim", "box", "provision", "runner", "agent", "first event", "heartbeat", "end",
    ]  # fmt: skip
    assert (stages["runner"], stages["agent"], stages["end"]) == (True, None, None)
    await runner.session("s-1")
    assert runner.run.box is not None
    await world.boxes.delete(runner.run.box)
    found = await world.runs.diagnose(launched.run)
    assert found.status == "orphaned"
    assert found.wrong is not None
    assert found.next_step is not None
    assert "resume" in found.next_step
