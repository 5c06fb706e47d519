"""Links, pipes, archives and trees that a box plants so that the host, at its next step, goes astray."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.providers.local.attacking import PATIENCE, Scene, no_descriptor_is_left, open_descriptors

from holdfast.api.box.box import Power
from holdfast.api.box.files import MAX_READ
from holdfast.api.box.process import ProcessState
from holdfast.api.box.spec import BoxSpec, HostMount, VolumeMount
from holdfast.api.errors.boxes import BoxError, FileProblem, HostileArchive, InvalidSpec, ProviderRefused, WrongFileKind
from holdfast.api.ids import new_id
from holdfast.providers.host.disk.data_dir import measure
from holdfast.providers.host.disk.layers import OWN_LAYERS

pytestmark = pytest.mark.anyio


async def sh(scene: Scene, script: str, *, box: object = None) -> str:
    done = await (box or scene.box).exec(["sh", "-ec", script], timeout=PATIENCE)  # type: ignore[attr-defined]
    assert done.exit_code == 0, done.stderr.decode()
    return str(done.text)


def archive(*entries: tuple[str, bytes, str]) -> bytes:
    """A tar of name, kind and where a link leads (or the content of a file)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, target in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if kind == tarfile.REGTYPE:
                entry.size = len(target)
                tar.addfile(entry, io.BytesIO(target.encode()))
            else:
                entry.linkname = target
                tar.addfile(entry)
    return out.getvalue()


async def one_piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


DEEP = """
python3 - << 'END'
import os
os.mkdir("shut")
os.chdir("shut")
for _ in range(1500):
    os.mkdir("folder")
    os.chdir("folder")
END
"""
HOSTILE = {
    "climbing": (("../../etc/evil", tarfile.REGTYPE, "evil"),),
    "absolute": (("/etc/evil", tarfile.REGTYPE, "evil"),),
    "through its own link": (("way", tarfile.SYMTYPE, "/tmp"), ("way/evil", tarfile.REGTYPE, "evil")),
    "through a planted link": (("planted/evil", tarfile.REGTYPE, "evil"),),
    "a hard link out": (("evil", tarfile.LNKTYPE, "../../etc/passwd"),),
    "a hard link through a link": (("way", tarfile.SYMTYPE, "/etc"), ("evil", tarfile.LNKTYPE, "way/passwd")),
    "a device": (("evil", tarfile.CHRTYPE, ""),),
    "a pipe": (("evil", tarfile.FIFOTYPE, ""),),
}


# --- archives into a box, and out of it -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOSTILE)
async def test_an_upload_never_leaves_its_folder(scene: Scene, kind: str) -> None:
    place = new_id("in")
    await sh(scene, f"mkdir -p {place}; ln -s /tmp {place}/planted")
    with pytest.raises(HostileArchive):
        await scene.box.files.upload_tar(one_piece(archive(*HOSTILE[kind])), place)
    assert await sh(scene, "find /tmp /etc /workspace -name evil -type f -size +0 2>/dev/null || true") == ""
    await scene.still_fine()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../etc/passwd", "/proc/1/root", "inner/../../up"])
async def test_a_download_with_a_link_that_leads_out_is_refused_whole(
    scene: Scene, tmp_path: Path, target: str
) -> None:
    place = new_id("out")
    await sh(scene, f"mkdir -p {place}/inner; echo fine > {place}/file; ln -s {target} {place}/link")
    with pytest.raises(HostileArchive):
        await scene.box.files.download(place, tmp_path / "got")
    assert list(tmp_path.iterdir()) == []


async def test_a_download_takes_files_and_leaves_pipes_and_sockets(scene: Scene, tmp_path: Path) -> None:
    place = new_id("out")
    await sh(scene, f"mkdir {place}; cd {place}; echo fine > file; mkfifo pipe; ln -s file link; chmod 7777 file")
    bind = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    await scene.box.exec(["python3", "-c", bind, f"{place}/socket"])
    async with asyncio.timeout(PATIENCE):
        await scene.box.files.download(place, tmp_path / "got")
    assert sorted(path.name for path in (tmp_path / "got").iterdir()) == ["file", "link"]
    assert (tmp_path / "got" / "file").stat().st_mode & 0o7777 == 0o777


async def test_a_huge_file_with_holes_is_refused_before_a_byte_is_taken(scene: Scene, tmp_path: Path) -> None:
    box = await scene.provider.create(BoxSpec(disk=20 << 40), id=new_id("b"))  # or the limit would refuse the file
    try:
        assert (await box.exec(["sh", "-ec", "mkdir out; truncate -s 10T out/huge"])).ok
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(BoxError):
                await box.files.download("out", tmp_path / "got")
            with pytest.raises(BoxError):
                await box.files.read("out/huge")
            assert await box.files.read("out/huge", offset=1 << 40, length=10) == bytes(10)
        assert list(tmp_path.iterdir()) == []
        assert MAX_READ < 1 << 30
    finally:
        await box.delete()


# --- one file ---------------------------------------------------------------------------------------------------------


async def test_what_is_no_plain_file_is_not_read(scene: Scene) -> None:
    await sh(scene, "rm -f pipe; mkfifo pipe; ln -sf /dev/zero zero; ln -sf /proc/self/fd/0 stdin; ln -sf loop loop")
    async with asyncio.timeout(PATIENCE):
        for name in ("pipe", "zero", "/dev/zero", "/dev/ptmx", "loop", ".", "/dev/tty"):
            with pytest.raises(FileProblem):
                await scene.box.files.read(name)
        with pytest.raises(WrongFileKind):
            await scene.box.files.read("pipe")
    await scene.still_fine()


async def test_a_file_that_changes_its_kind_while_it_is_read_harms_nobody(scene: Scene) -> None:
    swap = """
import os, itertools
for number in itertools.count():
    for make in (lambda: os.mkfifo("next"), lambda: os.symlink("/dev/zero", "next"), lambda: os.mkdir("next"),
                 lambda: open("next", "w").write("fine"), lambda: os.symlink("/proc/self/environ", "next")):
        try:
            make()
            if os.path.isdir("swapped") and not os.path.islink("swapped"):
                os.rmdir("swapped")
            elif os.path.isdir("next"):
                os.unlink("swapped")
            os.rename("next", "swapped")
        except OSError:
            pass
"""
    before = open_descriptors()
    swapping = await scene.box.spawn(["python3", "-c", swap])
    outcomes = set()
    async with asyncio.timeout(PATIENCE):
        for _ in range(150):
            try:
                data = await scene.box.files.read("swapped")
                assert b"SECRET" not in data
                outcomes.add("read")
            except FileProblem as problem:
                outcomes.add(problem.code)
            with contextlib.suppress(FileProblem):
                async for piece in scene.box.files.stream("swapped"):
                    assert len(piece) < 100_000
    await swapping.kill()
    assert len(outcomes) > 1
    await no_descriptor_is_left(before)
    await sh(scene, "rm -rf swapped next")


async def test_a_write_goes_where_links_lead_inside_the_box_and_nowhere_else(scene: Scene) -> None:
    await sh(scene, "ln -sfn /etc/passwd link; ln -sfn /usr/bin tools; ln -sfn ../../../../tmp/written up")
    for name in ("link", "tools/env", "/etc/passwd", "/.holdfast/init.pyc", "/proc/self/environ", "/dev/null/x"):
        with pytest.raises(FileProblem):
            await scene.box.files.write(name, b"evil")
    await scene.box.files.write("up", b"mine")
    assert await scene.box.files.read("/tmp/written") == b"mine"
    assert not Path("/tmp/written").exists()
    assert b"evil" not in Path("/etc/passwd").read_bytes()


async def test_a_deletion_does_not_follow_links(scene: Scene) -> None:
    await sh(scene, "mkdir -p doomed kept; echo x > kept/file; ln -sfn ../kept doomed/link; ln -sfn /etc doomed/etc")
    await scene.box.files.delete("doomed", recursive=True)
    assert await scene.box.files.read("kept/file") == b"x\n"


# --- what lies in the way of a later start ----------------------------------------------------------------------------


async def test_links_in_place_of_a_box_s_own_folders_lead_nowhere_at_the_next_start(
    scene: Scene, tmp_path: Path
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    async with scene.another() as box:
        script = """
cd /
for name in workspace tmp srv mnt root opt sys lib32 libx32 .python; do
    rm -rf "/$name" 2>/dev/null; ln -s "$1" "/$name" 2>/dev/null || true
done
ls -ld /workspace /tmp
"""
        done = await box.exec(["sh", "-c", script, "sh", f"/oldroot{outer}"], cwd="/")
        assert b"->" in done.stdout
        await box.stop()
        with contextlib.suppress(BoxError):  # a box that took its own workdir away may not come up; it harms nobody
            await box.start()
            await box.exec(["sh", "-c", "echo evil > /workspace/evil; echo evil > /tmp/evil"], cwd="/")
        assert list(outer.iterdir()) == []
        await scene.still_fine()


async def test_a_link_to_another_folder_of_the_box_in_place_of_the_workspace_works(scene: Scene) -> None:
    async with scene.another() as box:
        await box.exec(
            ["sh", "-ec", "cd /; rm -rf /workspace; mkdir /home/box/w; ln -s /home/box/w /workspace"], cwd="/"
        )
        await box.stop()
        await box.start()
        await box.files.write("file", b"mine")
        assert await box.files.read("/home/box/w/file") == b"mine"


async def test_the_way_to_a_mount_cannot_be_bent_by_a_link(scene: Scene) -> None:
    name = new_id("v").replace("_", "-")
    await scene.provider.create_volume(name)
    async with scene.another(volumes=(VolumeMount(name, "/srv/a/b"),)) as box:
        # The mount itself stays where it is; what lies above it can be moved.
        done = await box.exec(["sh", "-c", "rmdir /srv/a/b; mv /srv/a /srv/x && ln -s /etc /srv/a"], cwd="/")
        assert done.exit_code == 0, done.stderr
        await box.stop()
        with pytest.raises(ProviderRefused, match="/srv/a is a link"):
            await box.start()
        assert await box.power() is Power.STOPPED
    await scene.provider.delete_volume(name)
    await scene.still_fine()


@pytest.mark.parametrize("target", ["/", "../../..", "../..", "/etc"])
async def test_a_link_in_a_volume_is_no_sub_path(scene: Scene, target: str) -> None:
    name = new_id("v").replace("_", "-")
    await scene.provider.create_volume(name)
    mount = VolumeMount(name, "/data", subpath="sub/inner")
    async with scene.another(volumes=(VolumeMount(name, "/data"),)) as planter, scene.another(volumes=(mount,)) as box:
        await box.files.write("/data/file", b"mine")
        assert await planter.files.read("/data/sub/inner/file") == b"mine"
        await box.stop()
        await sh(scene, f"cd /data; mv sub kept; ln -s {target} sub", box=planter)
        with pytest.raises(InvalidSpec):
            await box.start()
        with pytest.raises(InvalidSpec):
            await scene.provider.create(BoxSpec(volumes=(mount,)), id=new_id("b"))
        await sh(scene, f"cd /data; rm sub; mkdir sub; ln -s {target} sub/inner", box=planter)
        with pytest.raises(InvalidSpec):
            await box.start()
        await sh(scene, "cd /data; rm -r sub; mv kept sub", box=planter)
        await box.start()
        assert await box.files.read("/data/file") == b"mine"
    assert await scene.provider.delete_volume(name) >= 0
    assert measure(scene.provider.data_dir.volumes / name) == 0


async def test_a_mounted_folder_that_becomes_a_link_does_not_open_the_server_s_own(
    scene: Scene, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    shared = tmp_path / "shared"
    (shared / "inner").mkdir(parents=True)
    shared.chmod(0o777)
    (shared / "inner").chmod(0o777)
    await asyncio.to_thread((scene.home / "secret").write_text, "the server's")
    whole = HostMount(str(shared), "/shared", read_only=False)
    inner = HostMount(str(shared / "inner"), "/inner")
    async with scene.another(mounts=(whole,)) as planter, scene.another(mounts=(inner,)) as box:
        await box.stop()
        await sh(scene, f"cd /shared; mv inner away; ln -s {scene.home} inner", box=planter)
        with pytest.raises(ProviderRefused):
            await box.start()
        with pytest.raises(ProviderRefused):
            await scene.provider.create(BoxSpec(mounts=(inner,)), id=new_id("b"))
        await sh(scene, "cd /shared; rm inner; mv away inner", box=planter)
        await box.start()
        assert await box.files.list("/inner") == []


async def test_the_server_s_own_folder_and_the_kernel_s_are_never_mounted(scene: Scene, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(scene.home)
    for source in (scene.home, scene.home / "local", scene.home.parent, link, "/", "/proc", "/sys", "/dev/null"):
        with pytest.raises(ProviderRefused):
            await scene.provider.create(BoxSpec(mounts=(HostMount(str(source), "/data"),)), id=new_id("b"))


# --- snapshots --------------------------------------------------------------------------------------------------------


async def test_a_snapshot_with_links_and_pipes_is_copied_exported_and_restored_as_what_it_is(
    scene: Scene, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-the-machine")
    async with scene.another() as box:
        await sh(
            scene,
            f"ln -s {secret} link; ln -s {tmp_path} folder; mkfifo pipe; chmod 0 pipe",
            box=box,
        )
        busy = await box.spawn(["sleep", "1000"])  # so that the files of a box that runs are copied
        snapshots = [await box.snapshot()]
        await busy.kill()
        await busy.wait(PATIENCE)
        snapshots.append(await box.snapshot())
        for snapshot in snapshots:
            async with asyncio.timeout(PATIENCE):
                data = b"".join([piece async for piece in scene.provider.export_snapshot(snapshot.id)])
            assert b"a-secret-of-the-machine" not in data
            again = await scene.provider.import_snapshot(one_piece(data))
            other = await scene.provider.restore(again.id, BoxSpec(), id=new_id("b"))
            assert (await other.exec(["readlink", "link"])).text.strip() == str(secret)
            assert not (await other.exec(["cat", "link"])).ok
            await other.delete()
            await scene.provider.delete_snapshot(again.id)
        for snapshot in snapshots:
            await scene.provider.delete_snapshot(snapshot.id)
    await scene.still_fine()


@pytest.mark.parametrize("hindrance", ["mkdir shut; chmod 0 shut", "echo x > shut; chmod 0 shut", DEEP])
async def test_what_cannot_be_copied_or_exported_is_said_and_the_box_goes_on(scene: Scene, hindrance: str) -> None:
    async with scene.another() as box:
        await sh(scene, hindrance, box=box)
        busy = await box.spawn(["sleep", "1000"])
        snapshots = []
        with contextlib.suppress(FileProblem):  # where the host has to read it, and may not
            snapshots.append(await box.snapshot())
        assert (await busy.info()).state is ProcessState.RUNNING
        assert (await box.exec(["true"])).ok
        await busy.kill()
        await busy.wait(PATIENCE)
        snapshots.append(await box.snapshot())  # a rename: nothing is read
        other = await scene.provider.restore(snapshots[-1].id, BoxSpec(), id=new_id("b"))
        assert (await other.exec(["ls", "-d", "shut"])).ok
        await other.delete()
        with contextlib.suppress(FileProblem):
            async for _ in scene.provider.export_snapshot(snapshots[-1].id):
                pass
        for snapshot in snapshots:
            await scene.provider.delete_snapshot(snapshot.id)
    assert {path.name for path in scene.provider.data_dir.layers.iterdir()} == set(OWN_LAYERS)
    await scene.still_fine()


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if "planted" not in kind])
async def test_a_snapshot_from_elsewhere_is_not_unpacked_outside_of_its_layer(scene: Scene, kind: str) -> None:
    async with scene.another() as box:
        snapshot = await box.snapshot()
    exported = b"".join([piece async for piece in scene.provider.export_snapshot(snapshot.id)])
    await scene.provider.delete_snapshot(snapshot.id)
    header = b"\n".join(exported.split(b"\n", 2)[:2]) + b"\n"
    before = sorted(path.name for path in scene.provider.data_dir.layers.iterdir())
    with pytest.raises(BoxError):
        await scene.provider.import_snapshot(one_piece(header + archive(*HOSTILE[kind])))
    assert sorted(path.name for path in scene.provider.data_dir.layers.iterdir()) == before


async def test_a_snapshot_from_elsewhere_cannot_put_links_where_a_box_is_mounted_together(scene: Scene) -> None:
    async with scene.another() as box:
        snapshot = await box.snapshot()
    exported = b"".join([piece async for piece in scene.provider.export_snapshot(snapshot.id)])
    await scene.provider.delete_snapshot(snapshot.id)
    header = b"\n".join(exported.split(b"\n", 2)[:2]) + b"\n"
    for name in ("usr", "etc", "proc", "dev", "run", ".holdfast", "bin", "lib64"):
        evil = archive((name, tarfile.SYMTYPE, "/oldroot/tmp"))
        imported = await scene.provider.import_snapshot(one_piece(header + evil))
        with pytest.raises(ProviderRefused, match="is a link"):
            await scene.provider.restore(imported.id, BoxSpec(), id=new_id("b"))
        await scene.provider.delete_snapshot(imported.id)
    await scene.still_fine()


# --- trees that break what walks them ---------------------------------------------------------------------------------


async def test_a_tree_deeper_than_any_path_is_measured_and_removed(scene: Scene) -> None:
    deep = """
import os
os.chdir("/workspace")
for _ in range(3000):
    os.mkdir("folder")
    os.chdir("folder")
with open("content", "wb") as file:
    file.write(os.urandom(3 << 20))
os.chmod(".", 0)
"""
    async with scene.another() as box:
        assert (await box.exec(["python3", "-c", deep], timeout=PATIENCE)).ok
        metrics = await box.metrics()
        assert metrics.disk is not None
        assert metrics.disk > 3 << 20
        async with asyncio.timeout(PATIENCE):
            deleted = await box.delete()
            await scene.provider.sandbox.workers.wait()  # where it took longer than anybody should wait
        assert deleted.freed > 0
    assert not [path for path in scene.provider.data_dir.trash.iterdir() if box.id in path.name]
    await scene.still_fine()


async def test_names_that_are_no_text_are_told_and_removed(scene: Scene, tmp_path: Path) -> None:
    async with scene.another() as box:
        make = r"""
import os
os.mkdir(b"/workspace/d")
for name in (b"\xff\xfe", b"new\nline", b"-rf", b"\x1b[31mred", b"a" * 255, "\u202egnp.exe".encode()):
    open(b"/workspace/d/" + name, "w").close()
"""
        assert (await box.exec(["python3", "-c", make])).ok
        assert len(await box.files.list("d")) == 6
        await box.files.download("d", tmp_path / "got")
        assert len(os.listdir(os.fsencode(tmp_path / "got"))) == 6  # noqa: PTH208
        await box.delete()
    assert not [path for path in scene.provider.data_dir.trash.iterdir() if box.id in path.name]


async def test_nobody_else_on_the_machine_reaches_what_boxes_leave(scene: Scene) -> None:
    """A box can make programs that run as whoever runs them, and as their owner: on the machine, nobody gets there."""
    await sh(scene, "cp /usr/bin/id mine; chmod 6755 mine")
    there = scene.provider.data_dir.box(scene.box.id) / "upper" / "workspace" / "mine"
    assert there.stat().st_mode & 0o7777 == 0o6755
    assert scene.provider.data_dir.path.stat().st_mode & 0o007 == 0
