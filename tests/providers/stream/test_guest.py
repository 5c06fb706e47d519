"""Guest and bridge as a provider starts them: from the files that it is told to put into a box, on any Python."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.providers.stream.over_pipes import GUEST, ProcessTransport

from holdfast.providers.stream import (
    StreamFiles,
    StreamGuestClient,
    StreamProcesses,
    Transport,
    bridge_command,
    guest_command,
    guest_files,
)

pytestmark = pytest.mark.anyio
ENV = {"PATH": "/usr/bin:/bin"}


def pythons() -> list[str]:
    """This one, and the oldest that a box may have, where there is one."""
    oldest = sorted(Path.home().glob(".pyenv/versions/3.9*/bin/python3.9")) or [
        Path(found) for found in [shutil.which("python3.9")] if found is not None
    ]
    # A shim of something that manages versions may be all there is of it.
    working = [each for each in oldest if not subprocess.run([each, "-c", ""], capture_output=True).returncode]
    return [sys.executable, *(str(each) for each in working[:1])]


@contextlib.contextmanager
def started(tmp_path: Path, box: str, python: str = sys.executable) -> Iterator[StreamGuestClient]:
    folder, run = tmp_path / "guest", tmp_path / "run"
    folder.mkdir(exist_ok=True)
    for name, data in guest_files().items():
        (folder / name).write_bytes(data)
    argv = guest_command([python], str(folder), box=box, run=str(run), options=["unconfined"])
    # Not pytest's own stderr: that is a file without a name, by which a guest sees that its folder was deleted.
    with (tmp_path / "start.log").open("wb") as log:
        process = subprocess.Popen(argv, env={}, stderr=log)
    try:

        async def dial() -> Transport:
            return ProcessTransport(bridge_command([python], str(folder), run=str(run)))

        yield StreamGuestClient(box, dial)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("python", pythons())
async def test_a_box_of_these_files_does_what_it_is_asked(tmp_path: Path, python: str) -> None:
    with started(tmp_path, "one", python) as guest:
        try:
            processes, files = StreamProcesses(guest), StreamFiles(guest, str(tmp_path))
            done = await processes.exec(["sh", "-c", "cat; echo problem >&2; exit 3"], ENV, "/", stdin=b"in")
            assert (done.exit_code, done.stdout, done.stderr) == (3, b"in", b"problem\n")
            process = await processes.spawn(["sh", "-c", "tty; exit 4"], ENV, "/", stdin=False, size=(24, 80))
            assert await process.wait(240) == 4
            assert (await process.read()).startswith(b"/dev/pts/")
            assert b"".join([each.data async for each in process.output()]).startswith(b"/dev/pts/")
            await files.write("folder/file", b"text")
            assert [each.name for each in await files.find(".", "file")] == ["file"]
            assert [each.text for each in await files.search("ex", "folder")] == ["text"]
            archive = b"".join([piece async for piece in files.download_tar("folder")])
            assert b"text" in archive
        finally:
            await guest.close()


async def test_the_processes_of_a_box_outlive_its_guest_and_not_a_copy_of_its_files(tmp_path: Path) -> None:
    with started(tmp_path, "one") as guest:
        process = await StreamProcesses(guest).spawn(
            ["sh", "-c", "echo kept; exit 5"], ENV, "/", stdin=False, size=None
        )
        assert await process.wait(240) == 5
        await guest.close()
    with started(tmp_path, "one") as guest:
        found = await StreamProcesses(guest).get(process.id)
        assert (await found.read(), await found.wait(240)) == (b"kept\n", 5)
        await guest.close()
    with started(tmp_path, "another") as guest:
        assert await StreamProcesses(guest).all() == []
        await guest.close()


async def test_a_guest_ends_no_other_that_has_the_name_of_its_box(tmp_path: Path) -> None:
    """Of another home on the same machine, say."""
    (tmp_path / "other").mkdir()
    with started(tmp_path, "one") as guest:
        await guest.open()
        with started(tmp_path / "other", "one") as other:
            await other.open()
            assert (await StreamProcesses(guest).exec(["true"], ENV, "/")).ok
            await other.close()
        await guest.close()


async def test_much_goes_through(tmp_path: Path) -> None:
    megabytes = 64
    with started(tmp_path, "one") as guest:
        await guest.open()
        count = 0

        def take(data: bytes) -> None:
            nonlocal count
            count += len(data)

        argv = ["head", "-c", str(megabytes << 20), "/dev/zero"]
        await StreamProcesses(guest).exec(argv, ENV, "/", on_stdout=take)
        assert count == megabytes << 20
        await StreamProcesses(guest).exec(["cat"], ENV, "/", stdin=bytes(megabytes << 20), on_stdout=take)
        assert count == 2 * megabytes << 20
        await guest.close()


async def test_a_command_beside_a_flood_is_not_held_up(tmp_path: Path) -> None:
    with started(tmp_path, "one") as guest:
        processes = StreamProcesses(guest)
        flood = asyncio.create_task(processes.exec(["cat", "/dev/zero"], ENV, "/", on_stdout=lambda data: None))
        for _ in range(10):
            await processes.exec(["true"], ENV, "/")
        assert not flood.done()
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
        await guest.close()


async def test_a_bridge_is_no_process_of_its_box(tmp_path: Path) -> None:
    """Where the guest is process 1 and sees all that runs: it neither counts nor ends what carries its answers."""
    alone = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    trial = await asyncio.to_thread(subprocess.run, [*alone, "true"], capture_output=True, check=False)
    if trial.returncode != 0:
        pytest.skip("this machine lets nobody make a namespace of processes")
    # As a box begins whose first stream is that of its first process.
    argv = [*alone, sys.executable, "-I", "-S", "-B", f"{GUEST}/stdio_init.py", f"run={tmp_path}/run", "box=one"]

    async def dial() -> Transport:
        return ProcessTransport(argv, env=ENV, patience=0.0)

    guest = StreamGuestClient("one", dial)
    try:
        processes = StreamProcesses(guest)
        assert (await guest.ask({"op": "activity"}))["processes"] == 0
        process = await processes.spawn(["sleep", "1000"], ENV, "/", stdin=False, size=None)
        assert (await guest.ask({"op": "activity"}))["processes"] == 1
        await guest.ask({"op": "shut_down", "grace": 5000})
        assert await process.wait(240) == 128 + 15
        assert (await guest.ask({"op": "activity"}))["processes"] == 0
    finally:
        await guest.close()
