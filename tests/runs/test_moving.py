"""Threads whose box is moved to another provider: by a resume, or between two runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.runs.test_going_on import finished_run
from tests.runs.test_launch import pieces, tar
from tests.runs.world import PATIENCE, World

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, NoSpace, Unsupported
from holdfast.api.errors.runs import InvalidRun
from holdfast.boxes.service import move
from holdfast.boxes.workspace_copy import NOTES, home_of
from holdfast.runs.launch.plan import Options, Prompt

pytestmark = pytest.mark.anyio


async def a_thread_with_files(world: World, *, without_runner: bool = True) -> tuple[str, str]:
    """A thread whose agent has changed its workspace, and its box."""
    digest = await world.runs.workspaces.keep(pieces(tar(a="one\n", gone="x")))
    thread = await finished_run(world, workspace=digest)
    run = await world.latest(thread)
    assert run.box is not None
    assert run.process is not None
    async with await world.boxes.open(run.box) as box:
        await box.files.write("a", b"changed\n")
        await box.files.delete("gone")
        if without_runner:
            process = await box.process(run.process)
            await process.kill()
            async with asyncio.timeout(PATIENCE):
                await process.wait()
    return thread, run.box


def at(provider: str) -> object:
    return lambda options: replace(options, spec=replace(options.box, provider=provider))


async def check_files(world: World, id: str) -> None:
    async with await world.boxes.open(id) as box:
        assert await box.files.read("a") == b"changed\n"
        assert not await box.files.exists("gone")


@pytest.mark.parametrize("to", ["other", None])
async def test_a_box_that_version_0_1_prepared_keeps_its_files(world: World, to: str | None) -> None:
    thread, first = await a_thread_with_files(world)
    async with await world.boxes.open(first) as box:
        home = await home_of(box)
        note = await box.files.read(f"{home}/{NOTES}/{thread}")
        await box.files.delete(f"{home}/{NOTES}", recursive=True)
        await box.files.write(f"{home}/.holdfast/threads/{thread}/prepared", note)
    if to is None:
        await world.boxes.snapshot(first)  # which the next box begins with
        await world.boxes.delete(first)
    resumed = await world.runs.resume(thread, Prompt("and more"), change=at(to or "dummy"))  # type: ignore[arg-type]
    run = (await world.runner(resumed)).run
    assert run.box not in (None, first)
    assert run.box is not None
    await check_files(world, run.box)


async def test_a_resume_at_another_provider_goes_on_with_the_files_and_a_rebuilt_session(world: World) -> None:
    thread, first = await a_thread_with_files(world)
    resumed = await world.runs.resume(thread, Prompt("and more"), change=at("other"))  # type: ignore[arg-type]
    run = (await world.runner(resumed)).run
    assert run.box is not None
    assert (run.provider, run.box_how, run.files, run.session) == ("other", "moved", "kept", "rebuilt")
    assert world.agents.scripted.rebuilt_from == [["I did it"]]
    task = world.agents.scripted.tasks[-1]
    assert task.prompt == "[You are in another machine, with the same files.]\n\nand more"
    await check_files(world, run.box)
    assert [info.id for info in await world.provider.find()] == []
    [found] = [each for each in await world.entries(thread) if each["payload"].get("how") == "moved"]
    assert found["payload"]["why"] == f"moved from box {first} of dummy"


async def test_a_box_that_was_moved_between_two_runs_stays_where_it_is(world: World) -> None:
    thread, first = await a_thread_with_files(world)
    moved = (await world.boxes.move(first, lambda spec: replace(spec, provider="other"))).row
    changes = await world.runs.changes(thread)
    assert [(each.path, each.how) for each in changes.files] == [("a", "changed"), ("gone", "deleted")]
    run = (await world.runner(await world.runs.resume(thread))).run
    assert (run.box, run.provider, run.files, run.session) == (moved.id, "other", "kept", "rebuilt")
    await check_files(world, moved.id)
    await (await world.runner(await world.runs.get(thread))).end()  # type: ignore[arg-type]
    # Who launches again and says nothing of a box gets this one, in which the session is known now.
    launched = await world.runs.launch(Prompt("more"), Options("scripted", None), thread=thread)
    assert (await world.runner(launched)).run.box == moved.id


async def test_another_network_keeps_the_files_where_the_policy_of_a_box_cannot_be_changed(world: World) -> None:
    thread, first = await a_thread_with_files(world)

    def opened(options: Options) -> Options:
        return replace(options, spec=replace(options.box, network=NetworkPolicy(Network.OPEN)))

    run = (await world.runner(await world.runs.resume(thread, change=opened))).run
    assert run.box not in (None, first)
    assert (run.box_how, run.files) == ("moved", "kept")
    assert run.box is not None
    await check_files(world, run.box)


async def test_a_fresh_box_with_other_limits_has_the_files_of_the_old_one(world: World) -> None:
    thread, _ = await a_thread_with_files(world)

    def change(options: Options) -> Options:
        return replace(options, fresh=True, spec=replace(options.box, env={"OTHER": "machine"}))

    run = (await world.runner(await world.runs.resume(thread, change=change))).run
    assert run.files == "kept"
    assert run.box is not None
    await check_files(world, run.box)


async def test_a_move_is_refused_before_the_run_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move, "STILL_SECONDS", 0.0)
    thread, first = await a_thread_with_files(world, without_runner=False)
    before = await world.entries(thread)
    with pytest.raises(BoxConflict, match=f"a process runs in box {first}"):
        await world.runs.resume(thread, change=at("other"))  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="there is no provider nowhere"):
        await world.runs.resume(thread, change=at("nowhere"))  # type: ignore[arg-type]
    assert await world.entries(thread) == before


async def test_a_move_that_fails_ends_the_run_and_the_next_one_goes_on_in_the_old_box(world: World) -> None:
    thread, first = await a_thread_with_files(world)
    world.other.fail_next("create", NoSpace("full"))
    resumed = await world.runs.resume(thread, change=at("other"))  # type: ignore[arg-type]
    assert ((await world.settled(resumed)).error or {})["code"] == "no_space"
    again = await world.runs.resume(thread, change=at("dummy"))  # type: ignore[arg-type]
    assert (await world.runner(again)).run.box == first
    await check_files(world, first)


async def test_an_image_that_a_file_may_have_named_is_not_pulled_by_another_provider(world: World) -> None:
    """This provider had an image of that name, so nobody was asked. The other would pull it, from wherever it leads."""
    thread = await finished_run(world, spec=BoxSpec(provider="dummy", image="registry.test/evil:1"))
    before = await world.entries(thread)
    with pytest.raises(InvalidRun, match=r"other would pull image registry\.test/evil:1") as refused:
        await world.runs.resume(thread, change=at("other"))  # type: ignore[arg-type]
    assert "--image registry.test/evil:1" in str(refused.value.hint)
    assert await world.entries(thread) == before
    box = (await world.latest(thread)).box
    assert box is not None
    await world.boxes.delete(box)  # then the next one would be made there
    with pytest.raises(InvalidRun, match="other would pull image"):
        await world.runs.resume(thread, change=at("other"))  # type: ignore[arg-type]
    resumed = await world.runs.resume(thread, change=at("other"), names_image=True)  # type: ignore[arg-type]
    assert (await world.runner(resumed)).run.provider == "other"
