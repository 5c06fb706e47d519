"""Several processes on one store: they race, they die, and what they leave is cleaned up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.boxes.conftest import SPEC

from holdfast.api.box.records import BoxState
from holdfast.api.ids import now_ms
from holdfast.boxes.rows import BoxFilter
from holdfast.boxes.service.boxes import Boxes
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.dummy import DummyProvider

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).with_name("other_process.py")


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(SCRIPT), str(folder), *arguments]


def race(folder: Path, racers: int) -> list[list[str]]:
    """Start processes, let them go at once when all are ready, and give what each said."""
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(command(folder, "race", "k"), stdin=pipe, stdout=pipe, text=True) for _ in range(racers)
    ]
    for racer in running:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in running:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return [racer.communicate(timeout=240)[0].split() for racer in running]


def die(folder: Path, work: str, point: str) -> None:
    """Let a process kill itself at a point of some work."""
    assert subprocess.run(command(folder, "die", point, work), timeout=240, check=False).returncode == -9


@asynccontextmanager
async def minutes_later(folder: Path, minutes: int = 2) -> AsyncIterator[tuple[Boxes, DummyProvider]]:
    """A service on the same store, when every lease and every grace of the dead is over."""

    def clock() -> int:
        return now_ms() + minutes * 60_000

    async with (
        SqliteBoxes(folder / "data.db") as rows,
        DummyProvider(folder / "dummy", clock=clock) as provider,
    ):
        boxes = Boxes(rows, {"dummy": provider}, node="here", clock=clock)
        yield boxes, provider
        await boxes.close()


async def test_processes_that_race_for_one_key_get_one_box(tmp_path: Path) -> None:
    said = race(tmp_path, 4)
    assert len({id for id, _, _ in said}) == 1
    assert sorted(how for _, how, _ in said) == ["created", "resumed", "resumed", "resumed"]
    assert sum(int(created) for _, _, created in said) == 1
    async with minutes_later(tmp_path) as (boxes, provider):
        assert [info.id for info in await provider.find()] == [said[0][0]]
        assert [row.id for row in (await boxes.list(BoxFilter(live_only=False))).rows] == [said[0][0]]


@pytest.mark.parametrize(
    ("work", "point"),
    [
        ("create", "create"),
        ("create", "create.half"),
        ("create", "create.made"),
        ("delete", "remove"),
        ("delete", "remove.half"),
        ("delete", "remove.done"),
        ("work in a one-shot", ""),
    ],
)
async def test_what_a_killed_process_was_making_or_deleting_is_gone_after_the_next_sweep(
    tmp_path: Path, work: str, point: str
) -> None:
    die(tmp_path, work, point)
    async with minutes_later(tmp_path, 60 if work == "work in a one-shot" else 2) as (boxes, provider):
        await boxes.start()
        assert await provider.find() == []
        assert {row.state for row in (await boxes.list(BoxFilter(live_only=False))).rows} <= {BoxState.DELETED}
        left = sorted(str(path.relative_to(provider.folder)) for path in provider.folder.rglob("*"))
        assert [path for path in left if not path.endswith(".lock")] == [
            "boxes", "making", "removing", "snapshots", "volumes",
        ]  # fmt: skip
        assert (await boxes.acquire("k", SPEC)).row.state is BoxState.RUNNING


@pytest.mark.parametrize("point", ["create", "create.half", "create.made"])
async def test_after_a_process_was_killed_while_acquiring_the_key_has_one_box(tmp_path: Path, point: str) -> None:
    die(tmp_path, "acquire", point)
    async with minutes_later(tmp_path) as (boxes, provider):
        acquired = await boxes.acquire("k", SPEC)
        swept = await boxes.sweep()
        assert [info.id for info in await provider.find()] == [acquired.row.id]
        assert swept.failed == ()
        assert [row.id for row in (await boxes.list(BoxFilter())).rows] == [acquired.row.id]


@pytest.mark.parametrize(("work", "point"), [("stop", "stop"), ("snapshot", "snapshot.half")])
async def test_a_box_outlives_the_process_that_was_at_it(tmp_path: Path, work: str, point: str) -> None:
    die(tmp_path, work, point)
    async with minutes_later(tmp_path) as (boxes, provider):
        await boxes.sweep()
        (row,) = (await boxes.list(BoxFilter())).rows
        assert row.state is BoxState.RUNNING
        assert (await boxes.stop(row.id)).state is BoxState.STOPPED
        assert await provider.snapshots() == []
