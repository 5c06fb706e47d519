"""Paused boxes: their processes stand still, answer nothing, and continue afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from holdfast.api.box.box import Box, Liveness, Power
from holdfast.api.box.process import ProcessState
from holdfast.api.errors.boxes import BoxStopped, BoxUnreachable
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import BoxFactory, Reopen, Suite, claims, eventually, prints, sh, text
from holdfast.time_limit import time_limit

_COUNT = "i=0; while :; do i=$((i + 1)); echo $i; sleep 0.02; done"


async def printed(box: Box, process: str) -> int:
    return len(await (await box.process(process)).read())


class Pauses(Suite):
    @claims(Capability.PAUSE)
    async def test_a_paused_box_holds_its_processes_and_a_start_lets_them_go_on(
        self, provider: Provider, box: Box
    ) -> None:
        process = await box.spawn(["sh", "-c", _COUNT])
        before = len(await prints(process, b"3\n"))
        await box.pause()
        assert await box.power() is Power.PAUSED
        assert await provider.probe(box.id) is Liveness.LIVE
        assert [each.power for each in await provider.find() if each.id == box.id] == [Power.PAUSED]
        with suppress(BoxStopped, BoxUnreachable):  # where a box keeps its output inside, nobody gets at it now
            before = await printed(box, process.id)
            await asyncio.sleep(0.3)
            assert await printed(box, process.id) == before
        await box.start()
        assert await box.power() is Power.RUNNING
        assert (await process.info()).state is ProcessState.RUNNING

        async def goes_on() -> bool:
            return await printed(box, process.id) > before

        await eventually(goes_on, "the process does not go on")
        numbers = [int(line) for line in (await process.read()).split(b"\n")[:-1]]
        assert numbers == list(range(1, len(numbers) + 1))

    @claims(Capability.PAUSE)
    async def test_a_paused_box_keeps_nobody_waiting(self, box: Box) -> None:
        await box.pause()
        async with time_limit(10):
            with pytest.raises((BoxStopped, BoxUnreachable)):
                await box.exec(["true"])
            with pytest.raises((BoxStopped, BoxUnreachable)):
                await box.files.read("file")
            with suppress(BoxStopped, BoxUnreachable):
                await box.metrics()
            steps = await box.ping()
            assert [step for step in steps if not step.ok and step.next_step]
        await box.start()
        assert (await box.exec(["true"])).ok

    @claims(Capability.PAUSE)
    async def test_pausing_and_starting_twice_is_fine(self, box: Box) -> None:
        for _ in range(3):
            await box.pause()
            await box.pause()
            await box.start()
            await box.start()
            assert (await box.exec(["true"])).ok

    @claims(Capability.PAUSE, Capability.STOP)
    async def test_a_paused_box_is_stopped_and_a_stopped_one_is_not_paused(self, box: Box) -> None:
        await sh(box, "echo kept > file")
        await box.spawn(["sleep", "1000"])
        await box.pause()
        await box.stop()
        assert await box.power() is Power.STOPPED
        with pytest.raises(BoxStopped):
            await box.pause()
        await box.start()
        assert await text(box, "cat file") == "kept"
        assert (await box.metrics()).processes == 0

    @claims(Capability.PAUSE)
    async def test_a_paused_box_is_deleted_like_any_other(self, provider: Provider, box: Box) -> None:
        await box.spawn(["sleep", "1000"])
        await box.pause()
        await box.delete()
        assert await provider.probe(box.id) is Liveness.GONE

    @claims(Capability.PAUSE, Capability.SNAPSHOTS)
    async def test_a_snapshot_of_a_paused_box_has_its_files_and_leaves_it_paused(
        self, box: Box, factory: BoxFactory
    ) -> None:
        await sh(box, "echo kept > file")
        await box.spawn(["sleep", "1000"])
        await box.pause()
        taken = await factory.snapshot(box)
        assert await box.power() is Power.PAUSED
        assert await text(await factory.restore(taken.id), "cat file") == "kept"
        await box.start()
        assert await text(box, "cat file") == "kept"

    @claims(Capability.PAUSE)
    async def test_a_paused_box_stays_so_for_whoever_comes_and_through_a_sweep(
        self, provider: Provider, box: Box, reopen: Reopen
    ) -> None:
        await box.pause()
        await provider.sweep()
        other = await reopen()
        try:
            await other.sweep()
            async with await other.attach(box.id) as again:
                assert await again.power() is Power.PAUSED
                await again.start()
                assert (await again.exec(["true"])).ok
        finally:
            await other.close()
        assert await box.power() is Power.RUNNING
