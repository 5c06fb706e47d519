"""Eating what there is: disk, names, processes, memory. The box runs into its end; the machine and others do not."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest
from tests.providers.local.attacking import PATIENCE, PRELUDE, Scene

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, CannotExecute, NoSpace
from holdfast.providers.host.disk import disk_guard
from holdfast.providers.host.limits import RLIMITS, detect
from holdfast.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20
FORK = """
import time
children = 0
try:
    while children < 20000:
        if os.fork() == 0:
            signal.pause()
            os._exit(0)
        children += 1
except OSError as error:
    print(children, errno.errorcode[error.errno], flush=True)
signal.pause()
"""
THREADS = """
import threading
threading.stack_size(32768)
count, never = 0, threading.Event()
try:
    while count < 20000:
        threading.Thread(target=never.wait, daemon=True).start()
        count += 1
except RuntimeError:
    pass
print(count, flush=True)
signal.pause()
"""


async def told_by(box: Box, program: str) -> list[str]:
    """What an attack that goes on says in its first line."""
    process = await box.spawn(["python3", "-c", PRELUDE + program])
    async with asyncio.timeout(PATIENCE):
        async for chunk in process.output():
            return chunk.data.decode().split()
    raise AssertionError(f"it said nothing: {await process.read('stderr')!r}")


async def answers(box: Box) -> None:
    async with asyncio.timeout(PATIENCE):
        assert (await box.exec(["echo", "here"])).text == "here\n"


async def recovers(box: Box) -> None:
    """Once what filled it is gone."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(CannotExecute):
                if (await box.exec(["echo", "here"])).text == "here\n":
                    return
            await asyncio.sleep(0.02)


# --- processes --------------------------------------------------------------------------------------------------------


async def test_a_box_forks_no_more_than_it_may(scene: Scene) -> None:
    async with scene.another(pids=40) as box:
        children, why = await told_by(box, FORK)
        assert int(children) <= 44
        assert why == "EAGAIN"
        await scene.still_fine()
        for each in await box.processes():
            await (await box.process(each.id)).kill()
        await recovers(box)


async def test_a_box_without_a_limit_of_its_own_has_one(scene: Scene) -> None:
    async with scene.another() as box:
        assert 1000 < int((await told_by(box, THREADS))[0]) <= 4100
        await scene.still_fine()
        async with asyncio.timeout(PATIENCE):
            await box.stop()
            await box.start()
        await answers(box)


async def test_a_fork_bomb_ends_with_its_box(scene: Scene) -> None:
    async with scene.another(pids=200) as box:
        bomb = await box.spawn(["sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 1000"])
        await scene.still_fine()
        with suppress(BoxError):
            await bomb.kill()
        async with asyncio.timeout(PATIENCE):
            await box.stop()
            await box.start()
        await answers(box)
        await scene.still_fine()


async def test_threads_count_as_processes(scene: Scene) -> None:
    async with scene.another(pids=40) as box:
        assert int((await told_by(box, THREADS))[0]) <= 44
        await scene.still_fine()


# --- memory -----------------------------------------------------------------------------------------------------------


async def test_a_box_that_eats_memory_loses_the_process_that_does(scene: Scene) -> None:
    eat = "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))"
    async with scene.another(memory=96 * MEGABYTE) as box:
        done = await box.exec(["python3", "-c", eat], timeout=PATIENCE)
        assert done.exit_code in (137, 1)  # killed, or told that there is no more
        await answers(box)
        await scene.still_fine()


async def test_memory_is_counted_over_all_processes_where_the_kernel_counts(scene: Scene) -> None:
    if detect().kind == RLIMITS:
        pytest.skip("no control groups here: each process is bounded for itself")
    eat = """
for _ in range(8):
    if os.fork() == 0:
        kept = bytearray(b"x" * (30 << 20))
        signal.pause()
import time
time.sleep(1)
alive = 0
for _ in range(8):
    alive += os.waitpid(-1, os.WNOHANG)[0] == 0
print(alive, flush=True)
"""
    async with scene.another(memory=96 * MEGABYTE) as box:
        with suppress(AssertionError):  # the one that counts may be the one that goes
            assert int((await told_by(box, eat))[0]) < 8
        await answers(box)
        await scene.still_fine()


async def test_shared_memory_and_run_are_small(scene: Scene) -> None:
    fill = """
def filled(folder):
    size = 0
    try:
        with open(folder + "/fill", "wb", buffering=0) as file:
            while size < 1 << 30:
                size += file.write(bytes(1 << 20))
    except OSError as error:
        return [size >> 20, errno.errorcode[error.errno]]
    finally:
        os.unlink(folder + "/fill")
tell([filled("/dev/shm"), filled("/run")])
"""
    for size, why in await scene.attack(fill):
        assert size <= 64
        assert why == "ENOSPC"


# --- disk -------------------------------------------------------------------------------------------------------------


async def test_one_file_is_no_larger_than_the_box_s_disk(scene: Scene) -> None:
    async with scene.another(disk=8 * MEGABYTE) as box:
        done = await box.exec(["sh", "-c", "head -c 64000000 /dev/zero > one"], timeout=PATIENCE)
        assert not done.ok
        assert (await box.files.stat("one")).size <= 8 * MEGABYTE
        assert not (await box.exec(["truncate", "-s", "1G", "sparse"])).ok
        await scene.still_fine()


async def test_kept_output_counts_as_the_box_s_disk(scene: Scene) -> None:
    async with scene.another(disk=8 * MEGABYTE) as box:
        process = await box.spawn(["yes"])
        assert await process.wait(PATIENCE) != 0
        kept = scene.provider.data_dir.box(box.id) / "processes" / process.id / "stdout"
        assert kept.stat().st_size <= 8 * MEGABYTE
        await scene.still_fine()


async def test_what_a_snapshot_has_frozen_still_counts_as_the_box_s_disk(scene: Scene) -> None:
    async with scene.another(disk=16 * MEGABYTE) as box:
        await box.files.write("first", os.urandom(10 * MEGABYTE))
        snapshot = await box.snapshot()
        try:
            assert ((await box.metrics()).disk or 0) >= 10 * MEGABYTE
            process = await box.spawn(["sh", "-c", "head -c 10000000 /dev/urandom > second; sleep 1000"])
            assert await process.wait(PATIENCE) == 137
            steps = await scene.provider.diagnose(box.id)
            assert any(step.name == "disk" and not step.ok for step in steps)
            await scene.still_fine()
        finally:
            await scene.provider.delete_snapshot(snapshot.id)


async def test_what_lies_in_closed_folders_counts_as_the_box_s_disk(scene: Scene) -> None:
    hide = """
for mode in (0, 0o200, 0o300, 0o400, 0o600):
    os.makedirs(f"{mode}/a/b")
    with open(f"{mode}/a/b/file", "wb") as file:
        file.write(os.urandom(3 << 20))
    os.chmod(f"{mode}/a", mode)
    os.chmod(f"{mode}", mode)
"""
    async with scene.another() as box:
        assert (await box.exec(["python3", "-c", PRELUDE + hide])).ok
        for _ in range(2):
            assert ((await box.metrics()).disk or 0) >= 15 * MEGABYTE
        modes = await box.exec(["stat", "-c", "%a", "0", "128", "192", "256", "384"])
        assert modes.stdout.split() == [b"0", b"200", b"300", b"400", b"600"], "as they were"
        await scene.still_fine()


async def test_folders_that_are_closed_without_end_hide_nothing(scene: Scene) -> None:
    hide = """
for depth in range(300):
    os.mkdir("closed")
    os.chdir("closed")
with open("file", "wb") as file:
    file.write(os.urandom(3 << 20))
for depth in range(300):
    os.chdir("..")
    os.chmod("closed", 0)
"""
    async with scene.another() as box:
        assert (await box.exec(["python3", "-c", PRELUDE + hide])).ok
        for _ in range(2):
            assert ((await box.metrics()).disk or 0) >= 3 * MEGABYTE
        await scene.still_fine()


async def test_a_flood_of_empty_files_is_stopped(scene: Scene) -> None:
    flood = """
os.mkdir("flood")
for number in range(30000):
    os.symlink("x", f"flood/{number}")
signal.pause()
"""
    async with scene.another(disk=16 * MEGABYTE) as box:  # not a byte of it taken by all these names
        process = await box.spawn(["python3", "-c", PRELUDE + flood])
        assert await process.wait(PATIENCE) == 137
        steps = await scene.provider.diagnose(box.id)
        assert any(step.name == "disk" and not step.ok for step in steps)
        await answers(box)
        await scene.still_fine()


async def test_many_files_that_are_written_at_once_are_stopped(scene: Scene) -> None:
    flood = """
import itertools
pieces = os.urandom(1 << 16)
for number in itertools.count():
    with open(f"f{number % 4000}", "ab") as file:
        file.write(pieces)
"""
    async with scene.another(disk=16 * MEGABYTE) as box:
        process = await box.spawn(["python3", "-c", PRELUDE + flood])
        assert await process.wait(PATIENCE) == 137
        await answers(box)
        with suppress(NoSpace):
            await box.files.write("after", b"x")
        await scene.still_fine()


@pytest.mark.parametrize("flood", ["yes > one", "i=0; while :; do head -c 999999 /dev/urandom > f$i; i=$((i+1)); done"])
async def test_a_box_that_asks_for_no_limit_has_one(tmp_path: Path, flood: str) -> None:
    async with (
        LocalProvider(tmp_path, box_disk=16 * MEGABYTE) as provider,
        await provider.create(BoxSpec(), id="greedy") as box,
    ):
        process = await box.spawn(["sh", "-c", flood])
        assert await process.wait(PATIENCE) != 0
        await answers(box)
        await box.delete()


async def test_output_that_never_ends_is_kept_up_to_the_box_s_disk(tmp_path: Path) -> None:
    async with (
        LocalProvider(tmp_path, box_disk=16 * MEGABYTE) as provider,
        await provider.create(BoxSpec(), id="loud") as box,
    ):
        process = await box.spawn(["yes"])
        assert await process.wait(PATIENCE) != 0
        assert ((await box.metrics()).disk or 0) < 40 * MEGABYTE
        await box.delete()


def test_a_machine_without_room_for_names_has_no_room() -> None:
    assert disk_guard.judge({"a": None, "b": None}, {"a": 10, "b": 20}, 0, 1)[0].id == "b"
    assert disk_guard.judge({"a": None}, {"a": 10}, 2, 1) == []


# --- what comes out ---------------------------------------------------------------------------------------------------


async def test_endless_output_is_not_collected_without_end(scene: Scene) -> None:
    async with scene.another() as box, asyncio.timeout(PATIENCE):
        with pytest.raises(BoxError, match="more than"):
            await box.exec(["cat", "/dev/zero"], max_output=10 * MEGABYTE)
        await answers(box)
        async with await box.channel(["sh", "-c", "cat /dev/zero >&2"]) as channel:
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(channel.stderr) <= 64 * 1024
        await scene.still_fine()
