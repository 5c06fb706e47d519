"""Images of local boxes: archives of every form, layers that are shared, and boxes that begin with them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.providers.local import rootfs
from tests.providers.local.rootfs import Tar, busybox, docker_archive, oci_layout, pieces

from holdfast.api.errors.boxes import BadArchive, ImageNotFound, InvalidSpec, WrongSnapshot
from holdfast.api.ids import new_id
from holdfast.api.images import ImageConfig
from holdfast.boxes import Box, BoxSpec
from holdfast.providers.local import LocalProvider
from holdfast.providers.local.images import store
from holdfast.providers.local.images.archive import layer_name

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[Box]]


@pytest.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path_factory.mktemp("home")) as provider:
        await provider.images.import_archive("busybox", pieces(busybox().done()))
        yield provider
        for box in await provider.find():
            await provider.remove(box.id)


@pytest.fixture
async def box_of(provider: LocalProvider) -> AsyncIterator[Make]:
    made: list[Box] = []

    async def make(image: str = "busybox", **changes: Any) -> Box:
        made.append(await provider.create(BoxSpec(image=image, **changes), id=new_id("b")))
        return made[-1]

    yield make
    for box in made:
        await box.delete()


async def sh(box: Box, command: str) -> str:
    done = await box.exec(["sh", "-c", command], timeout=60)
    assert done.ok, done.stderr.decode() + done.text
    return done.text.strip()


def layers_on_disk(provider: LocalProvider) -> set[str]:
    return {path.name for path in provider.data_dir.layers.iterdir()}


# --- what a box of an image is ----------------------------------------------------------------------------------------


async def test_a_box_of_one_program_runs_it_as_root(box_of: Make) -> None:
    box = await box_of()
    assert await sh(box, "id -u; pwd; echo $HOME; echo $USER") == "0\n/workspace\n/root\nroot"
    assert await sh(box, "cat /etc/hosts") == "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback"
    assert "usr" not in (await sh(box, "ls /")).split()
    assert await box.files.read("/etc/hostname") == b"box\n"
    await box.files.write("/usr/share/of-our-own", b"kept")
    assert await sh(box, "cat /usr/share/of-our-own") == "kept"


async def test_root_is_told_that_owners_changed_and_they_do_not(box_of: Make) -> None:
    box = await box_of()
    told = await sh(box, "touch /f && chown 5:6 /f && mknod /dev/x c 1 3; stat -c '%u %g' /f; mkfifo /p; stat -c %F /p")
    assert told == "0 0\nfifo"
    assert not (await box.exec(["sh", "-c", "test -e /x"])).ok


async def test_modes_bind_root_to_nothing_among_its_own_files(box_of: Make) -> None:
    box = await box_of()
    assert await sh(box, "echo x > /f; chmod 0 /f; echo y >> /f; cat /f") == "x\ny"


async def test_chroot_leads_into_the_boxs_own_files(box_of: Make) -> None:
    box = await box_of()
    await sh(box, "mkdir -p /inner/bin; cp /bin/busybox /inner/bin/; chroot /inner /bin/busybox ls / > /told")
    assert await box.files.read("/told") == b"bin\n"


async def test_env_workdir_and_user_of_an_image_are_honoured(provider: LocalProvider, box_of: Make) -> None:
    config = {
        "Env": ["PATH=/bin", "TIDE=high", "1 bad"],
        "WorkingDir": "/srv/app",
        "User": "sailor",
        "Labels": {"a": "b"},
    }
    image = await provider.images.import_archive("sailing", pieces(oci_layout([busybox().done()], config)))
    assert image.config == ImageConfig({"PATH": "/bin", "TIDE": "high"}, "/srv/app", "sailor")
    assert image.labels == {"a": "b"}
    box = await box_of("sailing", env={"TIDE": "low"})
    assert await sh(box, "id -u; id -g; pwd; echo $HOME $USER $TIDE") == "1234\n1235\n/srv/app\n/home/sailor sailor low"
    other = await box_of("sailing", workdir="/tmp/elsewhere")
    assert await sh(other, "pwd") == "/tmp/elsewhere"


async def test_limits_volumes_terminals_and_ports_are_as_in_other_boxes(provider: LocalProvider, box_of: Make) -> None:
    box = await box_of(memory=64 << 20, pids=32)
    process = await box.spawn(["sh", "-c", "test -t 0 && echo terminal"], pty=True)
    assert await process.wait(240) == 0
    assert (await process.read()).strip() == b"terminal"
    assert all(step.ok for step in await box.ping())


async def test_an_unknown_image_is_refused_by_name_before_anything_is_made(provider: LocalProvider) -> None:
    before = set(provider.data_dir.ids())
    for name in ("nothing:here", "sha256:" + "0" * 64, "UPPER", "../x"):
        with pytest.raises(ImageNotFound, match="there is no local image") as refused:
            await provider.create(BoxSpec(image=name), id=new_id("b"))
        assert "holdfast image" in (refused.value.hint or "")
    assert set(provider.data_dir.ids()) == before


# --- the life of one --------------------------------------------------------------------------------------------------


async def test_files_outlive_a_restart_a_snapshot_a_fork_and_the_image(provider: LocalProvider, box_of: Make) -> None:
    await provider.images.import_archive("fleeting", pieces(busybox().file("etc/mark", b"1").done()))
    box = await box_of("fleeting")
    await sh(box, "echo kept > /etc/kept; rm /etc/mark")
    snapshot = await box.snapshot()
    await provider.images.remove("fleeting")
    with pytest.raises(ImageNotFound):
        await provider.images.get("fleeting")
    await box.stop()
    await box.start()
    fork = await box.fork(id=new_id("b"))
    restored = await provider.restore(snapshot.id, BoxSpec(image="fleeting"), id=new_id("b"))
    for each in (box, fork, restored):
        assert await sh(each, "cat /etc/kept; ls /etc/mark 2>/dev/null; id -u; echo $HOME") == "kept\n0\n/root"
        await each.delete()
    await provider.delete_snapshot(snapshot.id)
    assert not any(name.startswith(".") for name in layers_on_disk(provider))


async def test_a_snapshot_by_value_is_the_same_box_elsewhere(
    provider: LocalProvider, box_of: Make, tmp_path: Path
) -> None:
    box = await box_of()
    await sh(box, "echo kept > /etc/kept; rm /etc/group")
    snapshot = await box.snapshot()
    exported = b"".join([piece async for piece in provider.export_snapshot(snapshot.id)])
    await provider.delete_snapshot(snapshot.id)
    async with LocalProvider(tmp_path / "elsewhere") as other:
        taken = await other.import_snapshot(pieces(exported))
        again = await other.restore(taken.id, BoxSpec(), id="again")
        try:
            assert (
                await sh(again, "cat /etc/kept; id -u; ls /etc/group 2>/dev/null; ls /bin/busybox")
                == "kept\n0\n/bin/busybox"
            )
        finally:
            await again.delete()


async def test_a_snapshot_becomes_an_image_without_a_copy(provider: LocalProvider, box_of: Make) -> None:
    box = await box_of()
    await sh(box, "echo made > /etc/made")
    snapshot = await box.snapshot()
    before = layers_on_disk(provider)
    config = ImageConfig({"STEP": "1"}, "/srv", "sailor:7")
    image = await provider.images.from_snapshot(snapshot.id, "made:1", config=config, labels={"step": "1"})
    assert layers_on_disk(provider) == before
    assert (image.config, image.labels) == (config, {"step": "1"})
    await provider.delete_snapshot(snapshot.id)
    again = await box_of("made:1")
    assert await sh(again, "cat /etc/made; echo $STEP; pwd; id -u; id -g") == "made\n1\n/srv\n1234\n7"
    await provider.images.remove("made:1")
    assert await sh(again, "cat /etc/made") == "made"


async def test_a_snapshot_of_a_box_without_an_image_becomes_none(provider: LocalProvider) -> None:
    box = await provider.create(BoxSpec(), id=new_id("b"))
    snapshot = await box.snapshot()
    with pytest.raises(WrongSnapshot, match="without an image"):
        await provider.images.from_snapshot(snapshot.id, "none")
    with pytest.raises(WrongSnapshot, match="without an image"):
        await provider.restore(snapshot.id, BoxSpec(image="busybox"), id=new_id("b"))
    await provider.delete_snapshot(snapshot.id)
    await box.delete()


async def test_a_box_keeps_what_it_began_with_when_the_name_moves(provider: LocalProvider, box_of: Make) -> None:
    first = await provider.images.import_archive("moving", pieces(busybox().file("version", b"1").done()))
    old = await box_of("moving")
    second = await provider.images.import_archive("moving:latest", pieces(busybox().file("version", b"2").done()))
    assert (second.name, first.digest != second.digest) == ("moving", True)
    new = await box_of("moving")
    assert [await sh(each, "cat /version") for each in (old, new)] == ["1", "2"]
    await old.delete()
    assert layer_name(first.layers[0]) not in layers_on_disk(provider)
    assert layer_name(second.layers[0]) in layers_on_disk(provider)
    assert (await provider.images.get(second.digest)).name == "moving"
    assert (await provider.images.get(second.digest[7:19])).digest == second.digest


# --- archives ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=lambda each: each.__name__
)
async def test_an_archive_may_be_compressed(provider: LocalProvider, compress: Callable[[bytes], bytes]) -> None:
    tar = Tar().file("etc/one", b"1" * 3000).done()
    image = await provider.images.import_archive("packed", pieces(compress(tar) + b"", 1000))
    assert image.layers == (rootfs.sha256(tar),)
    await provider.images.remove("packed")


async def test_zstd_is_read_or_refused_with_what_to_do(provider: LocalProvider) -> None:
    from holdfast.api.errors.boxes import Unsupported

    with pytest.raises((Unsupported, BadArchive)) as refused:
        await provider.images.import_archive("packed", pieces(b"\x28\xb5\x2f\xfd" + bytes(100)))
    assert "zstd" in str(refused.value)


@pytest.mark.parametrize("write", [oci_layout, docker_archive])
async def test_layers_cover_each_other_as_they_say(
    provider: LocalProvider, box_of: Make, write: Callable[..., bytes]
) -> None:
    below = busybox().folder("d").file("d/gone", b"x").file("d/stays", b"1").folder("o").file("o/hidden", b"x")
    below.file("f", b"1").folder("was").file("was/deep", b"x").file("twice", b"1").hard_link("same", "twice")
    middle = (
        Tar().file("d/.wh.gone").folder("o").file("o/.wh..wh..opq").file("o/seen", b"2").file(".wh.f").file(".wh.was")
    )
    middle.folder("was").file("was/new", b"2").file("d/added", b"2")
    top = Tar().file("f", b"3").file("linked", b"3", pax_headers={"SCHILY.xattr.user.mark": "m"}).link("to", "/f")
    layers = [each.done() for each in (below, middle, top)]
    image = await provider.images.import_archive("layered", pieces(write([*layers, layers[0]][:3])))
    assert image.layers == tuple(rootfs.sha256(each) for each in layers)
    box = await box_of("layered")
    found = (
        "cd /; ls d; ls o; ls was; cat f to; stat -c '%h %i' twice same | sort -u | wc -l; find / -xdev -name '.wh*'"
    )
    assert await sh(box, found) == "added\nstays\nseen\nnew\n331"
    place = provider.data_dir.layers / layer_name(image.layers[2]) / "files" / "linked"
    assert os.getxattr(place, "user.mark") == b"m"
    again = await provider.images.import_archive("layered:2", pieces(write(layers)))
    assert again.digest == image.digest


async def test_layers_are_shared_by_digest(provider: LocalProvider) -> None:
    base, top = busybox().file("shared", b"1").done(), Tar().file("top", b"x" * 10_000).done()
    one = await provider.images.import_archive("share:1", pieces(docker_archive([base])))
    two = await provider.images.import_archive(
        "share:2", pieces(oci_layout([base, top], packed=[gzip.compress(base), gzip.compress(top)]))
    )
    assert two.layers[0] == one.layers[0]
    assert [each.name for each in await provider.images.list() if each.name.startswith("share")] == [
        "share:1",
        "share:2",
    ]
    assert await provider.images.remove("share:1") < 10_000
    assert await provider.images.remove("share:2") > one.size
    assert not {layer_name(each) for each in two.layers} & layers_on_disk(provider)


async def test_more_layers_than_a_mount_takes_are_merged(provider: LocalProvider, box_of: Make) -> None:
    layers = [
        busybox().done(),
        *(Tar().file(f"n{number}", b"x").file(f".wh.n{number - 1}").done() for number in range(40)),
    ]
    image = await provider.images.import_archive("many", pieces(oci_layout(layers)))
    assert len(image.layers) == store.MOST_LAYERS
    assert await sh(await box_of("many"), "ls / | grep '^n[0-9]'") == "n39"


async def test_a_layer_that_comes_twice_counts_where_it_comes_last(provider: LocalProvider, box_of: Make) -> None:
    base, mark, other = busybox().done(), Tar().file("mark", b"1").done(), Tar().file("mark", b"2").done()
    await provider.images.import_archive("twice", pieces(docker_archive([base, mark, other, mark])))
    assert await sh(await box_of("twice"), "cat /mark") == "1"


async def test_setuid_is_dropped_and_modes_are_kept(provider: LocalProvider) -> None:
    tar = (
        Tar()
        .file("su", b"", 0o4755)
        .folder("t", 0o3777)
        .file("secret", b"", 0o000)
        .folder("shut", 0o000)
        .file("shut/in", b"")
    )
    image = await provider.images.import_archive("modes", pieces(tar.done()))
    place = provider.data_dir.layers / layer_name(image.layers[0]) / "files"
    modes = {name: stat.S_IMODE((place / name).lstat().st_mode) for name in ("su", "t", "secret", "shut")}
    assert modes == {"su": 0o755, "t": 0o1777, "secret": 0o600, "shut": 0o700}
    assert {path.lstat().st_uid for path in place.rglob("*")} == {provider.data_dir.uid}


async def test_devices_of_dev_are_left_out(provider: LocalProvider) -> None:
    import tarfile

    tar = Tar().folder("dev").add("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3).add("run/pipe", tarfile.FIFOTYPE)
    image = await provider.images.import_archive("devices", pieces(tar.file("x").done()))
    files = provider.data_dir.layers / layer_name(image.layers[0]) / "files"
    assert sorted(str(path.relative_to(files)) for path in files.rglob("*")) == ["dev", "x"]


async def test_names_of_images_make_sense(provider: LocalProvider) -> None:
    for name in ("Upper", "", "a b", "../a", "a/../b", "-a", "a" * 300):
        with pytest.raises(InvalidSpec):
            await provider.images.import_archive(name, pieces(Tar().file("x").done()))


# --- package managers -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not rootfs.has_debian(), reason="this machine has no dpkg to make a Debian of")
async def test_apt_installs_system_wide_in_a_debian(provider: LocalProvider, box_of: Make, tmp_path: Path) -> None:
    await provider.images.import_archive("debian", pieces(rootfs.debian(tmp_path / "debian.tar")))
    postinst = "#!/bin/sh\nset -e\nmkdir -p /var/lib/tide\nchown -R www-data:www-data /var/lib/tide\n"
    package = rootfs.package(tmp_path, "tide", {"usr/bin/tide": b"#!/bin/sh\necho high tide\n"}, {"postinst": postinst})
    box = await box_of("debian")
    for name, data in rootfs.repository([package]).items():
        await box.files.write(f"/repository/{name}", data)
    await box.files.write("/etc/apt/sources.list", b"deb [trusted=yes] file:/repository ./\n")
    await sh(box, "apt-get -q update && apt-get -qy install tide")
    assert await sh(box, "tide; dpkg-query -W -f '${Status}' tide") == "high tide\ninstall ok installed"
    snapshot = await box.snapshot()
    await provider.images.from_snapshot(snapshot.id, "debian:tide")
    await provider.delete_snapshot(snapshot.id)
    again = await box_of("debian:tide")
    assert (
        await sh(again, "tide && apt-get -qy remove tide > /dev/null; test -e /usr/bin/tide || echo gone")
        == "high tide\ngone"
    )
