"""Real boxes that do nothing fall asleep, and those that work do not, whoever looks at them meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.machine import needs_groups

from holdfast.api.box.box import Box, Metrics, Power
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import BoxSpec, Lifetime, OnIdle
from holdfast.api.errors.boxes import BoxGone, BoxStopped, ConnectRefused
from holdfast.api.ids import now_ms
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import HIBERNATION
from holdfast.boxes.network_policy import Traffic
from holdfast.boxes.service.boxes import Boxes
from holdfast.providers.host.box import LocalBox
from holdfast.providers.local import LocalProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.provider_suite.base import eventually

pytestmark = pytest.mark.anyio

IDLE = 30
HIBERNATE = BoxSpec(on_idle=OnIdle.HIBERNATE, idle_seconds=IDLE)
PAUSE = BoxSpec(on_idle=OnIdle.PAUSE, idle_seconds=IDLE)
DELETE = BoxSpec(lifetime=Lifetime.EPHEMERAL, idle_seconds=IDLE)


@dataclass
class World:
    """A service on real boxes, whose clock can be put forward: idle times pass without anybody waiting."""

    home: Path
    provider: LocalProvider
    boxes: Boxes
    ahead: int = 0
    ended: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By box: when its work ended at the latest, and how far the clock was ahead then."""
    busy: set[str] = field(default_factory=set)

    def put_forward(self, id: str, metrics: Metrics, asked: float) -> Metrics:
        """What a box would say whose own clock had been put forward, too. It was asked at that time, and may have taken
        long to answer.
        """
        works = bool(metrics.processes or metrics.connections)
        is_later = id in self.ended and asked - metrics.idle_seconds > self.ended[id][0] + 0.05
        if id not in self.ended or works or id in self.busy or is_later:
            self.ended[id] = (time.monotonic() - metrics.idle_seconds, self.ahead)
        self.busy = self.busy | {id} if works else self.busy - {id}
        gone_by = (self.ahead - self.ended[id][1]) / 1000
        return replace(metrics, idle_seconds=metrics.idle_seconds + gone_by)

    def clock(self) -> int:
        return now_ms() + self.ahead

    async def pass_time(self, seconds: float) -> None:
        """Let time go by, and let the service look at its boxes as it would."""
        self.ahead += int(seconds * 1000)
        await self.boxes.sweep()

    async def state(self, id: str) -> BoxState:
        return (await self.boxes.get(id)).state

    async def snapshots(self, id: str) -> list[str]:
        return [each.id for each in await self.provider.snapshots({HIBERNATION: id})]


@contextlib.asynccontextmanager
async def opened(home: Path) -> AsyncIterator[World]:
    async with LocalProvider(home) as provider, SqliteBoxes(home / "data.db") as rows:
        world: World
        boxes = Boxes(rows, {"local": provider}, node="here", clock=lambda: world.clock())
        world = World(home, provider, boxes)
        try:
            yield world
        finally:
            await boxes.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with opened(tmp_path) as world:
        activity = LocalBox.activity

        async def put_forward(box: LocalBox) -> Metrics:
            asked = time.monotonic()
            return world.put_forward(box.id, await activity(box), asked)

        monkeypatch.setattr(LocalBox, "activity", put_forward)
        try:
            yield world
        finally:
            for info in await world.provider.find():
                await world.provider.remove(info.id)


async def spawned(box: Box, *argv: str) -> Callable[[], Awaitable[None]]:
    """A process that says when it is at work; what this gives ends it."""
    process = await box.spawn(list(argv))

    async def end() -> None:
        await process.signal(9)
        await process.wait(240)

    return end


async def burn(box: Box) -> Callable[[], Awaitable[None]]:
    return await spawned(box, "sh", "-c", "while :; do :; done")


async def burned(box: Box, seconds: float) -> None:
    before = (await box.activity()).work_seconds or 0.0

    async def done() -> bool:
        return ((await box.activity()).work_seconds or 0.0) >= before + seconds

    await eventually(done, "it does not work")


async def listen(box: Box) -> Callable[[], Awaitable[None]]:
    end = await spawned(box, "python3", "-m", "http.server", "8123")

    async def listens() -> bool:
        return bool((await box.activity()).listening)

    await eventually(listens, "it does not listen")
    return end


async def hold_a_channel(box: Box) -> Callable[[], Awaitable[None]]:
    return (await box.channel(["cat"])).close


async def run_something(box: Box) -> Callable[[], Awaitable[None]]:
    running = asyncio.create_task(box.exec(["sleep", "1000"]))

    async def runs() -> bool:
        return (await box.activity()).processes > 0

    await eventually(runs, "it does not run")

    async def end() -> None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    return end


@pytest.mark.parametrize("work", [burn, listen, hold_a_channel, run_something])
async def test_a_box_is_idle_from_the_end_of_its_work(
    world: World, work: Callable[[Box], Awaitable[Callable[[], Awaitable[None]]]]
) -> None:
    row = await world.boxes.create(HIBERNATE)
    async with await world.boxes.open(row.id) as box:
        end = await work(box)
        await world.boxes.sweep()
        for _ in range(3):
            if work is burn:
                await burned(box, 0.02 * IDLE)  # the clock is put forward, and the processor is not
            await world.pass_time(IDLE - 1)
            assert await world.state(row.id) is BoxState.RUNNING
        await end()
        await world.boxes.sweep()
        await world.pass_time(IDLE - 1)
        assert await world.state(row.id) is BoxState.RUNNING
        await world.pass_time(2)
        assert await world.state(row.id) is BoxState.HIBERNATED


async def test_a_process_that_merely_sleeps_keeps_no_box_awake_and_neither_does_who_looks(world: World) -> None:
    row = await world.boxes.create(HIBERNATE)
    async with await world.boxes.open(row.id) as box:
        await spawned(box, "sh", "-c", "while :; do sleep 0.5; done")
    await world.boxes.sweep()
    for _ in range(3):
        await world.pass_time(9)
        async with await world.boxes.peek(row.id) as box:
            assert (await box.metrics()).processes >= 1
            assert all(step.ok for step in await box.ping())
        assert (await world.provider.diagnose(row.id))[-1].ok
        await world.boxes.get(row.id)
        assert await world.state(row.id) is BoxState.RUNNING
    await world.pass_time(9)
    assert await world.state(row.id) is BoxState.HIBERNATED


async def test_an_open_connection_to_the_network_is_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await world.boxes.create(DELETE)
    monkeypatch.setattr(world.provider.sandbox, "traffic", lambda id: Traffic(1, 1, open=1))
    await world.pass_time(100)
    assert await world.state(row.id) is BoxState.RUNNING
    monkeypatch.setattr(world.provider.sandbox, "traffic", lambda id: Traffic(1, 1, open=0))
    await world.pass_time(IDLE)
    assert await world.state(row.id) is BoxState.DELETED


async def test_idle_time_goes_on_when_the_server_is_started_again(world: World) -> None:
    row = await world.boxes.create(DELETE)
    await world.boxes.sweep()
    await world.pass_time(IDLE - 5)
    async with opened(world.home) as other:
        other.ahead = world.ahead = world.ahead + 4000
        await other.boxes.sweep()
        assert await other.state(row.id) is BoxState.RUNNING
        world.ahead += 1000
        await other.pass_time(1)
        assert await other.state(row.id) is BoxState.DELETED


async def test_short_idle_times_are_kept_without_a_sweep(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider, SqliteBoxes(tmp_path / "data.db") as rows:
        boxes = Boxes(rows, {"local": provider}, node="here", sweep_seconds=600)
        try:
            await boxes.start()
            row = await boxes.create(BoxSpec(on_idle=OnIdle.DELETE, idle_seconds=1))

            async def deleted() -> bool:
                return (await boxes.get(row.id)).state is BoxState.DELETED

            await eventually(deleted, "nobody looks after it")
        finally:
            await boxes.close()


# Hibernation


async def test_a_hibernated_box_has_no_memory_and_wakes_on_its_files(world: World) -> None:
    row = await world.boxes.create(HIBERNATE)
    async with await world.boxes.open(row.id) as box:
        await box.files.write("notes", b"1")
        await box.exec(["sh", "-c", "rm -rf gone; mkdir folder; ln -s notes folder/link; chmod 600 notes"])
        await world.boxes.sweep()
        await world.pass_time(IDLE + 1)
        assert await world.state(row.id) is BoxState.HIBERNATED
        assert world.provider.sandbox.usage(row.id).memory is None
        assert await box.power() is Power.STOPPED
        # The handle was opened before it slept, and wakes it.
        assert (await box.exec(["cat", "folder/../notes"])).stdout == b"1"
    assert await world.state(row.id) is BoxState.RUNNING


async def refused(connecting: Awaitable[object]) -> None:
    with pytest.raises(ConnectRefused):
        await connecting


REQUESTS: dict[str, Callable[[Box], Awaitable[object]]] = {
    "exec": lambda box: box.exec(["true"]),
    "spawn": lambda box: box.spawn(["true"]),
    "channel": lambda box: box.channel(["cat"]),
    "read": lambda box: box.files.read("notes"),
    "write": lambda box: box.files.write("notes", b"2"),
    "list": lambda box: box.files.list("."),
    "connect": lambda box: refused(box.connect(1)),
}


@pytest.mark.parametrize("sleep", ["hibernate", pytest.param("pause", marks=needs_groups)])
async def test_whatever_is_asked_of_a_sleeping_box_wakes_it(world: World, sleep: str) -> None:
    row = await world.boxes.create(HIBERNATE)
    async with await world.boxes.open(row.id) as box:
        await box.files.write("notes", b"1")
        for name, ask in REQUESTS.items():
            await getattr(world.boxes, sleep)(row.id)
            assert await world.state(row.id) in (BoxState.HIBERNATED, BoxState.PAUSED)
            asked = await ask(box)
            if hasattr(asked, "close"):
                await asked.close()
            assert await world.state(row.id) is BoxState.RUNNING, name


async def test_a_hundred_who_ask_at_once_wake_a_box_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await world.boxes.create(HIBERNATE)
    await world.boxes.hibernate(row.id)
    started: list[str] = []
    launch = world.provider.sandbox.launch

    async def counted(record: object) -> int:
        started.append("")
        return await launch(record)  # type: ignore[arg-type]

    monkeypatch.setattr(world.provider.sandbox, "launch", counted)

    async def ask(number: int) -> bytes:
        async with await world.boxes.open(row.id) as box:
            return (await box.exec(["echo", str(number)])).stdout

    assert await asyncio.gather(*(ask(number) for number in range(100))) == [b"%d\n" % each for each in range(100)]
    assert len(started) == 1


@needs_groups
async def test_looking_at_a_sleeping_box_does_not_wake_it(world: World) -> None:
    row = await world.boxes.create(HIBERNATE)
    for sleep, state in ((world.boxes.pause, BoxState.PAUSED), (world.boxes.hibernate, BoxState.HIBERNATED)):
        await sleep(row.id)
        async with await world.boxes.peek(row.id) as box:
            with contextlib.suppress(BoxStopped):
                assert (await box.metrics()).memory is not None
            await box.ping()
            await box.processes()
        await world.boxes.sweep()
        assert await world.state(row.id) is state


async def test_a_box_that_somebody_stopped_stays_stopped(world: World) -> None:
    row = await world.boxes.create(HIBERNATE)
    await world.boxes.hibernate(row.id)
    assert (await world.boxes.stop(row.id)).state is BoxState.STOPPED
    async with await world.boxes.open(row.id) as box:
        with pytest.raises(BoxStopped):
            await box.exec(["true"])
    assert (await world.boxes.start_box(row.id)).state is BoxState.RUNNING


async def test_files_that_were_lost_come_back_from_the_snapshot(world: World) -> None:
    row = await world.boxes.create(HIBERNATE)
    async with await world.boxes.open(row.id) as box:
        await box.files.write("notes", b"precious")
    await world.boxes.hibernate(row.id)
    await world.provider.remove(row.id)
    await world.boxes.sweep()
    assert await world.state(row.id) is BoxState.HIBERNATED
    async with await world.boxes.open(row.id) as box:
        assert await box.files.read("notes") == b"precious"
    assert await world.state(row.id) is BoxState.RUNNING


async def test_many_sleeps_leave_one_snapshot_and_few_layers(world: World) -> None:
    row = await world.boxes.create(HIBERNATE)
    for number in range(12):
        async with await world.boxes.open(row.id) as box:
            await box.files.write("large", bytes([number]) * 1_000_000)
            await box.files.write(f"small-{number}", b"%d" % number)
        await world.boxes.hibernate(row.id)
        assert len(await world.snapshots(row.id)) == 1
    layers = [path for path in world.provider.data_dir.layers.iterdir() if path.name.startswith("l-")]
    assert len(layers) <= 6
    assert sum(file.stat().st_size for layer in layers for file in layer.rglob("large")) <= 6_000_000
    async with await world.boxes.open(row.id) as box:
        assert await box.files.read("large") == bytes([11]) * 1_000_000
        assert (await box.exec(["sh", "-c", "ls small-* | wc -l"])).text.strip() == "12"
    await world.boxes.delete(row.id)
    assert await world.snapshots(row.id) == []
    assert [path for path in world.provider.data_dir.layers.iterdir() if path.name.startswith("l-")] == []
    with pytest.raises(BoxGone):
        await world.boxes.open(row.id)


@needs_groups
async def test_an_acquire_wakes_what_sleeps(world: World) -> None:
    row = (await world.boxes.acquire("k", HIBERNATE)).row
    await world.boxes.hibernate(row.id)
    again = await world.boxes.acquire("k", HIBERNATE)
    assert (again.row.id, again.row.state, again.why) == (
        row.id,
        BoxState.RUNNING,
        "it was hibernated and has been woken",
    )
    await world.boxes.pause(row.id)
    assert (await world.boxes.acquire("k", HIBERNATE)).why == "it was paused and has been woken"
    await world.boxes.hibernate(row.id)
    await world.provider.remove(row.id)
    restored = await world.boxes.acquire("k", HIBERNATE)
    assert restored.how.value == "restored"


# Pausing


@needs_groups
async def test_a_paused_box_goes_on_where_it_was(world: World) -> None:
    assert Capability.PAUSE in world.provider.capabilities
    row = await world.boxes.create(PAUSE)
    async with await world.boxes.open(row.id) as box:
        process = await box.spawn(["sh", "-c", "while :; do date +%s.%N; sleep 0.02; done"])
        await world.boxes.sweep()
        await asyncio.sleep(0.3)
        await world.boxes.pause(row.id)
        assert await box.power() is Power.PAUSED
        printed = len(await process.read("stdout"))
        await asyncio.sleep(0.2)
        assert len(await process.read("stdout")) == printed
        assert (await box.metrics()).disk
        async with opened(world.home) as other:  # a server that was started again finds it as it was
            await other.boxes.sweep()
            assert await other.state(row.id) is BoxState.PAUSED
            async with await other.boxes.open(row.id) as woken:
                assert (await woken.exec(["true"])).ok

        async def goes_on() -> bool:
            return len(await process.read("stdout")) > printed

        await eventually(goes_on, "it does not go on")


@needs_groups
async def test_a_paused_box_is_snapshotted_forked_stopped_and_deleted_like_any_other(world: World) -> None:
    row = await world.boxes.create(PAUSE)
    async with await world.boxes.open(row.id) as box:
        await box.files.write("notes", b"1")
        await box.spawn(["sleep", "1000"])
    await world.boxes.pause(row.id)
    taken = await world.boxes.snapshot(row.id)
    fork = await world.boxes.fork(row.id)
    assert await world.state(row.id) is BoxState.PAUSED
    restored = await world.boxes.restore(taken.id)
    for id in (fork.id, restored.id):
        async with await world.boxes.open(id) as box:
            assert await box.files.read("notes") == b"1"
    assert (await world.boxes.stop(row.id)).state is BoxState.STOPPED
    await world.boxes.start_box(row.id)
    await world.boxes.pause(row.id)
    await world.boxes.delete(row.id)
    assert await world.state(row.id) is BoxState.DELETED


@needs_groups
async def test_a_pause_that_was_cut_short_is_finished_and_one_that_was_forgotten_is_ended(world: World) -> None:
    row = await world.boxes.create(PAUSE)
    mark = world.provider.data_dir.box(row.id) / "paused"
    mark.touch()  # whoever paused it died before they held it
    await world.provider.sweep()
    async with await world.boxes.peek(row.id) as box:
        assert await box.power() is Power.PAUSED
    await world.boxes.sweep()
    assert await world.state(row.id) is BoxState.PAUSED
    mark.unlink()  # whoever let it go on died before they did
    await world.boxes.sweep()
    async with await world.boxes.open(row.id) as box:
        assert (await box.exec(["true"], timeout=10)).ok
