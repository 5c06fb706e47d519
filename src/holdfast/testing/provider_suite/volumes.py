"""Volumes, and folders of the machine that a box mounts."""

# Small files of their own, read to check them.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.api.box.box import Liveness
from holdfast.api.box.spec import BoxSpec, HostMount
from holdfast.api.errors.boxes import BoxError, InvalidSpec, VolumeExists, VolumeInUse, VolumeNotFound
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import BoxFactory, Suite, claims, fresh, sh, text


class Volumes(Suite):
    @claims(Capability.VOLUMES)
    async def test_volumes_are_made_listed_and_deleted_by_name(self, provider: Provider, factory: BoxFactory) -> None:
        name = factory.volume_to_delete(fresh("volume"))
        made = await provider.create_volume(name)
        assert made.name == name
        assert made.created_at > 0
        assert name in [each.name for each in await provider.volumes()]
        with pytest.raises(VolumeExists):
            await provider.create_volume(name)
        assert await provider.delete_volume(name) >= 0
        assert name not in [each.name for each in await provider.volumes()]
        with pytest.raises(VolumeNotFound):
            await provider.delete_volume(name)

    @claims(Capability.VOLUMES)
    async def test_a_volume_with_a_name_that_makes_no_sense_is_refused(self, provider: Provider) -> None:
        for wrong in ("", "../escaped", "a/b", ".", "a\0b", "n" * 100):
            with pytest.raises(InvalidSpec):
                await provider.create_volume(wrong)

    @claims(Capability.VOLUMES)
    async def test_a_volume_is_shared_between_boxes_and_outlives_them(
        self, provider: Provider, factory: BoxFactory
    ) -> None:
        mounts = (factory.mount(await factory.volume()),)
        one, two = await factory.box(volumes=mounts), await factory.box(volumes=mounts)
        await sh(one, "echo one > shared/file; chmod 666 shared/file")
        assert await text(two, "cat shared/file; echo two >> shared/file") == "one"
        assert await one.files.read("shared/file") == b"one\ntwo\n"
        await one.delete()
        await two.delete()
        three = await factory.box(volumes=mounts)
        assert await three.files.read("shared/file") == b"one\ntwo\n"

    @claims(Capability.VOLUMES)
    async def test_a_folder_of_a_volume_is_mounted_alone(self, factory: BoxFactory) -> None:
        volume = await factory.volume()
        whole = await factory.box(volumes=(factory.mount(volume),))
        part = await factory.box(volumes=(factory.mount(volume, subpath="a/b"),))
        await sh(whole, "echo whole > shared/file")
        assert await part.files.list("shared") == []
        await sh(part, "echo part > shared/file")
        assert await whole.files.read("shared/a/b/file") == b"part\n"

    @claims(Capability.VOLUMES, Capability.ISOLATION)
    async def test_a_folder_of_a_volume_does_not_lead_out_of_it(self, provider: Provider, factory: BoxFactory) -> None:
        """A box with the whole volume puts a link where another one's folder is to be."""
        volume = await factory.volume()
        whole = await factory.box(volumes=(factory.mount(volume),))
        await sh(whole, "ln -s /etc shared/out; ln -s ../../../../../../../../etc shared/up")
        for subpath in ("out", "up", "out/deeper"):
            id = factory.expect(fresh("box"))
            try:
                box = await factory.box(id=id, volumes=(factory.mount(volume, subpath=subpath),))
            except BoxError:
                assert await provider.probe(id) is Liveness.GONE
            else:
                assert not await box.files.exists("shared/passwd")

    @claims(Capability.VOLUMES, Capability.ISOLATION)
    async def test_a_volume_that_is_read_only_is_not_written_to(self, factory: BoxFactory) -> None:
        volume = await factory.volume()
        writing = await factory.box(volumes=(factory.mount(volume),))
        await sh(writing, "echo 1 > shared/file; chmod 777 shared shared/file")
        reading = await factory.box(volumes=(factory.mount(volume, read_only=True),))
        assert await reading.files.read("shared/file") == b"1\n"
        assert not (await sh(reading, "echo 2 > shared/file")).ok
        assert not (await sh(reading, "echo 2 > shared/new")).ok
        with pytest.raises(BoxError):
            await reading.files.write("shared/new", b"")
        assert await writing.files.read("shared/file") == b"1\n"

    @claims(Capability.VOLUMES)
    async def test_a_volume_in_use_is_not_deleted(self, provider: Provider, factory: BoxFactory) -> None:
        volume = await factory.volume()
        box = await factory.box(volumes=(factory.mount(volume),))
        await sh(box, "head -c 2000000 /dev/urandom > shared/file")
        with pytest.raises(VolumeInUse):
            await provider.delete_volume(volume)
        if Capability.STOP in provider.capabilities:
            await box.stop()
            with pytest.raises(VolumeInUse):
                await provider.delete_volume(volume)
        await box.delete()
        assert await provider.delete_volume(volume) >= 2_000_000

    @claims(Capability.VOLUMES)
    async def test_a_box_with_a_volume_that_is_not_there_is_not_made(
        self, provider: Provider, factory: BoxFactory
    ) -> None:
        id = factory.expect(fresh("box"))
        with pytest.raises(VolumeNotFound):
            await factory.box(id=id, volumes=(factory.mount(fresh("volume")),))
        assert await provider.probe(id) is Liveness.GONE

    @claims(Capability.VOLUMES, Capability.SNAPSHOTS)
    async def test_a_snapshot_does_not_hold_what_is_in_a_volume(self, factory: BoxFactory) -> None:
        volume = await factory.volume()
        box = await factory.box(volumes=(factory.mount(volume),))
        await sh(box, "echo old > shared/file; echo old > file")
        snapshot = await factory.snapshot(box)
        await sh(box, "echo new > shared/file; echo new > file")
        with_it = await factory.restore(snapshot.id, volumes=(factory.mount(volume),))
        assert await text(with_it, "cat shared/file file") == "new\nold"
        without = await factory.restore(snapshot.id)
        assert not await without.files.exists("shared/file")

    @claims(Capability.VOLUMES)
    async def test_many_boxes_write_to_one_volume_at_once(self, factory: BoxFactory) -> None:
        mounts = (factory.mount(await factory.volume()),)
        boxes = await asyncio.gather(*(factory.box(volumes=mounts) for _ in range(4)))
        await asyncio.gather(*(sh(each, 'echo 1 > "shared/$1"', each.id) for each in boxes))
        assert {each.name for each in await boxes[0].files.list("shared")} == {each.id for each in boxes}

    # --- folders of the machine ---

    @claims(Capability.HOST_MOUNTS)
    async def test_a_folder_of_the_machine_is_seen_and_not_written_to(
        self, factory: BoxFactory, open_folder: Path
    ) -> None:
        (open_folder / "file").write_text("of the machine")
        mount = HostMount(str(open_folder), f"{BoxSpec().workdir}/machine")
        box = await factory.box(mounts=(mount,))
        assert await text(box, "cat machine/file") == "of the machine"
        assert not (await sh(box, "echo 1 > machine/file || echo 1 > machine/new")).ok
        assert [each.name for each in open_folder.iterdir()] == ["file"]
        assert (open_folder / "file").read_text() == "of the machine"

    @claims(Capability.HOST_MOUNTS)
    async def test_a_folder_of_the_machine_is_written_to_where_that_was_asked_for(
        self, factory: BoxFactory, open_folder: Path
    ) -> None:
        open_folder.chmod(0o777)
        mount = HostMount(str(open_folder), f"{BoxSpec().workdir}/machine", read_only=False)
        box = await factory.box(mounts=(mount,))
        await sh(box, "echo of the box > machine/file")
        assert (open_folder / "file").read_text() == "of the box\n"

    @claims(Capability.HOST_MOUNTS)
    async def test_a_folder_of_the_machine_that_is_not_there_is_refused(
        self, provider: Provider, factory: BoxFactory, open_folder: Path
    ) -> None:
        id = factory.expect(fresh("box"))
        with pytest.raises(BoxError):
            await factory.box(id=id, mounts=(HostMount(str(open_folder / "nothing"), "/mnt/host"),))
        assert await provider.probe(id) is Liveness.GONE
