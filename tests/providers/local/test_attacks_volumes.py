"""Boxes that share a folder and try to hand each other more than files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.providers.local.attacking import PATIENCE, PRELUDE, Scene

from holdfast.api.box.spec import HostMount, VolumeMount
from holdfast.api.ids import new_id
from holdfast.guest.init.landlock import beside
from holdfast.providers.local.machine import landlock_version

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(landlock_version() < 2, reason="this kernel has no Landlock, or an old one"),
]

OFFER: Final = """
server = socket.socket(socket.AF_UNIX)
outcome = attempt(server.bind, sys.argv[1])
tell(outcome)
if outcome is None:
    server.listen(1)
    client = server.accept()[0]
    socket.send_fds(client, [b"root"], [os.open("/", os.O_RDONLY)])
    client.recv(1)
"""
TAKE: Final = """
client = socket.socket(socket.AF_UNIX)
outcome = attempt(client.connect, sys.argv[1])
if outcome is None:
    descriptors = socket.recv_fds(client, 16, 1)[1]
    outcome = os.listdir(descriptors[0])
tell(outcome)
"""


@pytest.mark.parametrize("subpath", ["", "inner"])
async def test_no_descriptor_goes_from_box_to_box_through_a_volume(scene: Scene, subpath: str) -> None:
    name = new_id("v").replace("_", "-")
    await scene.provider.create_volume(name)
    mount = VolumeMount(name, "/shared", subpath=subpath)
    async with scene.another(volumes=(mount,)) as first, scene.another(volumes=(mount,)) as second:
        offering = await first.spawn(["python3", "-c", PRELUDE + OFFER, "/shared/socket"])
        told = b""
        async with asyncio.timeout(PATIENCE):
            async for chunk in offering.output():
                told += chunk.data
                if told.endswith(b"\n"):
                    break
        taken = await scene.attack(TAKE, "/shared/socket", box=second)
        assert told == b'"EACCES"\n'
        assert taken == "ENOENT"
    await scene.provider.delete_volume(name)


async def test_a_box_with_a_volume_has_sockets_in_a_working_directory_of_its_own(scene: Scene) -> None:
    """Also beside the folders above the volume, where what is made later has none."""
    async with volume_of(scene) as name:
        mount = VolumeMount(name, "/home/box/memory")
        async with scene.another(volumes=(mount,), workdir="/home/other/work") as box:
            told = await box.exec(["python3", "-c", PRELUDE + OFFER.partition("if")[0], "/home/other/work/socket"])
            assert told.text == "null\n"
            told = await box.exec(["python3", "-c", PRELUDE + OFFER.partition("if")[0], "/home/box/memory/socket"])
            assert told.text == '"EACCES"\n'


@asynccontextmanager
async def volume_of(scene: Scene) -> AsyncIterator[str]:
    name = new_id("v").replace("_", "-")
    await scene.provider.create_volume(name)
    try:
        yield name
    finally:
        await scene.provider.delete_volume(name)


TRICKS: Final = """
import stat
shared = sys.argv[1]
def bind(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
    return "done"
def node():
    os.mknod(shared + "/node", stat.S_IFSOCK | 0o777)
    return "done"
def by_link():
    os.symlink(shared, "/tmp/way")
    return bind("/tmp/way/socket")
def by_descriptor():
    os.chdir(shared)
    return bind("relative")
def moved_in():
    bind("/tmp/elsewhere")
    os.rename("/tmp/elsewhere", shared + "/moved")
    return "done"
def linked_in():
    os.link("/tmp/elsewhere", shared + "/linked")
    return "done"
def folder_above_moved():
    os.rename("/srv/above", "/tmp/above")
    return bind("/tmp/above/shared/socket")
def exchanged():
    os.mkdir("/tmp/other")
    if libc.renameat2(-100, b"/srv/above", -100, b"/tmp/other", 2) < 0:
        raise OSError(ctypes.get_errno(), "")
    return bind("/tmp/other/shared/socket")
tell([attempt(each) for each in (
    node, by_link, by_descriptor, moved_in, linked_in, folder_above_moved, exchanged,
)])
"""


async def test_no_trick_puts_a_socket_into_a_shared_folder(scene: Scene) -> None:
    async with volume_of(scene) as name, scene.another(volumes=(VolumeMount(name, "/srv/above/shared"),)) as box:
        told = await scene.attack(TRICKS, "/srv/above/shared", box=box)
        assert told == ["EACCES", "EACCES", "EACCES", "EXDEV", "EXDEV", "EXDEV", "EXDEV"]
        assert await box.files.list("/srv/above/shared") == []


async def test_no_socket_is_made_in_a_folder_of_the_machine_that_a_box_may_write_to(
    scene: Scene, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    mount = HostMount(str(tmp_path), "/shared", read_only=False)
    async with scene.another(mounts=(mount,)) as box:
        await box.files.write("/shared/file", b"text")
        assert (await scene.attack(OFFER, "/shared/socket", box=box)) == "EACCES"


ORDINARY: Final = """
import shutil, stat
def bind(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
    return "done"
def work():
    for folder in ("/workspace", "/tmp", "/home/box", "/var/tmp", "/run", "/dev/shm"):
        bind(folder + "/socket")
    os.makedirs("/workspace/a/b/c")
    open("/workspace/a/b/c/file", "w").write("text")
    os.rename("/workspace/a/b", "/home/box/moved")
    os.link("/home/box/moved/c/file", "/tmp/link")
    os.rename("/home/box/moved/c/file", "/workspace/file")
    shutil.move("/workspace/file", "/shared/file")
    os.mkdir("/shared/folder")
    os.rename("/shared/file", "/shared/folder/file")
    os.mkfifo("/shared/pipe")
    os.symlink("folder", "/shared/link")
    os.link("/shared/folder/file", "/shared/again")
    os.mkdir("/new")
    os.rename("/tmp/link", "/new/link")
    return open("/shared/again").read()
tell(work())
"""


async def test_a_box_with_a_volume_does_all_else_as_before(scene: Scene) -> None:
    async with volume_of(scene) as name, scene.another(volumes=(VolumeMount(name, "/shared"),)) as box:
        assert await scene.attack(ORDINARY, box=box) == "text"
        await box.stop()
        await box.start()
        assert await box.files.read("/shared/folder/file") == b"text"


def test_what_lies_beside_shared_folders_is_found() -> None:
    tree = {"/": ["srv", "tmp", "data"], "/srv": ["a", "x"], "/srv/a": ["b", "c"], "/data": ["inner"]}
    cases = {
        ("/data",): ["/srv", "/tmp"],
        ("/srv/a/b",): ["/data", "/tmp", "/srv/x", "/srv/a/c"],
        ("/data", "/data/inner"): ["/srv", "/tmp"],
        ("/srv/a", "/srv/a/b"): ["/data", "/tmp", "/srv/x"],
        ("/new/folder",): ["/data", "/srv", "/tmp"],
    }
    for shared, expected in cases.items():
        assert beside(list(shared), lambda folder: tree.get(folder, [])) == expected
