"""Concurrent callers of one box: each gets an answer, and afterwards the box is either complete or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from holdfast.api.box.box import Box, Liveness, Power
from holdfast.api.box.process import Completed
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, BoxError
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import (
    PATIENCE,
    BoxFactory,
    Suite,
    all_of,
    appears,
    claims,
    fresh,
    prints,
    sh,
    text,
)
from holdfast.time_limit import time_limit


async def _outcome(work: Awaitable[Any], ahead: int = 0) -> Any:
    """Returns the result: an answer or a proper error, in time. Anything else is a bug.

    `ahead` is how much other work it may have to wait for, each as long as itself.
    """
    try:
        async with time_limit(PATIENCE * (1 + ahead)):
            return await work
    except BoxError as error:
        return error


class Races(Suite):
    async def test_two_deletes_at_once_are_one(self, provider: Provider, box: Box, factory: BoxFactory) -> None:
        await sh(box, "head -c 3000000 /dev/urandom > file")
        other = await factory.attach(box.id)
        freed = await asyncio.gather(box.delete(), other.delete(), provider.remove(box.id), box.delete())
        sizes = [each if isinstance(each, int) else each.freed for each in freed]
        assert sum(sizes) >= 3_000_000
        assert await provider.probe(box.id) is Liveness.GONE

    async def test_of_two_creates_with_one_id_one_wins(
        self, provider: Provider, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        id = factory.expect(fresh("box"))
        made = await asyncio.gather(*(provider.create(spec, id=id) for _ in range(4)), return_exceptions=True)
        boxes = [factory.handle(each) for each in made if isinstance(each, Box)]
        assert len(boxes) == 1
        assert all(isinstance(each, BoxConflict) for each in made if not isinstance(each, Box)), made
        assert (await boxes[0].exec(["true"])).ok

    @claims(Capability.STOP)
    async def test_a_stop_ends_what_runs(self, box: Box) -> None:
        running = asyncio.create_task(_outcome(sh(box, "echo 1 > begun; exec sleep 1000")))
        await appears(box, "begun")
        async with time_limit(PATIENCE):
            await box.stop()
        outcome = await running
        assert isinstance(outcome, BoxError) or outcome.exit_code > 128, outcome
        assert await box.power() is Power.STOPPED

    @claims(Capability.STOP)
    async def test_stops_and_starts_at_once_leave_one_or_the_other(self, box: Box) -> None:
        await sh(box, "echo kept > file")
        works = (box.stop, box.start) * 3
        outcomes = await asyncio.gather(*(_outcome(work(), ahead=len(works) - 1) for work in works))
        assert all(each is None or isinstance(each, BoxError) for each in outcomes), outcomes
        await box.start()
        assert await box.files.read("file") == b"kept\n"

    @claims(Capability.STOP)
    async def test_a_box_is_stopped_while_it_is_busy_and_comes_back(self, box: Box) -> None:
        busy = [asyncio.create_task(_outcome(sh(box, "while :; do echo x >> log; done"))) for _ in range(3)]
        process = await box.spawn(["sh", "-c", "while :; do echo line; done"])
        await prints(process, b"line\n")
        await appears(box, "log")
        await box.stop()
        for outcome in await asyncio.gather(*busy):
            assert isinstance(outcome, (BoxError, Completed))
        await box.start()
        assert (await box.files.stat("log")).size > 0

    async def test_a_delete_ends_every_stream(self, provider: Provider, box: Box) -> None:
        await sh(box, "head -c 33554432 /dev/zero > large")
        process = await box.spawn(["sh", "-c", "while :; do echo line; sleep 0.01; done"])
        channel = await box.channel(["cat"])
        stream = box.files.stream("large")
        await anext(stream)
        await prints(process, b"line\n")

        async def rest_of_the_file() -> None:
            async for _ in stream:
                await asyncio.sleep(0)

        work = [
            asyncio.create_task(_outcome(each))
            for each in (all_of(process), process.wait(), channel.read(), rest_of_the_file(), sh(box, "sleep 1000"))
        ]
        await asyncio.sleep(0)
        async with time_limit(PATIENCE):
            await box.delete()
        await asyncio.gather(*work)
        await channel.close()
        assert await provider.probe(box.id) is Liveness.GONE

    async def test_a_delete_during_a_write_leaves_no_half_box(self, provider: Provider, box: Box) -> None:
        async def endless() -> Any:
            while True:
                yield bytes(65536)
                await asyncio.sleep(0)

        writing = asyncio.create_task(_outcome(box.files.write("large", endless())))
        await sh(box, "true")
        await box.delete()
        if not writing.done():
            await asyncio.wait([writing], timeout=0.2)
        writing.cancel()
        await asyncio.wait([writing])
        assert await provider.probe(box.id) is Liveness.GONE
        await provider.sweep()
        assert box.id not in [each.id for each in await provider.find()]

    async def test_many_kinds_of_work_in_one_box_at_once(self, box: Box) -> None:
        async def command(number: int) -> None:
            assert await text(box, 'echo "$1"', str(number)) == str(number)

        async def file(number: int) -> None:
            await box.files.write(f"many/{number}", b"%d" % number)
            assert await box.files.read(f"many/{number}") == b"%d" % number

        async def process(number: int) -> None:
            spawned = await box.spawn(["sh", "-c", f"echo {number}; exit {number}"])
            assert await spawned.wait(PATIENCE) == number
            assert await all_of(spawned) == b"%d\n" % number

        async def channel(number: int) -> None:
            async with await box.channel(["cat"]) as opened:
                await opened.write(b"%d" % number)
                await opened.close_write()
                assert await opened.read() == b"%d" % number

        await asyncio.gather(*(work(number) for number in range(10) for work in (command, file, process, channel)))

    @claims(Capability.FORK)
    async def test_a_fork_is_taken_while_the_box_writes(self, box: Box, factory: BoxFactory) -> None:
        script = "i=0; while :; do i=$((i + 1)); echo $i > new && mv new count; sleep 0.001; done"
        process = await box.spawn(["sh", "-c", script])
        await appears(box, "count")
        forks = [await factory.fork(box) for _ in range(2)]
        counts = [int(await text(each, "cat count")) for each in forks]
        assert counts == [int(await text(each, "cat count")) for each in forks]
        assert 0 < counts[0] <= counts[1] <= int(await text(box, "cat count"))
        await process.kill()

    @claims(Capability.SNAPSHOTS)
    async def test_snapshots_deletes_and_restores_at_once_never_break_each_other(
        self, provider: Provider, box: Box, factory: BoxFactory
    ) -> None:
        await sh(box, "echo kept > file")
        base = await factory.snapshot(box)

        async def round_trip() -> None:
            other = await factory.restore(base.id)
            snapshot = await factory.snapshot(other)
            await other.delete()
            third = await factory.restore(snapshot.id)
            await provider.delete_snapshot(snapshot.id)
            assert await third.files.read("file") == b"kept\n"
            await third.delete()

        async def sweeps() -> None:
            for _ in range(5):
                await provider.sweep()
                await asyncio.sleep(0.01)

        await asyncio.gather(round_trip(), round_trip(), round_trip(), sweeps())
        assert await box.files.read("file") == b"kept\n"

    async def test_a_sweep_during_a_create_does_not_touch_it(
        self, provider: Provider, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        id = factory.expect(fresh("box"))
        creating = asyncio.create_task(provider.create(spec, id=id))
        while not creating.done():
            await provider.sweep()
            await asyncio.sleep(0)
        box = factory.handle(await creating)
        await provider.sweep()
        assert (await box.exec(["true"])).ok

    async def test_an_exec_in_a_box_that_is_being_deleted_gets_an_answer(self, provider: Provider, box: Box) -> None:
        work = [asyncio.create_task(_outcome(sh(box, "echo on"))) for _ in range(10)]
        await box.delete()
        for outcome in await asyncio.gather(*work):
            assert isinstance(outcome, (BoxError, Completed))
        with pytest.raises(BoxError):
            await box.exec(["true"])
