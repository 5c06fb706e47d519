"""A box that changes its files while the host copies or freezes them, by itself or by a helper outside of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.providers.local.attacking import PATIENCE, PRELUDE, Scene

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError
from holdfast.api.ids import new_id
from holdfast.providers.host import limits
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

SECRET: Final = "a-secret-of-the-machine"
FOLDERS: Final = 300
"""That are exchanged for links while they are copied: each is another chance."""
SNAPSHOTS: Final = 4
BAIT: Final = """
import os, sys
for number in range(int(sys.argv[2])):
    os.mkdir(f"bait/{number}") if os.path.isdir("bait") else os.makedirs(f"bait/{number}")
    open(f"bait/{number}/key", "w").write("the box's own")
    os.symlink(sys.argv[1], f"bait/{number}.link")
"""
EXCHANGE: Final = """
def stay_awake():
    pass
def exchange(folder, count):
    "Put links to a folder of the machine where folders are, and back, for ever."
    tell("ready")
    while True:
        for number in range(count):
            stay_awake()
            libc.renameat2(folder, b"bait/%d" % number, folder, b"bait/%d.link" % number, 2)
"""
AWAKE: Final = """
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("kind", ctypes.c_int), ("x", ctypes.c_byte * 48)]
timer = ctypes.c_void_p()
assert libc.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT, 0)), ctypes.byref(timer)) == 0
soon = (ctypes.c_long * 4)(0, 0, 0, 10_000_000)
def stay_awake():
    "Whoever is stopped within the next moment is woken by the kernel."
    libc.timer_settime(timer, 0, soon, None)
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder that only the server's user may look into, with a key in it."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "key").write_text(SECRET)
    return folder


async def keys_of(provider: LocalProvider, snapshot: str) -> set[str]:
    """What a box that is restored from a snapshot finds where the bait was."""
    box = await provider.restore(snapshot, BoxSpec(), id=new_id("b"))
    try:
        done = await box.exec(["sh", "-c", "cat bait/*/key 2>/dev/null | sed 's/own/own\\n/g'; true"], timeout=PATIENCE)
        return set(done.text.split("\n"))
    finally:
        await box.delete()


async def snapshot_again_and_again(scene: Scene, box: Box) -> tuple[set[str], list[BoxError]]:
    """Keys that got into snapshots, and what was said where there was none."""
    found: set[str] = set()
    refused: list[BoxError] = []
    for _ in range(SNAPSHOTS):
        try:
            snapshot = await box.snapshot()
        except BoxError as error:
            refused.append(error)
            continue
        found |= await keys_of(scene.provider, snapshot.id)
        await scene.provider.delete_snapshot(snapshot.id)
    return found, refused


@contextmanager
def helper(box: str, descriptor: int, provider: LocalProvider, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process outside of a box that got a descriptor of the box's root, and is the same user."""
    drop = "" if os.geteuid() else f"os.setgroups([]); os.setresgid(*[{provider.sandbox.user_of(box)}] * 3); "
    drop += "" if os.geteuid() else f"os.setresuid(*[{provider.sandbox.user_of(box)}] * 3)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{PRELUDE}\nroot = {descriptor}\n{drop}\n{EXCHANGE}\n{program}"],
        pass_fds=(descriptor,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def is_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b'"ready"\n'


@asynccontextmanager
async def root_of(scene: Scene, box: Box) -> AsyncIterator[int]:
    _, (descriptor,) = await GuestClient(box.id, scene.provider.data_dir.box(box.id)).ask_descriptors({"op": "hold"})
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# --- copies of what runs ----------------------------------------------------------------------------------------------


async def test_a_box_that_wakes_itself_gets_no_file_of_the_machine_into_its_snapshot(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "detect", lambda: limits.LimitBackend(limits.RLIMITS, {}, {}))  # no freezer
    async with LocalProvider(tmp_path / "home") as provider:
        box = await provider.create(BoxSpec(), id="attacker")
        scene = Scene(tmp_path / "home", provider, box, box)
        try:
            assert (await box.exec(["python3", "-c", BAIT, str(secret), str(FOLDERS)], timeout=PATIENCE)).ok
            attack = f"{PRELUDE}{EXCHANGE}{AWAKE}exchange(os.open('.', os.O_RDONLY), {FOLDERS})"
            process = await box.spawn(["python3", "-c", attack])
            async with asyncio.timeout(PATIENCE):
                await anext(aiter(process.output()))
            found, refused = await snapshot_again_and_again(scene, box)
        finally:
            await box.delete()
        assert SECRET not in found
        assert {error.code for error in refused} == {"box_not_still"}, "it cannot be held still, and was not refused"
        assert "box stop attacker" in (refused[0].hint or "")


async def test_somebody_with_a_descriptor_gets_no_file_of_the_machine_into_a_snapshot(
    scene: Scene, secret: Path
) -> None:
    async with scene.another() as box:
        assert (await box.exec(["python3", "-c", BAIT, str(secret), str(FOLDERS)], timeout=PATIENCE)).ok
        busy = await box.spawn(["sleep", "1000"])
        async with root_of(scene, box) as root:
            attack = f"exchange(os.open('workspace', os.O_RDONLY, dir_fd=root), {FOLDERS})"
            with helper(box.id, root, scene.provider, attack) as process:
                await is_ready(process)
                found, refused = await snapshot_again_and_again(scene, box)
        assert SECRET not in found
        assert {error.code for error in refused} <= {"box_not_still"}
        snapshot = await box.snapshot()  # and now that nobody interferes
        assert await keys_of(scene.provider, snapshot.id) <= {"the box's own", ""}
        await scene.provider.delete_snapshot(snapshot.id)
        await busy.kill()


async def test_a_fork_of_a_box_that_changes_meanwhile_has_no_file_of_the_machine(scene: Scene, secret: Path) -> None:
    async with scene.another() as box:
        assert (await box.exec(["python3", "-c", BAIT, str(secret), str(FOLDERS)], timeout=PATIENCE)).ok
        busy = await box.spawn(["sleep", "1000"])
        async with root_of(scene, box) as root:
            attack = f"exchange(os.open('workspace', os.O_RDONLY, dir_fd=root), {FOLDERS})"
            with helper(box.id, root, scene.provider, attack) as process:
                await is_ready(process)
                for _ in range(SNAPSHOTS):
                    with contextlib.suppress(BoxError):
                        fork = await box.fork()
                        keys = (await fork.exec(["sh", "-c", "cat bait/*/key"], timeout=PATIENCE)).text
                        await fork.delete()
                        assert SECRET not in keys
        await busy.kill()


# --- frozen layers ----------------------------------------------------------------------------------------------------

MODIFY: Final = """
folder = os.open("workspace", os.O_RDONLY, dir_fd=root)
held = os.open("held", os.O_RDWR, dir_fd=folder) if {open} else -1
tell("ready")
sys.stdin.readline()
def rewrite():
    os.pwrite(held, b"changed!", 0)
    return "done"
def replace():
    with open("file", "w", opener=lambda path, flags: os.open(path, flags, dir_fd=folder)) as file:
        file.write("changed!")
    return "done"
def add():
    os.close(os.open("added", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    return "done"
def through_proc():
    os.close(os.open(f"/proc/self/fd/{{folder}}/added-by-proc", os.O_CREAT | os.O_WRONLY))
    return "done"
tell([attempt(each) for each in (rewrite, replace, add, through_proc)])
"""


@pytest.mark.parametrize("how", ["idle", "stopped", "killed"])
@pytest.mark.parametrize("has_file_open", [False, True])
async def test_a_snapshot_stays_as_it_was_taken(scene: Scene, how: str, has_file_open: bool) -> None:
    async with scene.another() as box:
        await box.files.write("file", b"original")
        await box.files.write("held", b"original")
        async with root_of(scene, box) as root:
            with helper(box.id, root, scene.provider, MODIFY.format(open=has_file_open)) as process:
                await is_ready(process)
                if how == "stopped":
                    await box.stop()
                elif how == "killed":
                    await GuestClient(box.id, scene.provider.data_dir.box(box.id)).kill()
                snapshot = await box.snapshot()
                told, _ = await asyncio.to_thread(process.communicate, b"\n", PATIENCE)
                assert told, "it never tried"
        restored = await scene.provider.restore(snapshot.id, BoxSpec(), id=new_id("b"))
        assert await restored.files.read("file") == b"original"
        assert await restored.files.read("held") == b"original"
        assert sorted(entry.name for entry in await restored.files.list(".")) == ["file", "held"]
        await restored.delete()
        await scene.provider.delete_snapshot(snapshot.id)
