"""A sandbox lives a day at most. What its box has lives on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpclib import Status

from holdfast.api.box.box import Liveness, Power
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxGone, BoxStopped
from holdfast.providers.modal import Credentials, ModalProvider
from holdfast.providers.modal.lifetime import save_is_due
from holdfast.providers.modal.records import BoxRecord, State
from holdfast.providers.modal.sandboxes import LIFETIME_SECONDS
from holdfast.testing.modal import ModalCloud
from holdfast.testing.modal.faults import FOREVER, Fault

pytestmark = [pytest.mark.anyio, pytest.mark.box]
MINUTE = 60_000
END = LIFETIME_SECONDS * 1000
BEGIN = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def provider(tmp_path: Path, credentials: Credentials, clock: Clock) -> AsyncIterator[ModalProvider]:
    async with ModalProvider(tmp_path / "home", credentials, clock=clock) as provider:
        yield provider


@pytest.mark.parametrize(
    ("minutes_before_the_end", "minutes_of_last_save", "due"),
    [
        (600, None, False),
        (61, None, False),
        (60, None, True),
        (50, 60, False),
        (50, None, True),  # it failed, or there was no server
        (20, 60, True),
        (5, 19, True),
        (4, 5, False),
        (0, None, False),
        (-5, None, False),
    ],
)
def test_files_are_saved_before_the_end(
    minutes_before_the_end: int, minutes_of_last_save: int | None, due: bool
) -> None:
    kept_at = 0 if minutes_of_last_save is None else BEGIN + END - minutes_of_last_save * MINUTE
    spec = BoxSpec(provider="modal")
    record = BoxRecord("b-1", spec, {}, 1, State.RUNNING, started_at=BEGIN, kept_at=kept_at)
    assert save_is_due(record, BEGIN + END - minutes_before_the_end * MINUTE) is due


async def test_a_box_outlives_its_sandbox(provider: ModalProvider, cloud: ModalCloud, clock: Clock) -> None:
    box = await provider.create(BoxSpec(provider="modal"), id="b-1")
    await box.files.write("file", b"first")
    running = await box.spawn(["sleep", "10000"])
    await provider.save_due()
    clock.now += END - 60 * MINUTE
    await provider.save_due()
    await box.files.write("file", b"second")
    await provider.save_due()  # not yet again
    clock.now += 40 * MINUTE
    await provider.save_due()
    await box.files.write("file", b"third")
    assert (await running.info()).exit_code is None, "no process was disturbed"
    [sandbox] = cloud.running
    await cloud.finish(sandbox)
    assert await provider.power("b-1") is Power.STOPPED
    assert await provider.probe("b-1") is Liveness.LIVE
    [info] = await provider.find()
    assert info.power is Power.STOPPED
    with pytest.raises(BoxStopped):
        await box.exec(["true"])
    await provider.start_box("b-1")
    box = await provider.attach("b-1")
    assert await box.files.read("file") == b"second"
    assert len(cloud.running) == 1
    clock.now += END - 5 * MINUTE  # its new sandbox has a day of its own
    await provider.save_due()
    await cloud.finish(cloud.running[0])
    assert (await provider.attach("b-1")).info.power is Power.STOPPED
    await provider.remove("b-1")


async def test_it_is_found_stopped_by_whatever_looks_first(
    provider: ModalProvider, cloud: ModalCloud, clock: Clock
) -> None:
    ids = ("b-find", "b-attach", "b-exec", "b-stop", "b-snapshot", "b-start")
    boxes = {id: await provider.create(BoxSpec(provider="modal"), id=id) for id in ids}
    for each in boxes.values():
        await each.files.write("file", b"kept")
    clock.now += END - 10 * MINUTE
    await provider.save_due()
    for sandbox in list(cloud.running):
        await cloud.finish(sandbox)
    with pytest.raises(BoxStopped):
        await boxes["b-exec"].exec(["true"])
    assert (await provider.attach("b-attach")).info.power is Power.STOPPED
    await provider.stop_box("b-stop")
    await provider.snapshot_box("b-snapshot", {})
    await provider.start_box("b-start")
    assert {info.id: info.power for info in await provider.find()} == {
        id: Power.RUNNING if id == "b-start" else Power.STOPPED for id in ids
    }


async def test_a_save_that_fails_is_tried_again(provider: ModalProvider, cloud: ModalCloud, clock: Clock) -> None:
    box = await provider.create(BoxSpec(provider="modal"), id="b-1")
    await box.files.write("file", b"kept")
    clock.now += END - 60 * MINUTE
    cloud.faults.add(Fault("TaskSnapshotFilesystem", FOREVER, Status.DATA_LOSS))
    await provider.save_due()
    assert await provider.power("b-1") is Power.RUNNING
    assert cloud.faults.committed
    cloud.faults.clear()
    await provider.save_due()
    await cloud.finish(cloud.running[0])
    assert await provider.power("b-1") is Power.STOPPED


async def test_the_images_of_saves_are_deleted_with_what_they_were_for(
    provider: ModalProvider, cloud: ModalCloud, clock: Clock
) -> None:
    before = len(cloud.state.images)
    await provider.create(BoxSpec(provider="modal"), id="b-1")
    made = len(cloud.state.images)
    clock.now += END - 60 * MINUTE
    await provider.save_due()
    clock.now += 55 * MINUTE
    await provider.save_due()
    assert len(cloud.state.images) == made + 1, "the earlier one is gone"
    await provider.remove("b-1")
    assert len(cloud.state.images) <= max(before, made)


async def test_a_box_that_was_never_saved_is_gone_with_its_sandbox(provider: ModalProvider, cloud: ModalCloud) -> None:
    await provider.create(BoxSpec(provider="modal"), id="b-1")
    await cloud.finish(cloud.running[0])
    with pytest.raises(BoxGone):
        await provider.power("b-1")


async def test_a_new_server_saves_what_is_due(
    provider: ModalProvider, cloud: ModalCloud, credentials: Credentials, clock: Clock, tmp_path: Path
) -> None:
    box = await provider.create(BoxSpec(provider="modal"), id="b-1")
    await box.files.write("file", b"kept")
    await provider.close()
    clock.now += END - 30 * MINUTE
    async with ModalProvider(tmp_path / "home", credentials, clock=clock) as later:
        async with asyncio.timeout(120):
            while not any(each.kept for each in later._records.boxes()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await cloud.finish(cloud.running[0])
        assert await later.power("b-1") is Power.STOPPED
