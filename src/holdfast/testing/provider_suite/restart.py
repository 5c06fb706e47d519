"""A second provider on the same data, after the first one was closed or beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.api.box.box import Liveness, Power
from holdfast.api.box.process import ProcessState
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxGone, BoxNotFound
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import (
    PATIENCE,
    BoxFactory,
    Reopen,
    Suite,
    all_of,
    appears,
    claims,
    fresh,
    prints,
    sh,
    text,
)


class Restart(Suite):
    @pytest.fixture
    async def second(self, reopen: Reopen) -> AsyncIterator[Provider]:
        """Another provider on the data of the first."""
        other = await reopen()
        try:
            yield other
        finally:
            await other.close()

    async def test_boxes_are_found_again_with_all_that_they_are(
        self, reopen: Reopen, provider: Provider, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        first = await reopen()
        id, group = factory.expect(fresh("box")), fresh("group")
        box = await first.create(spec.with_labels({"of": "spec"}), id=id, labels={"group": group})
        await sh(box, "echo kept > file")
        info = box.info
        await box.close()
        await first.close()
        second = await reopen()
        assert await second.find({"group": group, "of": "spec"}) == [info]
        assert await second.probe(id) is Liveness.LIVE
        async with await second.attach(id) as again:
            assert again.info == info
            assert await again.files.read("file") == b"kept\n"
            assert (await again.exec(["true"])).ok
        await second.close()

    @claims(Capability.DETACHED)
    async def test_processes_go_on_while_nobody_is_there_and_their_output_is_complete(
        self, reopen: Reopen, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        id = factory.expect(fresh("box"))
        first = await reopen()
        box = await first.create(spec, id=id)
        script = (
            "echo begun; echo problem >&2; until [ -e go ]; do sleep 0.01; done; "
            "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i + 1)); done; echo end > end; exit 7"
        )
        lasting = await box.spawn(["sh", "-c", "echo here; cat; exit 3"], stdin=True)
        process = await box.spawn(["sh", "-c", script])
        seen = await prints(process, b"begun\n")
        await prints(lasting, b"here\n")
        await box.close()
        await first.close()

        second = await reopen()
        async with await second.attach(id) as again:
            await again.files.write("go", b"")
            await appears(again, "end")
            found = await again.process(process.id)
            assert await found.wait(PATIENCE) == 7
            assert await all_of(found, offset=len(seen)) == b"".join(b"%d\n" % number for number in range(3000))
            assert await all_of(found, "stderr") == b"problem\n"
            assert (await found.info()).exit_code == 7
            other = await again.process(lasting.id)
            assert (await other.info()).state is ProcessState.RUNNING
            await other.write(b"on\n")
            await other.close_stdin()
            assert await other.wait(PATIENCE) == 3
            assert await other.read() == b"here\non\n"
            assert [each.id for each in await again.processes()] == [lasting.id, process.id]
        await second.close()

    @claims(Capability.DETACHED)
    async def test_the_exit_code_of_a_process_that_ended_unseen_is_known(
        self, reopen: Reopen, spec: BoxSpec, factory: BoxFactory, provider: Provider
    ) -> None:
        id = factory.expect(fresh("box"))
        first = await reopen()
        box = await first.create(spec, id=id)
        process = await box.spawn(["sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo last; echo 1 > end; exit 9"])
        await box.close()
        await first.close()
        async with await provider.attach(id) as between:
            await between.files.write("go", b"")
            await appears(between, "end")
        second = await reopen()
        async with await second.attach(id) as again:
            found = await again.process(process.id)
            assert await found.wait(PATIENCE) == 9
            assert await found.read() == b"last\n"
        await second.close()

    @claims(Capability.PTY, Capability.DETACHED)
    async def test_a_terminal_is_taken_up_again(self, reopen: Reopen, spec: BoxSpec, factory: BoxFactory) -> None:
        id = factory.expect(fresh("box"))
        first = await reopen()
        box = await first.create(spec, id=id)
        process = await box.spawn(["sh", "-i"], pty=True, env={"PS1": "ask> "})
        await prints(process, b"ask> ")
        await box.close()
        await first.close()
        second = await reopen()
        async with await second.attach(id) as again:
            found = await again.process(process.id)
            assert found.pty
            await found.resize(33, 77)
            await found.write(b"stty size; exit 4\n")
            await prints(found, b"33 77")
            assert await found.wait(PATIENCE) == 4
        await second.close()

    @claims(Capability.STOP)
    async def test_a_stopped_box_stays_stopped_and_is_started_by_another(
        self, second: Provider, factory: BoxFactory
    ) -> None:
        box = await factory.box()
        await sh(box, "echo kept > file")
        await box.stop()
        async with await second.attach(box.id) as other:
            assert await other.power() is Power.STOPPED
            await other.start()
            assert await other.files.read("file") == b"kept\n"
        assert await box.power() is Power.RUNNING
        assert await box.files.read("file") == b"kept\n"

    async def test_what_one_provider_deletes_is_gone_for_the_other(
        self, provider: Provider, second: Provider, factory: BoxFactory
    ) -> None:
        box = await factory.box()
        async with await second.attach(box.id) as other:
            assert (await other.exec(["true"])).ok
            await box.delete()
            with pytest.raises(BoxGone):
                await other.exec(["true"])
            assert (await other.delete()).freed == 0
        with pytest.raises((BoxGone, BoxNotFound)):
            await second.attach(box.id)
        assert await second.probe(box.id) is Liveness.GONE
        assert box.id not in [each.id for each in await second.find()]

    async def test_two_providers_work_in_one_box_at_once(self, second: Provider, factory: BoxFactory) -> None:
        box = await factory.box()
        async with await second.attach(box.id) as other:
            work = [sh(each, 'echo "$1" >> log', str(number)) for number in range(10) for each in (box, other)]
            assert all(done.ok for done in await asyncio.gather(*work))
            assert len((await other.files.read("log")).split()) == 20
            process = await box.spawn(["sh", "-c", "cat; exit 5"], stdin=True)
            found = await other.process(process.id)
            await found.write(b"from the other side")
            await found.close_stdin()
            assert await process.wait(PATIENCE) == 5
            assert await process.read() == b"from the other side"

    @claims(Capability.SNAPSHOTS)
    async def test_snapshots_are_found_and_restored_by_another(
        self, second: Provider, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        box = await factory.box()
        await sh(box, "echo kept > file")
        snapshot = await factory.snapshot(box)
        assert await second.snapshot(snapshot.id) == snapshot
        id = factory.expect(fresh("box"))
        async with await second.restore(snapshot.id, spec, id=id) as other:
            assert await text(other, "cat file") == "kept"

    @claims(Capability.VOLUMES)
    async def test_volumes_are_found_by_another(self, second: Provider, factory: BoxFactory) -> None:
        volume = await factory.volume()
        assert volume in [each.name for each in await second.volumes()]

    async def test_a_sweep_of_another_touches_no_box(self, second: Provider, factory: BoxFactory) -> None:
        box = await factory.box()
        process = await box.spawn(["sleep", "1000"])
        await second.sweep()
        assert (await process.info()).state is ProcessState.RUNNING
        assert (await box.exec(["true"])).ok

    async def test_closing_a_provider_twice_is_fine(self, reopen: Reopen) -> None:
        other = await reopen()
        await other.close()
        await other.close()
