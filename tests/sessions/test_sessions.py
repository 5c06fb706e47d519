"""Sessions from their creation to their end, on real stores and dummy boxes. The tests post as the runners."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.test_launch import pieces, tar
from tests.runs.world import PATIENCE, SPEC, Runner
from tests.sessions.world import SessionWorld, a_world

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import BoxState
from holdfast.api.errors import Conflict, HoldfastError, InvalidRequest, NotFound
from holdfast.api.errors.boxes import BoxUnreachable, CreateFailed
from holdfast.api.errors.runs import InvalidRun, TooManyWaiting
from holdfast.api.errors.sessions import IsSession, SessionBusy, SessionConflict, SessionLimit, SessionNotFound
from holdfast.api.run.info import RunStatus
from holdfast.api.run.tasks import NewTask
from holdfast.api.session.sessions import MOST_PROMPTS, ContextFile, SessionState
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import NoSecrets
from holdfast.runs.launch.plan import Options, Prompt
from holdfast.sessions.queue import COLLECT_MS
from holdfast.sessions.service import Opening
from holdfast.sessions.session_log import SessionLog
from holdfast.threads.rows import RowFilter
from holdfast.threads.session_events import MOST_ATTEMPTS

pytestmark = pytest.mark.anyio
S = SessionState


async def files_of(world: SessionWorld, id: str, path: str) -> bytes:
    row = await world.sessions.box_of(id)
    assert row is not None
    async with await world.base.boxes.open(row.id) as box:
        return await box.files.read(path)


# --- creating ---


async def test_a_session_gets_a_box_with_its_files_and_its_thread_tells_it(world: SessionWorld) -> None:
    digest = await world.base.runs.workspaces.keep(pieces(tar(a="one\n")))
    id = await world.create(workspace=digest)
    assert (await world.session(id)).state is S.INITIALIZING
    assert await world.settled(id) is S.RUNNING
    assert await world.types(id) == ["signal.thread.created", "signal.session.created", "signal.session.running"]
    assert await files_of(world, id, "a") == b"one\n"
    # Its first run finds the box as it is, and unpacks nothing again.
    await world.prompt(id)
    runner = await world.at_work(id)
    assert (runner.run.box_how, runner.run.files) == ("live", "kept")


async def test_an_agent_is_told_of_its_context_files(world: SessionWorld) -> None:
    id = await world.running(context=(ContextFile(name="10-who.md", text="You review.\n"),))
    steps = {each.name: each.state for each in (await world.sessions.diagnose(id)).steps}
    assert steps == {"box": "done", "context": "done"}
    await world.prompt(id, "look at it")
    await world.answer(id)
    assert world.base.agents.scripted.tasks[-1].prompt == (
        "[Before you begin, read these files in ~/.holdfast/context, and do as they say: 10-who.md.]\n\nlook at it"
    )
    # They are kept once, not with each run.
    assert sum("You review." in str(each) for each in await world.base.entries(id)) == 1


async def test_a_box_that_cannot_be_made_is_the_error_of_the_session_and_its_prompts_end(world: SessionWorld) -> None:
    world.base.provider.fail_next("create", CreateFailed("there is no room"))
    id = await world.create()
    prompt = await world.prompt(id)
    assert await world.settled(id) is S.ERROR
    session = await world.session(id)
    assert session.error is not None
    assert "no room" in session.error["message"]
    assert (await world.found(id, prompt)).id == prompt
    assert [each.status for each in session.ended] == ["failed"]
    with pytest.raises(SessionConflict, match="is error, and cannot take prompts"):
        await world.prompt(id)
    with pytest.raises(SessionConflict):
        await world.sessions.restore(id)
    await world.sessions.terminate(id)
    assert await world.settled(id) is S.TERMINATED


async def test_a_provider_that_is_away_for_a_moment_is_asked_again(world: SessionWorld) -> None:
    for _ in range(2):
        world.base.provider.fail_next("create", BoxUnreachable("away"))
    id = await world.create()
    assert await world.settled(id) is S.INITIALIZING
    for _ in range(4):
        world.base.clock.advance(60_000)
        await world.settled(id)
    assert (await world.session(id)).state is S.RUNNING


async def test_what_a_launch_would_refuse_creates_nothing(world: SessionWorld) -> None:
    with pytest.raises(HoldfastError, match="no agent"):
        await world.sessions.create(Opening("t-1"), Options("nobody", None, SPEC))
    with pytest.raises(NotFound):
        await world.create(id="t-1", workspace="0" * 64)
    with pytest.raises(SessionNotFound):
        await world.create(id="t-1", parent="t-nowhere")
    with pytest.raises(NotFound):
        await world.row("t-1")


async def test_a_repeated_request_creates_one_session(world: SessionWorld) -> None:
    first, second = await world.create(id="t-1"), await world.create(id="t-1")
    assert first == second == "t-1"
    assert (await world.types("t-1")).count("signal.session.created") == 1
    await world.base.threads.create(id="t-2")
    with pytest.raises(Conflict):
        await world.create(id="t-2")
    await world.settled("t-1")


@pytest.mark.parametrize("id", ["../t-1", "a/b", "t-1/../../x", "t 1", ".", "%2e%2e", ""])
async def test_an_id_that_is_a_path_leads_nowhere(world: SessionWorld, id: str) -> None:
    for asked in (world.sessions.get(id), world.sessions.terminate(id), world.sessions.prompt(id, "x")):
        with pytest.raises((NotFound, InvalidRequest)):
            await asked


async def test_a_thread_that_is_no_session_is_not_found(world: SessionWorld) -> None:
    await world.base.threads.create(id="t-1")
    for asked in (
        world.sessions.get("t-1"),
        world.sessions.prompt("t-1", "x"),
        world.sessions.hibernate("t-1"),
        world.sessions.restore("t-1"),
        world.sessions.terminate("t-1"),
        world.sessions.delete_workspace("t-1"),
    ):
        with pytest.raises(SessionNotFound):
            await asked


async def test_no_more_sessions_are_awake_than_there_may_be(tmp_path: Path) -> None:
    async with a_world(tmp_path, most=2) as world:
        first, second = await world.running(), await world.running()
        with pytest.raises(SessionLimit, match="2 sessions are awake"):
            await world.create()
        await world.sessions.hibernate(first)
        third = await world.running()
        with pytest.raises(SessionLimit):
            await world.sessions.restore(first)
        # A prompt waits until there is room, and then wakes it.
        prompt = await world.prompt(first)
        assert await world.settled(first) is S.HIBERNATED
        await world.sessions.terminate(third)
        await world.settled(third)
        assert await world.settled(first) is S.RUNNING
        await world.answer(first)
        assert (await world.found(first, prompt)).run is not None
        assert await world.settled(second) is S.RUNNING


# --- prompts ---


async def test_prompts_are_worked_on_one_after_the_other_each_by_a_run(world: SessionWorld) -> None:
    id = await world.running()
    prompts = [await world.prompt(id, text) for text in ("one", "two", "three")]
    runs = [await world.answer(id) for _ in prompts]
    session = await world.session(id)
    assert [(each.id, each.run, each.status.value) for each in session.ended] == [
        (prompt, run, "completed") for prompt, run in zip(prompts, runs, strict=True)
    ]
    assert [task.prompt for task in world.base.agents.scripted.tasks] == ["one", "two", "three"]
    assert (await world.types(id)).count("signal.run.started") == 3
    assert await world.settled(id) is S.RUNNING


async def test_a_prompt_that_comes_while_the_box_is_made_is_worked_on_then(world: SessionWorld) -> None:
    id = await world.create()
    prompt = await world.prompt(id)
    await world.answer(id)
    assert [each.id for each in (await world.session(id)).ended] == [prompt]


async def test_a_higher_priority_comes_first(world: SessionWorld) -> None:
    id = await world.running()
    first = await world.prompt(id, "first")
    await world.at_work(id)
    low, high = await world.prompt(id, "low"), await world.prompt(id, "high", priority=5)
    for _ in range(3):
        await world.answer(id)
    assert [each.id for each in (await world.session(id)).ended] == [first, high, low]


async def test_a_prompt_that_steers_interrupts_and_comes_next(world: SessionWorld) -> None:
    id = await world.running()
    first = await world.prompt(id, "first")
    runner = await world.at_work(id)
    later = await world.prompt(id, "later")
    steering = await world.prompt(id, "stop", mode="steer")
    await world.settled(id)
    row = await world.row(id)
    assert row.runs.live is not None
    assert row.runs.live.cancel == "interrupt"
    await runner.end("cancelled")
    await world.base.runs.reconcile(id)
    for _ in range(2):
        await world.answer(id)
    ended = (await world.session(id)).ended
    assert [(each.id, each.status.value) for each in ended] == [
        (first, "cancelled"), (steering, "completed"), (later, "completed"),
    ]  # fmt: skip


async def test_collected_prompts_make_one_run_once_none_has_come_for_a_moment(world: SessionWorld) -> None:
    id = await world.running()
    first = await world.prompt(id, "one", mode="collect")
    await world.settled(id)
    world.base.clock.advance(COLLECT_MS - 1)
    second = await world.prompt(id, "two", mode="collect")
    await world.settled(id)
    world.base.clock.advance(COLLECT_MS - 1)
    await world.settled(id)
    assert (await world.row(id)).runs.latest is None
    world.base.clock.advance(1)
    run = await world.answer(id)
    ended = (await world.session(id)).ended
    assert [(each.id, each.run) for each in ended] == [(first, run), (second, run)]
    assert [task.prompt for task in world.base.agents.scripted.tasks] == ["one\n\ntwo"]


async def test_a_command_and_a_review_that_are_sent_twice_are_queued_once(world: SessionWorld) -> None:
    id = await world.running()
    for _ in range(2):
        assert (await world.sessions.command(id, "greet", "Ann", prompt_id="p-1")).id == "p-1"
        assert (await world.sessions.review(id, "main", prompt_id="p-2")).id == "p-2"
    await world.answer(id)
    await world.answer(id)
    await world.settled(id)
    assert (await world.session(id)).ended_count == 2
    assert (await world.sessions.command(id, "greet", "Ann", prompt_id="p-1")).id == "p-1"
    assert (await world.types(id)).count("signal.run.started") == 2


async def test_a_prompt_sent_twice_is_queued_once(world: SessionWorld) -> None:
    id = await world.running()
    for _ in range(3):
        assert await world.prompt(id, "once", prompt_id="p-1") == "p-1"
    await world.answer(id)
    assert await world.prompt(id, "once", prompt_id="p-1") == "p-1"
    await world.settled(id)
    assert (await world.session(id)).ended_count == 1
    assert (await world.types(id)).count("signal.run.started") == 1


async def test_a_prompt_with_the_id_of_another_entry_is_refused(world: SessionWorld) -> None:
    id = await world.running()
    await world.base.threads.chat(id, "hello", entry_id="taken")
    with pytest.raises(Conflict, match="already has an entry taken"):
        await world.prompt(id, prompt_id="taken")


async def test_a_queue_has_a_bound(world: SessionWorld) -> None:
    id = await world.running()
    for _ in range(MOST_PROMPTS):
        await world.prompt(id)
    with pytest.raises(TooManyWaiting):
        await world.prompt(id)
    with pytest.raises(InvalidRun):
        await world.prompt(id, "  ")


async def test_the_prompt_of_a_run_that_was_lost_is_worked_on_again(world: SessionWorld) -> None:
    id = await world.running()
    prompt = await world.prompt(id)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        await world.at_work(id)
        row = await world.sessions.box_of(id)
        assert row is not None
        await world.base.boxes.delete(row.id)
        await world.base.runs.reconcile(id, force=True)
        latest = (await world.row(id)).runs.latest
        assert latest is not None
        assert latest.status is RunStatus.ORPHANED
        assert (await world.found(id, prompt)).attempts == attempt
    await world.settled(id)
    [ended] = (await world.session(id)).ended
    assert (ended.id, ended.status.value, ended.attempts) == (prompt, "failed", MOST_ATTEMPTS)
    assert (await world.types(id)).count("signal.run.started") == MOST_ATTEMPTS


async def test_a_prompt_that_another_server_took_is_not_launched_again(world: SessionWorld) -> None:
    id = await world.running()
    prompt, other = await world.prompt(id), await world.prompt(id, "other")
    assert await world.base.runs.launch_queued(id, [prompt]) is not None
    assert await world.base.runs.launch_queued(id, [other]) is None  # one at a time
    await world.base.runs.launches.wait(id)
    await Runner(world.base, id, await world.base.latest(id)).end()
    for taken in ([prompt], [prompt, other], ["e-nowhere"], []):
        assert await world.base.runs.launch_queued(id, taken) is None
    assert (await world.types(id)).count("signal.run.started") == 1
    await world.sessions.terminate(id)
    assert await world.base.runs.launch_queued(id, [other]) is None


async def test_two_servers_launch_a_prompt_once(world: SessionWorld) -> None:
    id = await world.running()
    world.open()
    prompt = await world.prompt(id)
    await asyncio.gather(*(each.settle(id) for each in world.old for _ in range(3)))
    assert (await world.types(id)).count("signal.run.started") == 1
    await world.answer(id)
    assert [each.id for each in (await world.session(id)).ended] == [prompt]


async def test_runs_are_launched_by_the_queue_alone(world: SessionWorld) -> None:
    id = await world.running()
    for asked in (
        world.base.launch(thread=id),
        world.base.runs.resume(id, Prompt("x"), agent="scripted"),
        world.base.runs.steer(id, Prompt("x")),
    ):
        with pytest.raises(IsSession, match="is a session"):
            await asked
    assert "signal.run.started" not in await world.types(id)


async def test_a_cancelled_run_ends_its_prompt_and_the_next_one_begins(world: SessionWorld) -> None:
    id = await world.running()
    first, second = await world.prompt(id, "first"), await world.prompt(id, "second")
    runner = await world.at_work(id)
    await world.base.runs.cancel(id)
    await runner.end("cancelled")
    await world.answer(id)
    ended = (await world.session(id)).ended
    assert [(each.id, each.status.value) for each in ended] == [(first, "cancelled"), (second, "completed")]


async def test_the_result_of_a_task_wakes_the_session_that_delegated_it(world: SessionWorld) -> None:
    id = await world.running()
    await world.prompt(id)
    await world.answer(id)
    task = await world.base.runs.delegations.delegate(id, NewTask(prompt="look", wake=True))
    await world.sessions.hibernate(id)
    child = (await world.row(task.id)).runs.live
    assert child is not None
    await world.base.runs.launches.wait(task.id)
    await Runner(world.base, task.id, await world.base.latest(task.id)).end()
    await world.base.runs.reconcile(task.id)
    await world.answer(id)
    assert await world.settled(id) is S.RUNNING
    assert "look" not in world.base.agents.scripted.tasks[0].prompt
    assert (await world.types(id)).count("signal.run.started") == 2


# --- asleep and awake ---


async def test_a_session_hibernates_and_a_prompt_wakes_it_as_it_was(world: SessionWorld) -> None:
    id = await world.running()
    before = await world.sessions.box_of(id)
    assert before is not None
    async with await world.base.boxes.open(before.id) as box:
        await box.files.write("kept", b"as it was")
    await world.sessions.hibernate(id, by="somebody")
    box_row = await world.sessions.box_of(id)
    assert box_row is not None
    assert box_row.state is BoxState.HIBERNATED
    assert (await world.session(id)).state is S.HIBERNATED
    assert await world.settled(id) is S.HIBERNATED
    prompt = await world.prompt(id)
    await world.answer(id)
    assert [each.id for each in (await world.session(id)).ended] == [prompt]
    assert await files_of(world, id, "kept") == b"as it was"
    assert await world.states(id) == ["created", "running", "hibernating", "hibernated", "restoring", "running"]


async def test_restoring_brings_the_files_back_even_if_the_provider_lost_the_box(world: SessionWorld) -> None:
    id = await world.running()
    row = await world.sessions.box_of(id)
    assert row is not None
    async with await world.base.boxes.open(row.id) as box:
        await box.files.write("kept", b"as it was")
    await world.sessions.hibernate(id)
    await world.base.provider.remove(row.id)
    await world.sessions.restore(id)
    assert (await world.session(id)).state is S.RUNNING
    assert await files_of(world, id, "kept") == b"as it was"


async def test_a_session_that_is_restored_gets_its_secrets_as_they_are_now(world: SessionWorld) -> None:
    value = "first"

    class Placed(NoSecrets):
        def check(self, policy: NetworkPolicy) -> None: ...

        async def place(self, box: Box, thread: str | None, policy: NetworkPolicy) -> None:
            await box.files.write("secret", f"{thread} {value}".encode())

    world.base.boxes.secrets = Placed()
    world.base.provider.capabilities |= {Capability.SECRETS, Capability.NETWORK_ALLOW}
    spec = replace(SPEC, network=NetworkPolicy(mode=Network.ALLOW, allow=("example.com",), secrets=("TOKEN",)))
    id = await world.running(spec=spec)
    assert await files_of(world, id, "secret") == f"{id} first".encode()
    await world.sessions.hibernate(id)
    value = "rotated"
    await world.sessions.restore(id)
    assert await files_of(world, id, "secret") == f"{id} rotated".encode()


async def test_a_session_at_work_does_not_hibernate(world: SessionWorld) -> None:
    id = await world.running()
    await world.prompt(id)
    with pytest.raises(SessionBusy):
        await world.sessions.hibernate(id)
    await world.at_work(id)
    with pytest.raises(SessionBusy):
        await world.sessions.hibernate(id)
    await world.answer(id)
    await world.sessions.hibernate(id)
    assert (await world.session(id)).state is S.HIBERNATED


async def test_a_session_falls_asleep_with_its_box_and_wakes_with_it(world: SessionWorld) -> None:
    id = await world.running()
    row = await world.sessions.box_of(id)
    assert row is not None
    world.base.clock.advance(60_000)
    await world.base.boxes.hibernate(row.id)  # as the sweep of boxes does when nothing works in it
    await world.sessions.sweep()
    assert await world.settled(id) is S.HIBERNATED
    assert (await world.session(id)).state is S.HIBERNATED
    await world.sessions.sweep()
    assert (await world.session(id)).state is S.HIBERNATED
    await world.base.boxes.start_box(row.id)  # as a visitor does, or a command in the box
    await world.sessions.sweep()
    assert await world.settled(id) is S.RUNNING
    assert await world.states(id) == ["created", "running", "hibernating", "hibernated", "restoring", "running"]


async def test_hibernating_a_box_that_is_gone_ends_the_session_and_all_below(world: SessionWorld) -> None:
    id = await world.running()
    child = await world.running(parent=id)
    row = await world.sessions.box_of(id)
    assert row is not None
    await world.base.boxes.delete(row.id)
    await world.sessions.hibernate(id)
    session = await world.session(id)
    assert (session.state, session.why, session.released) == (S.TERMINATED, "its box is gone", True)
    assert await world.settled(child) is S.TERMINATED
    assert "signal.session.child_terminated" in await world.types(id)


async def test_an_open_shell_does_not_keep_a_session_from_hibernating_when_asked(world: SessionWorld) -> None:
    id = await world.running()
    row = await world.sessions.box_of(id)
    assert row is not None
    with world.base.boxes.using(row.id):
        await world.sessions.hibernate(id)
    assert (await world.session(id)).state is S.HIBERNATED
    await world.sessions.restore(id)
    assert (await world.session(id)).state is S.RUNNING


# --- the end ---


async def test_terminating_ends_the_run_the_tasks_and_the_sessions_below_and_keeps_the_files(
    world: SessionWorld,
) -> None:
    id = await world.running()
    child = await world.running(parent=id)
    grandchild = await world.running(parent=child)
    await world.prompt(id, "work")
    queued = await world.prompt(id, "more")
    await world.at_work(id)
    task = await world.base.runs.delegations.delegate(id, NewTask(prompt="look"))
    await world.base.runs.launches.wait(task.id)
    await world.sessions.terminate(id, by="somebody")
    for _ in range(10):  # a run that does not react is ended after a while
        world.base.clock.advance(60_000)
        for each in (id, child, grandchild):
            assert await world.settled(each) is S.TERMINATED
        await world.base.runs.sweep()
    sessions = [await world.session(each) for each in (id, child, grandchild)]
    assert all(each.released and not each.queue for each in sessions)
    assert {each.id: each.status.value for each in sessions[0].ended}[queued] == "cancelled"
    assert (await world.base.latest(id)).status is RunStatus.CANCELLED
    assert (await world.base.latest(task.id)).status is RunStatus.CANCELLED
    for each in (id, child, grandchild):
        row = await world.sessions.box_of(each)
        assert row is not None
        assert row.state is BoxState.STOPPED
    assert len(await world.base.ends(id)) == 1
    payloads = [each["payload"] for each in await world.base.entries(id)]
    assert [each["by"] for each in payloads if each["type"] == "signal.session.terminated"] == ["somebody"]


@pytest.mark.parametrize("state", ["initializing", "running", "hibernated", "error"])
async def test_a_session_is_terminated_from_any_state_once(world: SessionWorld, state: str) -> None:
    if state == "error":
        world.base.provider.fail_next("create", CreateFailed("there is no room"))
    id = await world.create()
    if state != "initializing":
        await world.settled(id)
    if state == "hibernated":
        await world.sessions.hibernate(id)
    assert (await world.session(id)).state == state
    await asyncio.gather(*(world.sessions.terminate(id) for _ in range(3)))
    assert await world.settled(id) is S.TERMINATED
    assert (await world.session(id)).released
    assert (await world.states(id)).count("terminated") == 1
    assert (await world.types(id)).count("signal.session.released") == 1
    for asked in (world.sessions.hibernate(id), world.sessions.restore(id), world.sessions.prompt(id, "x")):
        with pytest.raises(SessionConflict, match="terminated"):
            await asked


async def test_a_session_whose_box_is_being_made_is_terminated_at_once(world: SessionWorld) -> None:
    stuck, going = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> None:
        going.set()
        await stuck.wait()

    world.base.provider.at["create"] = hang
    id = await world.create()
    await world.sessions.get(id)
    async with asyncio.timeout(PATIENCE):
        await going.wait()
    del world.base.provider.at["create"]
    await world.sessions.terminate(id)
    assert await world.settled(id) is S.TERMINATED
    assert await world.states(id) == ["created", "error", "terminated"]


async def test_the_files_of_a_terminated_session_are_deleted_on_request(world: SessionWorld) -> None:
    id = await world.running()
    await world.sessions.hibernate(id)
    with pytest.raises(SessionConflict, match="its files are kept"):
        await world.sessions.delete_workspace(id)
    await world.sessions.terminate(id)
    await world.sessions.delete_workspace(id)
    assert await world.sessions.box_of(id) is None
    assert await world.base.boxes.snapshots(key=f"thread/{id}") == []
    assert not (await world.session(id)).workspace
    await world.sessions.delete_workspace(id)
    assert (await world.types(id)).count("signal.session.workspace_deleted") == 1


async def test_sessions_are_listed_by_their_state(world: SessionWorld) -> None:
    first, second = await world.running(), await world.running()
    await world.base.threads.create(id="t-no-session")
    await world.sessions.hibernate(first)
    for states, expected in ((tuple(S), {first, second}), ((S.HIBERNATED,), {first}), ((S.ERROR,), set())):
        page = await world.sessions.list(RowFilter(session=states, archived=None))
        assert {row.id for row in page.rows} == expected


async def test_of_many_that_change_a_session_at_once_one_succeeds_each_time(world: SessionWorld) -> None:
    id = await world.running()
    logs = [SessionLog(world.base.log) for _ in range(8)]
    done = await asyncio.gather(*(each.move(id, S.HIBERNATING) for each in logs), return_exceptions=True)
    assert sum(not isinstance(each, BaseException) for each in done) == 1
    assert all(isinstance(each, SessionConflict) for each in done if isinstance(each, BaseException))
    assert (await world.states(id)).count("hibernating") == 1
