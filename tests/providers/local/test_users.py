"""Who boxes are, outside of them: where the server is root and the kernel can, each is another user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec, HostMount, VolumeMount
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.local import LocalProvider, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has but one")]
REOPENS = "echo told > /dev/stdout; echo also > /dev/stderr"


async def user_of(provider: LocalProvider, box: Box) -> int:
    """As the kernel tells it of the box's process."""
    pid = GuestClient(box.id, provider.data_dir.box(box.id)).pid()
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    users = {line.split()[1:] and tuple(line.split()[1:]) for line in lines if line.startswith(("Uid:", "Gid:"))}
    (numbers,) = users
    assert len(set(numbers)) == 1
    return int(numbers[0])


async def able(provider: LocalProvider) -> LocalProvider:
    assert provider.sandbox._launcher is not None
    if not provider.sandbox._launcher.maps:
        pytest.skip("the kernel, or the file system of the tests, cannot show files as another user's")
    return provider


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


async def test_each_box_is_another_user_and_all_files_have_one_owner(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        await able(provider)
        await provider.create_volume("shared")
        spec = BoxSpec(volumes=(VolumeMount("shared", "/shared"),))
        first, second = await provider.create(spec, id="first"), await provider.create(spec, id="second")
        users = {await user_of(provider, first), await user_of(provider, second)}
        assert len(users) == 2
        assert not users & {0, provider.data_dir.uid}
        assert (await first.exec(["sh", "-ec", "id -u; umask 077; mkdir /shared/a; echo by first > /shared/a/file"])).ok
        assert (await second.exec(["sh", "-ec", "cat /shared/a/file; echo by second >> /shared/a/file"])).ok
        assert await first.files.read("/shared/a/file") == b"by first\nby second\n"
        assert owners(provider.data_dir.volumes / "shared" / "files") == {provider.data_dir.uid}
        assert owners(provider.data_dir.box("first") / "upper") == {provider.data_dir.uid}
        for box in (first, second):
            assert (await box.exec(["sh", "-c", REOPENS])).text == "told\n"
            kept = await box.spawn(["sh", "-c", REOPENS])
            assert await kept.wait(240) == 0
            assert await kept.read("stderr") == b"also\n"
            await box.delete()
        await provider.delete_volume("shared")


async def test_files_go_from_box_to_box_by_snapshots_and_forks(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        await able(provider)
        box = await provider.create(BoxSpec(), id="first")
        await box.exec(["sh", "-ec", "umask 077; mkdir private; echo mine > private/file"])
        snapshot = await box.snapshot()  # by a rename
        busy = await box.spawn(["sleep", "1000"])
        await box.files.write("more", b"text")
        fork = await box.fork()  # by a copy
        restored = await provider.restore(snapshot.id, BoxSpec(), id="restored")
        assert len({await user_of(provider, each) for each in (box, fork, restored)}) == 3
        for each in (box, fork, restored):
            assert (
                await each.exec(["sh", "-ec", "echo also >> private/file; cat private/file"])
            ).text == "mine\nalso\n"
        assert await fork.files.read("more") == b"text"
        await busy.kill()
        for each in (box, fork, restored):
            await each.delete()
        await provider.delete_snapshot(snapshot.id)


async def test_a_folder_of_the_machine_is_shared_as_before(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "open").write_text("root's\n")
    (folder / "open").chmod(0o666)
    async with LocalProvider(tmp_path / "home") as provider:
        spec = BoxSpec(mounts=(HostMount(str(folder), "/folder", read_only=False),))
        boxes = [await provider.create(spec, id=id) for id in ("first", "second")]
        for box in boxes:
            assert (await box.exec(["sh", "-ec", "echo x >> /folder/made; echo x >> /folder/open"])).ok
            await box.delete()
        assert (folder / "made").stat().st_uid == provider.data_dir.uid
        assert (folder / "open").stat().st_uid == 0


async def test_a_box_of_before_goes_on_and_becomes_another_user_when_it_starts_again(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        await able(provider)
        assert provider.sandbox._launcher is not None
        provider.sandbox._launcher.maps = False  # as before
        box = await provider.create(BoxSpec(), id="older")
        await box.files.write("file", b"text")
        assert await user_of(provider, box) == provider.data_dir.uid
    async with LocalProvider(tmp_path / "home") as provider:
        box = await provider.attach("older")
        assert await user_of(provider, box) == provider.data_dir.uid
        assert (await box.exec(["sh", "-c", REOPENS])).text == "told\n"
        kept = await box.spawn(["sh", "-c", REOPENS])
        assert await kept.wait(240) == 0
        fork = await box.fork()
        assert await fork.files.read("file") == b"text"
        await fork.delete()
        await box.stop()
        await box.start()
        assert await user_of(provider, box) != provider.data_dir.uid
        await box.files.write("file", b"more")
        assert await box.files.read("file") == b"more"
        await box.delete()


def test_the_user_of_a_box_is_the_same_each_time_and_another_in_another_home() -> None:
    home, other = Path("/home/a/local"), Path("/home/b/local")
    users = {runtime.box_user(folder, id) for folder in (home, other) for id in ("first", "second")}
    assert len(users) == 4
    assert runtime.box_user(home, "first") in users


async def test_a_box_that_takes_all_inotify_instances_leaves_its_neighbour_some(tmp_path: Path) -> None:
    """The kernel counts them by user."""
    take_all = (
        "import ctypes, sys\nlibc, taken = ctypes.CDLL(None), 0\n"
        "while libc.inotify_init1(0) >= 0: taken += 1\nprint(taken, flush=True)\nsys.stdin.read()\n"
    )
    async with LocalProvider(tmp_path / "home") as provider:
        await able(provider)
        greedy, neighbour = [await provider.create(BoxSpec(), id=id) for id in ("greedy", "neighbour")]
        async with await greedy.channel(["python3", "-c", take_all]) as channel:
            assert int(await channel.read()) > 0
            got = await neighbour.exec(["python3", "-c", "import ctypes; print(ctypes.CDLL(None).inotify_init1(0))"])
            assert int(got.text) >= 0
        for box in (greedy, neighbour):
            await box.delete()
