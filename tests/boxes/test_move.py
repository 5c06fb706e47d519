"""Moves of boxes between providers: what travels, what is refused, and what is left when something fails."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.boxes.conftest import SPEC
from tests.boxes.test_processes import die

from holdfast.api.box.box import Box
from holdfast.api.box.records import BoxState, Owner
from holdfast.api.box.spec import BoxSpec, Lifetime, OnIdle, VolumeMount
from holdfast.api.errors.boxes import BoxConflict, BoxGone, CreateFailed, NoSpace, Unsupported
from holdfast.api.ids import now_ms
from holdfast.boxes import workspace_copy
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import KEY, MOVED_FROM
from holdfast.boxes.rows import BoxFilter
from holdfast.boxes.service import move
from holdfast.boxes.service.acquire_rules import How
from holdfast.boxes.service.boxes import Boxes
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import CAPABILITIES, DummyProvider

pytestmark = pytest.mark.anyio

POINTS = ["create", "create.half", "create.made"]


def to_other(spec: BoxSpec) -> BoxSpec:
    return replace(spec, provider="other")


@pytest.fixture
async def other(tmp_path: Path, clock: ManualClock) -> AsyncIterator[DummyProvider]:
    async with DummyProvider(tmp_path / "other", name="other", clock=clock.now) as other:
        yield other


@pytest.fixture
async def boxes(
    rows: SqliteBoxes, provider: DummyProvider, other: DummyProvider, clock: ManualClock
) -> AsyncIterator[Boxes]:
    boxes = Boxes(rows, {"dummy": provider, "other": other}, node="here", clock=clock.now)
    yield boxes
    await boxes.close()


async def fill(box: Box) -> None:
    """All kinds of files, with modes and times."""
    await box.files.write("src/run.sh", b"echo hello\n", mode=0o750)
    await box.files.write("empty", b"")
    script = (
        "ln -s src/run.sh link; ln -s /nowhere broken; ln src/run.sh hard; mkdir -p deep/er; chmod 700 deep/er;"
        "touch -d @1000000000 src/run.sh empty deep/er; touch -h -d @1100000000 link; touch -d @1200000000 deep ."
    )
    done = await box.exec(["sh", "-c", script])
    assert done.ok, done.stderr


async def listing(box: Box) -> str:
    """Everything in the workspace, and the workspace itself: kinds, modes, links, times in seconds, contents."""
    script = (
        "find . -printf '%P %y %m %l %n %T@\\n' | sed 's/\\.[0-9]*$//' | sort;"
        " find . -type f | sort | xargs -d '\\n' cat"
    )
    done = await box.exec(["sh", "-c", script])
    assert done.ok, done.stderr
    return done.text


async def test_a_move_takes_the_files_the_key_and_the_owner_and_deletes_the_old_box(
    boxes: Boxes, provider: DummyProvider, other: DummyProvider
) -> None:
    owner = Owner(thread="t-1")
    spec = replace(SPEC, env={"TOKEN": "secret"}, labels={"team": "a"}, lifetime=Lifetime.EPHEMERAL, idle_seconds=60)
    row = (await boxes.acquire("k", spec, owner=owner)).row
    async with await boxes.open(row.id) as box:
        await fill(box)
        before = await listing(box)
    moved = await boxes.move(row.id, to_other)
    new = moved.row
    assert (new.provider, new.key, new.owner.thread, new.state) == ("other", "k", "t-1", BoxState.RUNNING)
    assert new.spec == to_other(spec)
    assert (new.labels["team"], new.labels[KEY], new.labels[MOVED_FROM]) == ("a", "k", row.id)
    assert (moved.entries, moved.bytes) == (8, len("echo hello\n"))
    async with await boxes.open(new.id) as box:
        assert await listing(box) == before
        assert (await box.exec(["sh", "-c", "printf %s $TOKEN"])).text == "secret"
    old = await boxes.get(row.id)
    assert (old.state, old.ended_why, old.key) == (BoxState.DELETED, f"moved to box {new.id} of other", None)
    with pytest.raises(BoxGone, match=f"moved to box {new.id}"):
        await boxes.open(row.id)
    assert await provider.find() == []
    assert [info.id for info in await other.find()] == [new.id]
    acquired = await boxes.acquire("k", to_other(spec))
    assert (acquired.row.id, acquired.how) == (new.id, How.RESUMED)
    back = await boxes.move(new.id, lambda spec: replace(spec, provider="dummy"))
    async with await boxes.open(back.row.id) as box:
        assert await listing(box) == before


async def test_the_new_workspace_has_nothing_but_the_old_files(boxes: Boxes, other: DummyProvider) -> None:
    """An image may bring files into its workdir."""
    row = await boxes.create(SPEC)

    async def add() -> None:
        [made] = await other.find()
        async with await other.attach(made.id) as box:
            await box.files.write("of-the-image/file", b"")

    other.at["create.made"] = add
    new = (await boxes.move(row.id, to_other)).row
    async with await boxes.open(new.id) as box:
        assert await box.files.list() == []


async def test_a_kept_box_is_stopped_and_only_its_id_leads_to_it(boxes: Boxes) -> None:
    row = (await boxes.acquire("k", SPEC, owner=Owner(thread="t-1"))).row
    async with await boxes.open(row.id) as box:
        await box.files.write("a.txt", b"one")
    new = (await boxes.move(row.id, to_other, keep=True)).row
    old = await boxes.get(row.id)
    assert (old.state, old.key, old.owner.thread) == (BoxState.STOPPED, None, None)
    assert KEY not in old.labels
    assert await boxes.resolve("k") == new.id
    await boxes.sweep()
    await boxes.start_box(old.id)
    async with await boxes.open(old.id) as box:
        assert await box.files.read("a.txt") == b"one"


@pytest.mark.parametrize("state", ["stopped", "hibernated"])
async def test_a_box_that_does_not_run_is_moved_and_stays_as_it_was_if_that_fails(
    boxes: Boxes, other: DummyProvider, state: str
) -> None:
    row = (await boxes.acquire("k", replace(SPEC, on_idle=OnIdle.HIBERNATE))).row
    async with await boxes.open(row.id) as box:
        await box.files.write("a.txt", b"one")
    await (boxes.stop if state == "stopped" else boxes.hibernate)(row.id)
    other.fail_next("create", NoSpace("full"))
    with pytest.raises(NoSpace):
        await boxes.move(row.id, to_other)
    if state == "stopped":
        assert (await boxes.get(row.id)).state is BoxState.STOPPED
    new = (await boxes.move(row.id, to_other)).row
    async with await boxes.open(new.id) as box:
        assert await box.files.read("a.txt") == b"one"
    assert await boxes.snapshots() == []


@pytest.mark.parametrize("point", POINTS)
async def test_a_move_that_fails_leaves_the_old_box_and_no_other(
    boxes: Boxes, provider: DummyProvider, other: DummyProvider, point: str
) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    other.fail_next(point, NoSpace("full"))
    with pytest.raises(NoSpace):
        await boxes.move(row.id, to_other)
    assert await other.find() == []
    assert (await boxes.get(row.id)).state is BoxState.RUNNING
    assert (await boxes.acquire("k", SPEC)).row.id == row.id


@pytest.mark.parametrize("point", POINTS)
async def test_a_move_that_is_cancelled_leaves_the_old_box_and_no_other(
    boxes: Boxes, other: DummyProvider, point: str
) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    other.at[point] = hang
    moving = asyncio.create_task(boxes.move(row.id, to_other))
    await reached.wait()
    assert (await boxes.get(row.id)).state is BoxState.MOVING
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert await other.find() == []
    assert (await boxes.acquire("k", SPEC)).row.id == row.id


async def test_a_move_that_is_cancelled_in_its_last_moment_has_happened(
    boxes: Boxes, rows: SqliteBoxes, provider: DummyProvider, other: DummyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    swap_all = rows.swap_all

    async def swap_and_cancel(changes: object) -> None:
        moving.cancel()
        await swap_all(changes)  # type: ignore[arg-type]

    monkeypatch.setattr(rows, "swap_all", swap_and_cancel)
    moving = asyncio.create_task(boxes.move(row.id, to_other))
    with pytest.raises(asyncio.CancelledError):
        await moving
    new = (await boxes.acquire("k", to_other(SPEC))).row
    assert new.labels[MOVED_FROM] == row.id
    assert [info.id for info in await other.find()] == [new.id]
    await boxes.sweep()
    assert await provider.find() == []


async def test_what_the_target_cannot_do_is_refused_before_anything_is_done(
    rows: SqliteBoxes, provider: DummyProvider, tmp_path: Path, clock: ManualClock
) -> None:
    less = CAPABILITIES - {Capability.NETWORK_NONE}
    async with DummyProvider(tmp_path / "less", name="other", capabilities=less) as other:
        boxes = Boxes(rows, {"dummy": provider, "other": other}, node="here", clock=clock.now)
        row = (await boxes.acquire("k", SPEC)).row
        for attempt in (boxes.move, boxes.check_move):
            with pytest.raises(Unsupported, match="provider other does not support network-none"):
                await attempt(row.id, to_other)
            with pytest.raises(Unsupported, match="there is no provider nowhere"):
                await attempt(row.id, lambda spec: replace(spec, provider="nowhere"))
        assert await boxes.get(row.id) == row
        assert other.calls["create"] == 0
        await boxes.close()


async def test_volumes_one_shot_boxes_and_whole_machines_stay_where_they_are(boxes: Boxes) -> None:
    await boxes.create_volume("cache", "dummy")
    with_volume = await boxes.create(replace(SPEC, volumes=(VolumeMount("cache", "/cache"),)))
    with pytest.raises(Unsupported, match="volumes of dummy, which stay there: cache"):
        await boxes.move(with_volume.id, to_other)
    one_shot = await boxes.create(replace(SPEC, lifetime=Lifetime.ONE_SHOT))
    with pytest.raises(BoxConflict, match="one-shot"):
        await boxes.move(one_shot.id, to_other)
    whole = await boxes.create(replace(SPEC, workdir="/"))
    with pytest.raises(Unsupported, match="only a folder can be moved"):
        await boxes.move(whole.id, to_other)


async def test_a_box_at_work_is_not_moved_unless_its_processes_are_ended(
    boxes: Boxes, other: DummyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move, "STILL_SECONDS", 0.0)
    row = await boxes.create(SPEC)
    with boxes.using(row.id), pytest.raises(BoxConflict, match="in use"):
        await boxes.move(row.id, to_other)
    async with await boxes.open(row.id) as box:
        await box.spawn(["sleep", "600"])
    for attempt in (boxes.move, boxes.check_move):
        with pytest.raises(BoxConflict, match="a process runs in box") as refused:
            await attempt(row.id, to_other)
        assert refused.value.hint is not None
        assert f"holdfast box stop {row.id}" in refused.value.hint
    assert (await boxes.get(row.id)).state is BoxState.RUNNING
    assert other.calls["create"] == 0
    assert (await boxes.move(row.id, to_other, stop=True)).row.provider == "other"


async def test_processes_that_are_about_to_end_are_waited_for(boxes: Boxes) -> None:
    row = await boxes.create(SPEC)
    async with await boxes.open(row.id) as box:
        await box.spawn(["sleep", "0.3"])
    assert (await boxes.move(row.id, to_other)).row.provider == "other"


async def test_a_box_that_is_being_moved_can_be_seen_but_not_used(boxes: Boxes, other: DummyProvider) -> None:
    row = (await boxes.acquire("k", SPEC)).row
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await go_on.wait()

    other.at["create.half"] = hang
    moving = asyncio.create_task(boxes.move(row.id, to_other))
    await reached.wait()
    assert (await boxes.get(row.id)).state is BoxState.MOVING
    for refused in (boxes.open, boxes.stop, boxes.start_box, boxes.snapshot):
        with pytest.raises(BoxConflict, match="being moved"):
            await refused(row.id)
    await boxes.sweep()
    acquiring = asyncio.create_task(boxes.acquire("k", to_other(SPEC)))
    go_on.set()
    moved = await moving
    assert (await acquiring).row.id == moved.row.id


async def test_a_file_that_cannot_be_read_is_named_and_nothing_is_moved(boxes: Boxes, other: DummyProvider) -> None:
    row = await boxes.create(SPEC)
    async with await boxes.open(row.id) as box:
        await box.files.mkdir("closed")
        name = "deep/" * 520 + "x"
        done = await box.exec(["sh", "-c", f"mkdir -p {name}"])
        assert done.ok
    with pytest.raises(Exception, match="deep"):
        await boxes.move(row.id, to_other)
    assert await other.find() == []
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


async def test_files_that_arrive_changed_end_the_move(
    boxes: Boxes, other: DummyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await boxes.create(SPEC)
    async with await boxes.open(row.id) as box:
        await box.files.write("a.txt", b"one")
        files = type(box.files)
    whole = files.upload_tar

    async def lose_the_mode(self: object, archive: object, path: str) -> None:
        await whole(self, archive, path)  # type: ignore[arg-type]
        for folder, _, names in os.walk(other.folder / "boxes"):
            for each in names:
                if each == "a.txt":
                    (Path(folder) / each).chmod(stat.S_IRWXU)

    monkeypatch.setattr(files, "upload_tar", lose_the_mode)
    with pytest.raises(CreateFailed, match="not the same in the new box"):
        await boxes.move(row.id, to_other)
    assert await other.find() == []
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


@pytest.mark.parametrize(
    "answer",
    ["", "[" * 100_000, "[]", '{"digest": 1}', '{"digest": "a", "entries": true}', '{"problem": ["x"]}', "9" * 9000],
)
async def test_whatever_a_box_says_of_its_files_a_move_ends_with_an_error_of_its_own(
    boxes: Boxes, other: DummyProvider, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    row = await boxes.create(SPEC)
    monkeypatch.setattr(workspace_copy, "_program", lambda: f"import sys; sys.stdout.write({answer!r})")
    with pytest.raises(CreateFailed):
        await boxes.move(row.id, to_other)
    assert await other.find() == []
    assert (await boxes.get(row.id)).state is BoxState.RUNNING


@pytest.mark.parametrize("point", [*POINTS, "commit", "committed", "remove", "remove.half", "remove.done"])
async def test_whoever_dies_during_a_move_leaves_one_whole_box_for_the_key(tmp_path: Path, point: str) -> None:
    die(tmp_path, "move", point)

    def clock() -> int:
        return now_ms() + 120_000

    async with (
        SqliteBoxes(tmp_path / "data.db") as rows,
        DummyProvider(tmp_path / "dummy", clock=clock) as provider,
        DummyProvider(tmp_path / "other", name="other", clock=clock) as other,
    ):
        boxes = Boxes(rows, {"dummy": provider, "other": other}, node="here", clock=clock)
        await boxes.sweep()
        [row] = (await boxes.list(BoxFilter())).rows
        assert row.state is BoxState.RUNNING
        assert row.key == "k"
        assert row.provider == ("dummy" if point in (*POINTS, "commit") else "other")
        assert [info.id for info in [*await provider.find(), *await other.find()]] == [row.id]
        async with await boxes.open(row.id) as box:
            assert await box.files.read("a.txt") == b"one"
        await boxes.close()


async def test_a_moved_box_has_its_key_after_the_store_was_lost_if_the_old_one_is_gone(
    boxes: Boxes, provider: DummyProvider, other: DummyProvider, tmp_path: Path, clock: ManualClock
) -> None:
    for key, keep in (("gone", False), ("kept", True)):
        row = (await boxes.acquire(key, SPEC)).row
        await boxes.move(row.id, to_other, keep=keep)
    clock.advance(120_000)
    async with SqliteBoxes(tmp_path / "new.db") as rows:
        again = Boxes(rows, {"dummy": provider, "other": other}, node="here", clock=clock.now)
        await again.sweep()
        found = {(row.key, row.provider) for row in (await again.list(BoxFilter())).rows}
        assert found == {("gone", "other"), ("kept", "dummy"), (None, "other")}
        await again.close()
