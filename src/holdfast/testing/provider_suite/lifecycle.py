"""The lifecycle of boxes, and how they are found."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from time import time

import pytest

from holdfast.api.box.box import Box, Liveness, Power
from holdfast.api.box.process import ProcessState
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    ProcessLost,
    ProcessNotFound,
    Unsupported,
)
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import (
    PATIENCE,
    BoxFactory,
    Suite,
    cancelled,
    claims,
    fresh,
    number_in,
    sh,
    text,
    tick,
)


class Lifecycle(Suite):
    async def test_a_box_is_made_as_asked_for_and_says_so(self, provider: Provider, factory: BoxFactory) -> None:
        before = int(time() * 1000) - 5000
        id = fresh("box")
        box = await factory.box(id=id, labels={"beside": "yes"}, env={"WORD": "given"})
        info = box.info
        assert (box.id, info.id, info.provider, info.power) == (id, id, provider.name, Power.RUNNING)
        assert (info.snapshot, info.spec.env) == (None, {"WORD": "given"})
        assert before <= info.created_at <= int(time() * 1000) + 5000
        assert await box.power() is Power.RUNNING
        assert await provider.probe(id) is Liveness.LIVE
        assert id in repr(box)

    async def test_boxes_are_found_by_labels_the_oldest_first(
        self, provider: Provider, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        group = fresh("group")
        one = await factory.box(labels={"group": group, "kind": "grüße"})
        await tick(one.info.created_at)
        two = await factory.box_of(spec.with_labels({"kind": "b c"}), labels={"group": group})

        async def found(**labels: str) -> list[str]:
            return [each.id for each in await provider.find(labels)]

        assert await found(group=group) == [one.id, two.id]
        assert await found(group=group, kind="b c") == [two.id]
        assert await found(kind="grüße", group=group) == [one.id]
        assert await found(group=group, kind="other") == []
        assert await found(group=group, more="x") == []
        every = [each.id for each in await provider.find()]
        assert every.index(one.id) < every.index(two.id)
        (info,) = await provider.find({"group": group, "kind": "b c"})
        assert info.spec == two.info.spec
        assert (info.labels["group"], info.labels["kind"]) == (group, "b c")
        assert two.labels == info.labels

    async def test_a_box_is_attached_to_by_its_id(self, provider: Provider, box: Box, factory: BoxFactory) -> None:
        await box.files.write("file", b"here")
        other = await factory.attach(box.id)
        assert await other.files.read("file") == b"here"
        assert replace(other.info, power=box.info.power) == box.info
        await other.files.write("file", b"there")
        assert await box.files.read("file") == b"there"
        await other.close()
        await other.close()
        assert await box.files.read("file") == b"there"

    async def test_a_box_that_never_was_is_not_found(self, provider: Provider) -> None:
        for id in (fresh("box"), "nothing"):
            with pytest.raises(BoxNotFound):
                await provider.attach(id)
            assert await provider.probe(id) is Liveness.GONE
            assert await provider.remove(id) == 0

    async def test_an_id_is_given_once(self, provider: Provider, box: Box, spec: BoxSpec) -> None:
        await box.files.write("file", b"mine")
        with pytest.raises(BoxConflict):
            await provider.create(spec, id=box.id)
        assert await box.files.read("file") == b"mine"
        assert await provider.probe(box.id) is Liveness.LIVE

    async def test_an_id_that_leads_elsewhere_is_refused(self, provider: Provider, spec: BoxSpec) -> None:
        for id in ("../escaped", "/tmp/escaped", "a/b", "", ".", "..", "a\0b"):
            with pytest.raises(BoxError):
                await provider.create(spec, id=id)
            with pytest.raises(BoxError):
                await provider.attach(id)

    async def test_a_deleted_box_is_gone_for_everybody(self, provider: Provider, box: Box, factory: BoxFactory) -> None:
        await sh(box, "head -c 4000000 /dev/urandom > file")
        process = await box.spawn(["sleep", "1000"])
        other = await factory.attach(box.id)
        freed = (await box.delete()).freed
        assert freed >= 0
        assert await provider.probe(box.id) is Liveness.GONE
        assert box.id not in [each.id for each in await provider.find()]
        with pytest.raises((BoxGone, BoxNotFound)):
            await provider.attach(box.id)
        for handle in (box, other):
            with pytest.raises(BoxGone):
                await handle.power()
            with pytest.raises(BoxGone):
                await handle.exec(["true"])
            with pytest.raises(BoxGone):
                await handle.spawn(["true"])
            with pytest.raises(BoxGone):
                await handle.channel(["true"])
            with pytest.raises(BoxGone):
                await handle.files.read("file")
            with pytest.raises((BoxGone, Unsupported)):
                await handle.start()
            with pytest.raises((BoxGone, Unsupported)):
                await handle.snapshot()
            assert (await handle.delete()).freed == 0
        with pytest.raises((BoxGone, ProcessLost)):
            await process.wait(PATIENCE)
        assert await provider.remove(box.id) == 0

    async def test_a_deleted_box_frees_what_it_had(self, provider: Provider, factory: BoxFactory) -> None:
        one, two = await factory.box(), await factory.box()
        for box in (one, two):
            await sh(box, "head -c 4000000 /dev/urandom > file")
        assert (await one.delete()).freed >= 4_000_000
        assert await provider.remove(two.id) >= 4_000_000
        assert await provider.probe(two.id) is Liveness.GONE

    async def test_the_files_of_a_deleted_box_do_not_come_back_with_its_id(
        self, provider: Provider, factory: BoxFactory
    ) -> None:
        id = fresh("box")
        first = await factory.box(id=id)
        await sh(first, 'echo old > file; echo old > "$HOME/file"')
        await first.delete()
        try:
            second = await factory.box(id=id)
        except BoxError:
            return  # an id once in a lifetime is fine as well
        assert not await second.files.exists("file")
        assert not (await sh(second, 'test -e "$HOME/file"')).ok

    @claims(Capability.ISOLATION)  # without, a path is the machine's
    async def test_a_workdir_of_ones_own_is_made(self, factory: BoxFactory) -> None:
        box = await factory.box(workdir="/workspace/some/where")
        assert await text(box, "pwd") == "/workspace/some/where"
        await box.files.write("file", b"x")
        assert await box.files.read("/workspace/some/where/file") == b"x"

    async def test_each_box_has_files_and_processes_of_its_own(self, box: Box, factory: BoxFactory) -> None:
        other = await factory.box()
        await sh(box, 'echo mine > file; echo mine > "$HOME/file"')
        process = await box.spawn(["sleep", "1000"])
        assert not await other.files.exists("file")
        assert not (await sh(other, 'test -e "$HOME/file"')).ok
        assert await other.processes() == []
        with pytest.raises(BoxError):
            await other.process(process.id)

    async def test_one_box_is_used_through_several_handles_at_once(self, box: Box, factory: BoxFactory) -> None:
        handles = [box, *await asyncio.gather(*(factory.attach(box.id) for _ in range(4)))]
        done = await asyncio.gather(*(sh(each, 'echo "$1" >> log; echo "$1"', each.id) for each in handles * 4))
        assert [each.text.strip() for each in done] == [box.id] * 20
        assert len((await box.files.read("log")).split()) == 20

    async def test_many_boxes_are_made_used_and_deleted_at_once(self, provider: Provider, factory: BoxFactory) -> None:
        group = fresh("group")
        boxes = await asyncio.gather(*(factory.box(labels={"group": group}) for _ in range(10)))
        done = await asyncio.gather(*(sh(each, 'echo "$1" > id; cat id', each.id) for each in boxes))
        assert [each.text.strip() for each in done] == [each.id for each in boxes]
        assert {each.id for each in await provider.find({"group": group})} == {each.id for each in boxes}
        await asyncio.gather(*(each.delete() for each in boxes))
        assert await provider.find({"group": group}) == []

    async def test_a_cancelled_create_leaves_nothing(
        self, provider: Provider, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        group = fresh("group")
        for steps in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            id = factory.expect(fresh("box"))
            creating = asyncio.create_task(provider.create(spec, id=id, labels={"group": group}))
            for _ in range(steps):
                await asyncio.sleep(0)
            if creating.done():
                factory.handle(await creating)
                continue
            await cancelled(creating)
            assert await provider.probe(id) is Liveness.GONE
            assert id not in [each.id for each in await provider.find({"group": group})]

    async def test_a_cancelled_create_leaves_nothing_late_either(
        self, provider: Provider, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        for delay in (0.001, 0.003, 0.01, 0.03):
            id = factory.expect(fresh("box"))
            creating = asyncio.create_task(provider.create(spec, id=id))
            done, _ = await asyncio.wait([creating], timeout=delay)
            if done:
                factory.handle(await creating)
                continue
            creating.cancel()
            try:
                factory.handle(await creating)  # it was made before it heard of it
            except asyncio.CancelledError:
                assert await provider.probe(id) is Liveness.GONE

    # --- stop and start ---

    @claims(Capability.STOP)
    async def test_a_stopped_box_keeps_its_files_and_ends_its_processes(
        self, provider: Provider, box: Box, factory: BoxFactory
    ) -> None:
        await sh(box, 'echo 1 > file; mkdir -p "$HOME/.local"; echo 2 > "$HOME/.local/file"; ln -s file link')
        await sh(box, 'echo 3 > "${TMPDIR:-/tmp}/file"; chmod 600 file')
        process = await box.spawn(["sh", "-c", "echo $$ > pid; exec sleep 1000"])
        await number_in(box, "pid")
        await box.stop()
        assert await box.power() is Power.STOPPED
        assert await provider.probe(box.id) is Liveness.LIVE
        assert [each.power for each in await provider.find() if each.id == box.id] == [Power.STOPPED]
        other = await factory.attach(box.id)
        assert (other.info.power, await other.power()) == (Power.STOPPED, Power.STOPPED)
        await box.start()
        assert await box.power() is Power.RUNNING
        assert await text(box, 'cat file "$HOME/.local/file" "${TMPDIR:-/tmp}/file" link') == "1\n2\n3\n1"
        assert (await box.files.stat("file")).mode == 0o600
        assert (await box.metrics()).processes == 0
        assert await other.files.read("file") == b"1\n"
        with suppress(ProcessLost, ProcessNotFound):
            again = await box.process(process.id)
            assert (await again.info()).state is not ProcessState.RUNNING
            await again.wait(PATIENCE)

    @claims(Capability.STOP)
    async def test_a_stopped_box_does_nothing_until_it_is_started(self, box: Box) -> None:
        await box.stop()
        with pytest.raises(BoxStopped):
            await box.exec(["true"])
        with pytest.raises(BoxStopped):
            await box.spawn(["true"])
        with pytest.raises(BoxStopped):
            await box.channel(["true"])
        with pytest.raises(BoxStopped):
            await box.files.read("file")
        with pytest.raises(BoxStopped):
            await box.files.write("file", b"")
        assert await box.power() is Power.STOPPED
        await box.start()
        assert (await box.exec(["true"])).ok

    @claims(Capability.STOP)
    async def test_stopping_and_starting_twice_is_fine(self, box: Box) -> None:
        await box.start()
        await box.stop()
        await box.stop()
        await box.start()
        await box.start()
        assert (await box.exec(["true"])).ok

    @claims(Capability.STOP)
    async def test_a_stopped_box_is_deleted_like_any_other(self, provider: Provider, box: Box) -> None:
        await box.stop()
        await box.delete()
        assert await provider.probe(box.id) is Liveness.GONE

    @claims(Capability.STOP)
    async def test_a_box_is_stopped_and_started_many_times(self, box: Box) -> None:
        for number in range(4):
            await sh(box, "echo line >> log")
            await box.stop()
            await box.start()
            assert len((await box.files.read("log")).split()) == number + 1

    # --- looking at it ---

    async def test_a_ping_goes_step_by_step(self, box: Box) -> None:
        steps = await box.ping()
        assert steps
        assert all(step.ok and step.name and step.milliseconds >= 0 for step in steps), steps

    @claims(Capability.STOP)
    async def test_a_ping_ends_at_the_first_step_that_fails_and_says_what_to_do(self, box: Box) -> None:
        await box.stop()
        steps = await box.ping()
        assert [step.ok for step in steps[:-1]] == [True] * (len(steps) - 1)
        assert not steps[-1].ok
        assert steps[-1].next_step

    async def test_a_diagnosis_tells_what_works(self, provider: Provider, box: Box) -> None:
        assert await provider.diagnose()
        of_the_box = await provider.diagnose(box.id)
        assert of_the_box
        assert all(step.ok for step in of_the_box), of_the_box
        with suppress(BoxNotFound):
            nothing = await provider.diagnose(fresh("box"))
            assert [step for step in nothing if not step.ok and step.next_step]

    async def test_metrics_are_plausible(self, box: Box) -> None:
        await sh(box, "head -c 2000000 /dev/urandom > file")
        metrics = await box.metrics()
        assert (metrics.processes, metrics.memory is None or metrics.memory >= 0) == (0, True)
        assert metrics.cpu_seconds is None or metrics.cpu_seconds >= 0
        assert metrics.disk is None or metrics.disk >= 2_000_000

    # --- housekeeping ---

    async def test_a_sweep_touches_no_box_that_lives(self, provider: Provider, box: Box) -> None:
        process = await box.spawn(["sleep", "1000"])
        await provider.sweep()
        assert (await process.info()).state is ProcessState.RUNNING
        assert (await box.exec(["true"])).ok

    async def test_a_sweep_removes_the_boxes_that_nobody_keeps(self, provider: Provider, factory: BoxFactory) -> None:
        kept, lost = await factory.box(), await factory.box()
        await lost.spawn(["sleep", "1000"])
        await kept.files.write("file", b"x")
        swept = await provider.sweep({each.id for each in await provider.find()} - {lost.id})
        assert [line for line in swept.removed if lost.id in line]
        assert swept.freed >= 0
        assert await provider.probe(lost.id) is Liveness.GONE
        assert await kept.files.read("file") == b"x"
        with pytest.raises(BoxGone):
            await lost.exec(["true"])
