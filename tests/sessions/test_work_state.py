"""What a session has changed is on its thread after each run, by the git of its box."""

from __future__ import annotations

import asyncio
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.world import PATIENCE
from tests.sessions.world import SessionWorld, a_world

from holdfast.api.box.records import BoxState
from holdfast.runs.launch.plan import key_of
from holdfast.sessions.work_state import parse_work
from holdfast.threads.session_events import MOST_FILES, WORK

pytestmark = pytest.mark.anyio
GIT = "git -c user.name=a -c user.email=a@b"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SessionWorld]:
    async with a_world(tmp_path) as world:
        yield world


async def shell(world: SessionWorld, id: str, script: str) -> str:
    """Run a script in the workspace, as an agent does."""
    row = await world.base.boxes.of_key(key_of(id))
    assert row is not None
    async with await world.base.boxes.open(row.id) as box:
        done = await box.exec(["sh", "-ec", script], cwd=box.spec.workdir)
    assert done.ok, done.stderr
    return done.stdout.decode()


async def worked(world: SessionWorld, id: str) -> dict[str, Any]:
    """What its thread says about its work after its next run."""
    await world.prompt(id)
    run = await world.answer(id)
    async with asyncio.timeout(PATIENCE):
        while (work := (await world.session(id)).work).get("run") != run:
            await world.sessions.settle(id)
            await asyncio.sleep(0.05)
    return work


async def test_the_branch_the_commits_and_the_files_are_told_after_each_run_once(world: SessionWorld) -> None:
    id = await world.running()
    await shell(world, id, f"git init -q -b main; printf '1\n2\n' > a; touch gone; git add .; {GIT} commit -qm first")
    first = await worked(world, id)
    assert (first["branch"], first["commits"], first["files"]) == ("main", 0, [])
    odd = "ä b\nc"
    await shell(
        world, id, f"git checkout -qb fix; printf '1\n3\n' > a; rm gone; echo new > '{odd}'; head -c 9 /dev/zero > z"
    )
    await shell(world, id, "git add z")
    work = await worked(world, id)
    assert (work["branch"], work["more"]) == ("fix", False)
    assert {each["path"]: each["status"] for each in work["files"]} == {
        "a": "modified", "gone": "deleted", "z": "added", "ä b\\nc": "added",
    }  # fmt: skip
    [changed] = [each for each in work["files"] if each["path"] == "a"]
    assert (changed["additions"], changed["deletions"]) == (1, 1)
    assert "additions" not in next(each for each in work["files"] if each["path"] == "z"), "it is binary"
    await world.restart()
    for _ in range(3):
        await world.sessions.sweep()
        await world.settled(id)
    assert (await world.types(id)).count(WORK) == 2


async def test_files_that_are_no_repository_are_not_told_and_disturb_nothing(world: SessionWorld) -> None:
    id = await world.running()
    await world.prompt(id)
    await world.answer(id)
    await world.settled(id)
    await world.prompt(id)
    await world.answer(id)
    assert (await world.session(id)).work == {}


def line(*records: bytes) -> bytes:
    return b64encode(b"".join(each + b"\0" for each in records)) + b"\n"


def test_what_the_git_of_a_box_says_is_bounded_and_checked() -> None:
    many = [b"%d" % number for number in range(MOST_FILES + 1)]
    said = b64encode(b"main\n") + b"\n" + b64encode(b"3\n") + b"\n" + line() + line() + line(*many)
    found = parse_work(said)
    assert found is not None
    assert (found["branch"], found["commits"], len(found["files"]), found["more"]) == ("main", 3, MOST_FILES, True)
    hostile = b"\n\n" + line(b"x\ty\t\x1b[31mred") + line(b"M", b"\x1b[31mred", b"odd") + line(b"\xff" * 400)
    found = parse_work(hostile)
    assert found is not None
    assert "branch" not in found
    assert all("\x1b" not in each["path"] and len(each["path"]) <= 300 for each in found["files"])
    for wrong in (b"", b"!\n" * 5, b"\n" * 4, b"\n" + b64encode(b"many") + b"\n\n\n\n"):
        assert parse_work(wrong) is None


def test_the_script_compares_with_the_commit_that_the_session_began_with(tmp_path: Path) -> None:
    from holdfast.sessions.work_state import _SCRIPT

    def run(*argv: str) -> bytes:
        return subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True).stdout

    run("sh", "-ec", f"git init -q -b main; echo 1 > a; git add .; {GIT} commit -qm first")
    base = run("git", "rev-parse", "HEAD").decode().strip()
    run("sh", "-ec", f"echo 2 > b; git add .; {GIT} commit -qm second; echo 3 >> a; git checkout -q --detach")
    found = parse_work(run("sh", "-c", _SCRIPT, "sh", base))
    assert found is not None
    assert found["commits"] == 1
    assert "branch" not in found
    assert {each["path"]: each["status"] for each in found["files"]} == {"a": "modified", "b": "added"}
    gone = parse_work(run("sh", "-c", _SCRIPT, "sh", "0" * 40))
    assert gone is not None
    assert (gone["commits"], [each["path"] for each in gone["files"]]) == (0, ["a"])
    assert parse_work(run("sh", "-c", _SCRIPT, "sh", "--output=/tmp/x")) == gone


async def test_a_session_that_falls_asleep_right_after_a_run_is_saved_whole(world: SessionWorld) -> None:
    id = await world.running()
    await shell(world, id, f"git init -q -b main; touch a; git add .; {GIT} commit -qm first")
    await world.prompt(id)
    await world.answer(id)
    await world.sessions.settle(id)
    await world.sessions.hibernate(id)
    row = await world.sessions.box_of(id)
    assert row is not None
    assert row.state is BoxState.HIBERNATED
