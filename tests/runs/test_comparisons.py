"""Two branches of a thread are compared, with boxes and without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.runs.test_launch import pieces, tar
from tests.runs.turns import begin, box_of, finish, saved, turn, write
from tests.runs.world import World, a_world

from holdfast.api.box.records import OWNER_THREAD
from holdfast.api.errors.runs import NoFiles
from holdfast.api.run.checkpoints import Branch
from holdfast.runs.launch.plan import key_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path) as world:
        world.provider.takes_checkpoints = True
        yield world


async def two_branches(world: World) -> tuple[str, str]:
    thread = await turn(world, "one", a="1\n")
    fork = (await world.runs.forks.fork(thread)).row.id
    await turn(world, "two", thread, a="2\n")
    await turn(world, "differently", fork, b="3\n")
    return thread, fork


def changed(branch: Branch) -> set[str]:
    return {each.path for each in branch.files}


@pytest.mark.parametrize("without", [(), (0,), (0, 1)])
async def test_a_branch_without_a_box_is_compared_by_the_files_of_its_latest_turn(
    world: World, without: tuple[int, ...]
) -> None:
    branches = await two_branches(world)
    for number in without:
        await world.boxes.delete(await box_of(world, branches[number]))
    compared = await world.runs.comparisons.compare(*branches, test="cat a", seconds=60)
    assert [changed(each) for each in compared.branches] == [{"a"}, {"b"}]
    assert [each.test.output for each in compared.branches if each.test] == ["2\n", "1\n"]
    for number in without:
        assert await world.boxes.of_key(key_of(branches[number])) is None, "it was not given a box"
    live = await world.rows.live("default", "here")
    assert len(live) == 2 - len(without), "and nothing is left behind"


async def test_a_branch_without_box_and_checkpoint_is_refused(world: World) -> None:
    thread, fork = await two_branches(world)
    await world.boxes.delete(await box_of(world, thread))
    for snapshot in await world.boxes.checkpoints():
        if snapshot.labels.get(OWNER_THREAD) == thread and snapshot.id != await base_of(world, fork):
            await world.boxes.delete_snapshot(snapshot.id)
    with pytest.raises(NoFiles, match="has no box, and no saved files either"):
        await world.runs.comparisons.compare(thread, fork, test=None, seconds=60)


async def base_of(world: World, thread: str) -> str:
    base = (await world.threads.get(thread)).lineage.base
    assert base is not None
    return base.files.snapshot


async def test_caches_are_no_changes_although_a_checkpoint_has_them(world: World) -> None:
    digest = await world.runs.workspaces.keep(
        pieces(tar(**{"main": "x\n", "kept.log": "1\n", ".gitignore": "*.log\n"}))
    )
    runner = await begin(world, "one", workspace=digest)
    thread = runner.thread
    await write(world, thread, **{"__pycache__/main.pyc": "one", "new.log": "1\n"})
    await finish(world, runner, "done")
    await saved(world, thread)
    fork = (await world.runs.forks.fork(thread)).row.id
    await turn(
        world, "two", fork, **{"__pycache__/main.pyc": "two", "new.log": "2\n", "kept.log": "2\n", "main": "y\n"}
    )
    compared = await world.runs.comparisons.compare(thread, fork, test=None, seconds=60)
    assert [changed(each) for each in compared.branches] == [set(), {"main", "kept.log"}]
    async with world.runs.compared(fork) as shown:
        assert {each.path for each in (await shown.summary()).files} == {"main", "kept.log"}, "as diff shows them"
