"""Images of a provider: imported from archives, used by boxes, and made from snapshots."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from holdfast.api.errors.boxes import BadArchive, HostileArchive, ImageNotFound, InvalidSpec
from holdfast.api.images import ImageConfig
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.images import ImageStore
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import BoxFactory, Suite, claims, fresh, text

_APPLETS: Final = ("cat", "echo", "env", "grep", "id", "ls", "mkdir", "pwd", "rm", "sh", "sleep", "test", "true")
_PIECE: Final = 1 << 18


class Images(Suite):
    @pytest.fixture
    def rootfs(self) -> bytes:
        """A root filesystem tarball with `sh` and the usual commands, by default from this machine's busybox."""
        busybox = shutil.which("busybox")
        if busybox is None:
            pytest.skip("this machine has no busybox to make an image of: override the fixture `rootfs`")
        files = {"bin/busybox": Path(busybox).read_bytes(), "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n"}
        return archive_of(files, {f"bin/{name}": "busybox" for name in _APPLETS})

    @pytest.fixture
    async def images(self, provider: Provider) -> AsyncIterator[ImageStore]:
        if Capability.IMAGES not in provider.capabilities:
            pytest.skip("images is not claimed")
        if provider.images is None or not provider.images.takes_archives:
            pytest.skip("the provider keeps no images of its own")
        before = {each.name for each in await provider.images.list()}
        yield provider.images
        for each in await provider.images.list():
            if each.name not in before:
                await provider.images.remove(each.name)

    @claims(Capability.IMAGES)
    async def test_an_image_is_taken_in_listed_and_removed_by_name(self, images: ImageStore, rootfs: bytes) -> None:
        name = f"{fresh('image')}:1"
        made = await images.import_archive(name, pieces_of(rootfs))
        assert made.name == name
        assert made.digest.startswith("sha256:")
        assert made.size > 0
        assert (await images.get(name)).digest == made.digest
        assert (await images.get(made.digest)).digest == made.digest
        assert name in [each.name for each in await images.list()]
        assert await images.remove(name) >= 0
        assert name not in [each.name for each in await images.list()]
        for ask in (images.get, images.remove):
            with pytest.raises(ImageNotFound):
                await ask(name)

    @claims(Capability.IMAGES)
    async def test_a_box_begins_with_the_files_of_its_image_and_no_others(
        self, images: ImageStore, factory: BoxFactory, rootfs: bytes
    ) -> None:
        name = fresh("image")
        await images.import_archive(name, pieces_of(rootfs))
        box = await factory.box(image=name)
        assert (
            await text(box, "cat /etc/passwd; ls /home 2>/dev/null; echo end") == "root:x:0:0:root:/root:/bin/sh\nend"
        )
        assert await text(box, "echo changed > /etc/passwd; id -u") == "0"
        other = await factory.box(image=name)
        assert await text(other, "cat /etc/passwd") == "root:x:0:0:root:/root:/bin/sh"

    @claims(Capability.IMAGES)
    async def test_a_box_keeps_its_files_when_the_image_moves_or_goes(
        self, images: ImageStore, factory: BoxFactory, rootfs: bytes
    ) -> None:
        name = fresh("image")
        await images.import_archive(name, pieces_of(rootfs))
        box = await factory.box(image=name)
        await images.remove(name)
        assert await text(box, "ls /bin/busybox /etc/passwd") == "/bin/busybox\n/etc/passwd"
        with pytest.raises(ImageNotFound):
            await factory.box(image=name)

    @claims(Capability.IMAGES, Capability.SNAPSHOTS)
    async def test_a_snapshot_becomes_an_image(self, images: ImageStore, factory: BoxFactory, rootfs: bytes) -> None:
        name, made = fresh("image"), fresh("made")
        await images.import_archive(name, pieces_of(rootfs))
        box = await factory.box(image=name)
        await text(box, "echo step > /etc/step; rm /etc/passwd")
        snapshot = await factory.snapshot(box)
        config = ImageConfig({"STEP": "1"}, "/srv")
        image = await images.from_snapshot(snapshot.id, made, config=config, labels={"of": "suite"})
        assert (image.name, image.config.env, image.labels["of"]) == (made, {"STEP": "1"}, "suite")
        again = await factory.box(image=made)
        assert (
            await text(again, "cat /etc/step; echo $STEP; pwd; ls /etc/passwd 2>/dev/null || true") == "step\n1\n/srv"
        )

    @claims(Capability.IMAGES)
    async def test_an_archive_that_means_harm_is_refused_and_leaves_nothing(self, images: ImageStore) -> None:
        name = fresh("image")
        for archive in (archive_of({"../evil": b"x"}, {}), archive_of({"out/evil": b"x"}, {"out": "/tmp"}), b"none"):
            with pytest.raises((HostileArchive, BadArchive)):
                await images.import_archive(name, pieces_of(archive))
        with pytest.raises(InvalidSpec):
            await images.import_archive("No Name", pieces_of(b""))
        assert name not in [each.name for each in await images.list()]

    @claims(Capability.IMAGES)
    async def test_an_image_that_there_is_not_is_refused_before_anything_is_made(
        self, provider: Provider, factory: BoxFactory
    ) -> None:
        id = fresh("box")
        with pytest.raises(ImageNotFound):
            await factory.box(id=id, image=fresh("nothing"))
        assert id not in [info.id for info in await provider.find()]


def archive_of(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    """Returns a tar archive. Links come first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


async def pieces_of(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]
