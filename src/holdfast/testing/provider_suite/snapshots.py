"""Snapshots: taken, restored, forked, exported, imported and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import time

import pytest

from holdfast.api.box.box import Box, Liveness, Power
from holdfast.api.box.process import ProcessState
from holdfast.api.box.snapshots import Holding
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import SnapshotInUse, SnapshotNotFound, WrongSnapshot
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import MEGABYTE, BoxFactory, Suite, claims, fresh, prints, sh, text


class Snapshots(Suite):
    @claims(Capability.SNAPSHOTS)
    async def test_a_snapshot_describes_itself(self, provider: Provider, box: Box, factory: BoxFactory) -> None:
        before = int(time() * 1000) - 5000
        await sh(box, "head -c 1000000 /dev/urandom > file")
        mark = fresh("mark")
        snapshot = await factory.snapshot(box, mark=mark)
        assert (snapshot.provider, snapshot.kind, snapshot.box) == (provider.name, provider.snapshot_kind, box.id)
        assert (snapshot.parent, snapshot.labels["mark"]) == (None, mark)
        assert snapshot.holding in Holding
        assert snapshot.size >= 1_000_000
        assert before <= snapshot.created_at <= int(time() * 1000) + 5000
        assert await provider.snapshot(snapshot.id) == snapshot
        assert await provider.snapshots({"mark": mark}) == [snapshot]
        assert snapshot in await provider.snapshots()
        assert await provider.snapshots({"mark": "other"}) == []

    @claims(Capability.SNAPSHOTS)
    async def test_a_restored_box_begins_with_the_files_of_its_snapshot(self, box: Box, factory: BoxFactory) -> None:
        await sh(
            box, 'mkdir -p d/empty; echo 1 > d/a.kept; echo 2 > "$HOME/b.kept"; chmod 750 d/a.kept; ln -s a.kept d/l'
        )
        await sh(box, 'echo 3 > "${TMPDIR:-/tmp}/c.kept"')
        snapshot = await factory.snapshot(box)
        other = await factory.restore(snapshot.id)
        assert other.info.snapshot == snapshot.id
        assert await text(other, 'cat d/a.kept "$HOME/b.kept" d/l') == "1\n2\n1"
        assert (await other.files.stat("d/a.kept")).mode == 0o750
        assert (await other.files.stat("d/l")).target == "a.kept"
        assert await other.files.list("d/empty") == []
        assert (await other.metrics()).processes == 0

    @claims(Capability.SNAPSHOTS)
    async def test_a_snapshot_is_not_changed_by_what_is_written_later(self, box: Box, factory: BoxFactory) -> None:
        await sh(box, "mkdir d; echo old > file; echo old > gone; echo old > d/moved")
        snapshot = await factory.snapshot(box)
        await sh(box, "echo new > file; echo more >> file; rm gone; mv d e; echo new > new; chmod 600 file")
        first = await factory.restore(snapshot.id)
        assert await text(first, "cat file gone d/moved; ls") == "old\nold\nold\nd\nfile\ngone"
        await sh(first, "echo first > file; rm -r d")
        second = await factory.restore(snapshot.id)
        assert await text(second, "cat file gone d/moved; ls") == "old\nold\nold\nd\nfile\ngone"
        assert await text(box, "cat file; ls") == "new\nmore\ne\nfile\nnew"

    @claims(Capability.SNAPSHOTS)
    async def test_deletions_and_renames_come_through_a_chain_of_snapshots(self, box: Box, factory: BoxFactory) -> None:
        await sh(box, "mkdir -p d/e; for n in 1 2 3 4; do echo $n > d/e/$n; done; mkdir r; echo r > r/r; ln -s r l")
        one = await factory.snapshot(box)
        await sh(box, "rm d/e/1; mv d/e/2 d/two; echo changed > d/e/3; rm -r r; rm l; mkdir l; echo file > r")
        two = await factory.snapshot(box)
        assert two.parent == (None if two.holding is Holding.VALUE else one.id)
        await sh(box, "mv d f; mkdir d; echo fresh > d/fresh; rm r; mkdir r; rm -r l")
        three = await factory.snapshot(box)
        assert three.parent == (None if three.holding is Holding.VALUE else two.id)
        await sh(box, "rm -rf d f r")
        script = "find . | sort | tr '\\n' ' '"
        restored = [await factory.restore(each.id) for each in (one, two, three)]
        trees = [await text(each, script) for each in restored]
        assert trees == [
            ". ./d ./d/e ./d/e/1 ./d/e/2 ./d/e/3 ./d/e/4 ./l ./r ./r/r ",
            ". ./d ./d/e ./d/e/3 ./d/e/4 ./d/two ./l ./r ",
            ". ./d ./d/fresh ./f ./f/e ./f/e/3 ./f/e/4 ./f/two ./r ",
        ]
        assert await text(restored[1], "cat d/two d/e/3 r; test -d l") == "2\nchanged\nfile"
        assert await text(restored[2], "cat f/two d/fresh; test -d r") == "2\nfresh"
        # And on from there: a box of a snapshot of a box of a snapshot.
        await sh(restored[1], "rm -r d/e; echo four > four")
        four = await factory.snapshot(restored[1])
        assert four.parent == (None if four.holding is Holding.VALUE else two.id)
        last = await factory.restore(four.id)
        assert await text(last, script) == ". ./d ./d/two ./four ./l ./r "

    @claims(Capability.SNAPSHOTS)
    async def test_running_processes_go_on_through_a_snapshot(self, box: Box, factory: BoxFactory) -> None:
        script = "exec 3> log; while read line; do echo $line >&3; echo got $line; done"
        process = await box.spawn(["sh", "-c", script], stdin=True)
        await process.write(b"one\n")
        await prints(process, b"got one\n")
        snapshot = await factory.snapshot(box)
        await process.write(b"two\n")
        await prints(process, b"got one\ngot two\n")
        assert (await process.info()).state is ProcessState.RUNNING
        assert await box.files.read("log") == b"one\ntwo\n"
        other = await factory.restore(snapshot.id)
        assert await other.files.read("log") == b"one\n"
        await process.kill()

    @claims(Capability.SNAPSHOTS)
    async def test_work_goes_on_while_snapshots_are_taken(self, box: Box, factory: BoxFactory) -> None:
        script = "mkdir n; i=0; until [ -e stop ]; do i=$((i + 1)); echo $i > n/$i; [ $i -lt 2000 ] || sleep 0.01; done"
        process = await box.spawn(["sh", "-c", f"{script}; echo $i"])
        snapshots = [await factory.snapshot(box) for _ in range(3)]
        await box.files.write("stop", b"")
        assert await process.wait(30) == 0
        count = int(await process.read())
        assert int(await text(box, "ls n | wc -l")) == count
        seen = []
        for snapshot in snapshots:
            other = await factory.restore(snapshot.id)
            seen.append(int(await text(other, "ls n 2>/dev/null | wc -l")))
        assert seen == sorted(seen)
        assert seen[-1] <= count

    @claims(Capability.SNAPSHOTS, Capability.STOP)
    async def test_a_stopped_box_is_snapshotted_and_stays_stopped(self, box: Box, factory: BoxFactory) -> None:
        await sh(box, "echo 1 > file")
        await box.stop()
        snapshot = await factory.snapshot(box)
        assert await box.power() is Power.STOPPED
        assert await (await factory.restore(snapshot.id)).files.read("file") == b"1\n"
        await box.start()
        await sh(box, "echo 2 > file")
        await box.stop()
        await box.start()
        assert await box.files.read("file") == b"2\n"

    @claims(Capability.SNAPSHOTS)
    async def test_a_snapshot_outlives_its_box(self, provider: Provider, box: Box, factory: BoxFactory) -> None:
        await sh(box, "echo 1 > file")
        snapshot = await factory.snapshot(box)
        await box.delete()
        await provider.sweep()
        other = await factory.restore(snapshot.id)
        assert await other.files.read("file") == b"1\n"

    @claims(Capability.SNAPSHOTS)
    async def test_deleting_a_parent_keeps_its_children_working(
        self, provider: Provider, box: Box, factory: BoxFactory
    ) -> None:
        await sh(box, "echo 1 > one; echo x > gone")
        one = await factory.snapshot(box)
        await sh(box, "echo 2 > two; rm gone")
        two = await factory.snapshot(box)
        await sh(box, "echo 3 > three")
        three = await factory.snapshot(box)
        child = await factory.restore(one.id)
        for each in (one, two):
            try:
                await provider.delete_snapshot(each.id)
            except SnapshotInUse:
                continue  # said plainly, and nothing was lost
            with pytest.raises(SnapshotNotFound):
                await provider.snapshot(each.id)
            with pytest.raises(SnapshotNotFound):
                await factory.restore(each.id)
        await provider.sweep()
        assert await text(child, "cat one gone") == "1\nx"
        assert await text(box, "cat one two three") == "1\n2\n3"
        last = await factory.restore(three.id)
        assert await text(last, "cat one two three; ls") == "1\n2\n3\none\nthree\ntwo"

    @claims(Capability.SNAPSHOTS)
    async def test_what_a_snapshot_held_is_freed_when_the_last_one_lets_go(
        self, provider: Provider, box: Box, factory: BoxFactory
    ) -> None:
        await sh(box, "head -c 4000000 /dev/urandom > file")
        snapshot = await factory.snapshot(box)
        assert snapshot.size >= 4_000_000
        freed = (await box.delete()).freed + await provider.delete_snapshot(snapshot.id)
        freed += (await provider.sweep()).freed
        assert freed >= 4_000_000
        with pytest.raises(SnapshotNotFound):
            await provider.delete_snapshot(snapshot.id)
        assert snapshot.id not in [each.id for each in await provider.snapshots()]

    @claims(Capability.SNAPSHOTS)
    async def test_a_snapshot_adds_only_what_is_new(self, box: Box, factory: BoxFactory) -> None:
        await sh(box, "head -c 4000000 /dev/urandom > file")
        first = await factory.snapshot(box)
        second = await factory.snapshot(box)
        assert first.id != second.id
        if second.holding is Holding.REFERENCE:
            assert second.size < 1_000_000

    @claims(Capability.SNAPSHOTS)
    async def test_a_snapshot_that_is_not_there_is_not_found(self, provider: Provider, factory: BoxFactory) -> None:
        for wrong in (fresh("snapshot"), "../escaped", ""):
            with pytest.raises(SnapshotNotFound):
                await provider.snapshot(wrong)
            with pytest.raises(SnapshotNotFound):
                await provider.delete_snapshot(wrong)
            with pytest.raises(SnapshotNotFound):
                await factory.restore(wrong)

    @claims(Capability.SNAPSHOTS)
    async def test_a_snapshot_is_restored_into_a_box_of_another_spec(
        self, provider: Provider, box: Box, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        await sh(box, "echo 1 > file")
        snapshot = await factory.snapshot(box)
        id = factory.expect(fresh("box"))
        changed = spec.with_labels({"new": "label"})
        other = factory.handle(await provider.restore(snapshot.id, changed, id=id, labels={"mark": id}))
        assert (other.id, other.labels["new"], other.labels["mark"]) == (id, "label", id)
        assert [each.snapshot for each in await provider.find({"mark": id})] == [snapshot.id]

    @claims(Capability.SNAPSHOTS)
    async def test_a_failed_restore_leaves_nothing(
        self, provider: Provider, spec: BoxSpec, factory: BoxFactory
    ) -> None:
        id = factory.expect(fresh("box"))
        with pytest.raises(SnapshotNotFound):
            await provider.restore(fresh("snapshot"), spec, id=id)
        assert await provider.probe(id) is Liveness.GONE

    @claims(Capability.SNAPSHOTS)
    async def test_many_boxes_begin_with_one_snapshot_at_once(self, box: Box, factory: BoxFactory) -> None:
        await sh(box, "echo shared > file")
        snapshot = await factory.snapshot(box)
        boxes = await asyncio.gather(*(factory.restore(snapshot.id) for _ in range(6)))
        await asyncio.gather(*(sh(each, 'echo "$1" >> file', each.id) for each in boxes))
        for each in boxes:
            assert await each.files.read("file") == f"shared\n{each.id}\n".encode()

    # --- forks ---

    @claims(Capability.FORK)
    async def test_a_fork_has_the_files_and_goes_its_own_way(self, box: Box, factory: BoxFactory) -> None:
        await sh(box, 'echo 1 > file; echo 2 > "$HOME/file"; echo x > gone')
        fork = await factory.fork(box)
        assert fork.id != box.id
        assert fork.spec == box.spec
        await sh(box, "echo parent > file; rm gone; echo more > more")
        assert await text(fork, 'cat file "$HOME/file" gone; ls') == "1\n2\nx\nfile\ngone"
        await sh(fork, "echo fork > file; rm gone")
        assert await text(box, "cat file; ls") == "parent\nfile\nmore"
        await box.delete()
        assert await text(fork, "cat file; ls") == "fork\nfile"

    @claims(Capability.FORK)
    async def test_a_fork_has_processes_of_its_own(self, box: Box, factory: BoxFactory) -> None:
        process = await box.spawn(["sleep", "1000"])
        fork = await factory.fork(box)
        assert (await fork.metrics()).processes == 0
        assert (await process.info()).state is ProcessState.RUNNING

    @claims(Capability.FORK)
    async def test_a_fork_has_the_id_and_labels_that_it_was_given(
        self, provider: Provider, box: Box, factory: BoxFactory
    ) -> None:
        id = factory.expect(fresh("fork"))
        fork = factory.handle(await box.fork(id=id, labels={"mark": id}))
        assert (fork.id, fork.labels["mark"]) == (id, id)
        assert [each.id for each in await provider.find({"mark": id})] == [id]
        unnamed = factory.handle(await box.fork())
        factory.expect(unnamed.id)
        assert await provider.probe(unnamed.id) is Liveness.LIVE

    @claims(Capability.FORK)
    async def test_forks_of_forks_and_many_at_once_work(self, box: Box, factory: BoxFactory) -> None:
        await sh(box, "echo 0 > log")
        forks = await asyncio.gather(*(factory.fork(box) for _ in range(4)))
        for number, fork in enumerate(forks):
            await sh(fork, 'echo "$1" >> log', str(number))
        last = await factory.fork(forks[3])
        assert await last.files.read("log") == b"0\n3\n"
        assert await box.files.read("log") == b"0\n"

    # --- by value ---

    @claims(Capability.SNAPSHOTS, Capability.EXPORT)
    async def test_a_snapshot_is_carried_elsewhere_by_value(
        self, provider: Provider, box: Box, factory: BoxFactory
    ) -> None:
        await sh(box, 'mkdir -p d/empty; echo 1 > d/file; chmod 750 d/file; ln -s file d/link; echo x > "$HOME/gone"')
        first = await factory.snapshot(box)
        await sh(box, 'rm "$HOME/gone"; head -c 3000000 /dev/zero > zeros')
        second = await factory.snapshot(box, mark="carried")
        data = b"".join([piece async for piece in provider.export_snapshot(second.id)])
        await box.delete()
        for each in (second, first):
            await provider.delete_snapshot(each.id)
        imported = factory.snapshot_to_delete(await provider.import_snapshot(_in_pieces(data, 10_007)))
        assert (imported.kind, imported.holding, imported.parent) == (provider.snapshot_kind, Holding.VALUE, None)
        assert await provider.snapshot(imported.id) == imported
        other = await factory.restore(imported.id)
        assert await text(other, "cat d/file d/link; ls; wc -c < zeros") == "1\n1\nd\nzeros\n3000000"
        assert (await other.files.stat("d/file")).mode == 0o750
        assert not (await sh(other, 'test -e "$HOME/gone"')).ok

    @claims(Capability.SNAPSHOTS, Capability.EXPORT)
    async def test_what_is_no_snapshot_is_not_taken_for_one(
        self, provider: Provider, box: Box, factory: BoxFactory
    ) -> None:
        await sh(box, "head -c 2000000 /dev/urandom > file")
        snapshot = await factory.snapshot(box)
        data = b"".join([piece async for piece in provider.export_snapshot(snapshot.id)])
        before = {each.id for each in await provider.snapshots()}
        for wrong in (b"", b"garbage", b"garbage" * 10_000, data[: len(data) // 2], data[:100]):
            with pytest.raises(WrongSnapshot):
                await provider.import_snapshot(_in_pieces(wrong, 4096))
        assert {each.id for each in await provider.snapshots()} == before

    @claims(Capability.SNAPSHOTS, Capability.EXPORT)
    async def test_a_snapshot_that_is_not_there_is_not_exported(self, provider: Provider) -> None:
        with pytest.raises(SnapshotNotFound):
            await anext(provider.export_snapshot(fresh("snapshot")))

    @claims(Capability.SNAPSHOTS, Capability.EXPORT)
    async def test_a_broken_off_import_leaves_nothing(self, provider: Provider, box: Box, factory: BoxFactory) -> None:
        await sh(box, "head -c 2000000 /dev/urandom > file")
        snapshot = await factory.snapshot(box)
        before = {each.id for each in await provider.snapshots()}

        class Broken(Exception):
            pass

        async def breaks() -> AsyncIterator[bytes]:
            async for piece in provider.export_snapshot(snapshot.id):
                yield piece[: MEGABYTE // 2]
                raise Broken

        with pytest.raises(Broken):
            await provider.import_snapshot(breaks())
        assert {each.id for each in await provider.snapshots()} == before


async def _in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
