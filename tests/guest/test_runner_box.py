"""The runner in a real box: it comes over standard input, is closed to others, and nothing outlives it."""

from __future__ import annotations

import ast
import io
import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.guest.running import archive
from tests.providers.local.rootfs import busybox, pieces

from holdfast.api.box.process import Process
from holdfast.api.ids import new_id
from holdfast.boxes import Box, BoxSpec
from holdfast.harnesses import runner_archive
from holdfast.harnesses.registry import names
from holdfast.providers.local import LocalProvider
from holdfast.testing.provider_suite.base import appears, number_in, runs

pytestmark = pytest.mark.anyio
PATIENCE = 240.0
TOKEN = "a-token-that-nobody-sees"


@pytest.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path_factory.mktemp("home")) as provider:
        yield provider
        for box in await provider.find():
            await provider.remove(box.id)


@pytest.fixture
async def box(provider: LocalProvider) -> AsyncIterator[Box]:
    box = await provider.create(BoxSpec(), id=new_id("b"))
    yield box
    await box.delete()


async def start(box: Box, script: str, *, more: Iterable[tuple[str, Path]] = (), **fields: Any) -> Process:
    """A runner whose server is not there."""
    config = {
        "run": "r-1", "thread": "t-1", "agent": "scripted", "reader": "scripted", "epoch": 1, "token": TOKEN,
        "url": "http://127.0.0.1:3128", "argv": ["sh", "-c", script], "env": {"MORE": "1"}, "cwd": "/workspace",
        "state": "/home/box/.holdfast/runs/r-1", **fields,
    }  # fmt: skip
    process = await box.spawn(runner_archive.boot_argv(await box.python()), stdin=True, tree=True)
    await process.write(runner_archive.stdin_of(archive(more), config))
    await process.close_stdin()
    return process


async def test_what_a_killed_runner_started_goes_with_it(box: Box) -> None:
    script = "setsid sh -c 'echo $$ > tool; exec sleep 1000' & echo $$ > agent; wait"
    runner = await start(box, script)
    started = []
    for name in ("agent", "tool"):
        await appears(box, name)
        started.append(await number_in(box, name))
    await runner.signal(signal.SIGKILL)
    assert await runner.wait(PATIENCE) == 128 + signal.SIGKILL
    assert [pid for pid in started if await runs(box, pid)] == []
    assert (await box.metrics()).processes == 0


async def test_an_image_without_a_python_runs_it_too_and_a_driver_with_it(
    provider: LocalProvider, tmp_path: Path
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import os, sys\nif __name__ == '__main__':\n    os.write(os.open('told', 65), sys.argv[1].encode())\n"
    )
    await provider.images.import_archive("busybox", pieces(busybox().done()))
    box = await provider.create(BoxSpec(image="busybox"), id=new_id("b"))
    try:
        more = [("holdfast.harnesses.scripted.driver", driver)]
        runner = await start(box, "", more=more, driver="scripted", argv=["hello"], state="/tmp/state")
        await appears(box, "told")
        assert await box.files.read("told") == b"hello"
        await runner.kill()
    finally:
        await box.delete()


async def test_nobody_in_the_box_can_look_into_the_runner(box: Box) -> None:
    script = (
        "for each in mem environ maps fd/3; do head -c 1 /proc/$PPID/$each && echo open; done > told 2>&1;"
        " env > env; echo > done; sleep 1000"
    )
    runner = await start(box, script)
    await appears(box, "done")
    told = (await box.files.read("told")).decode()
    assert told.count("Permission denied") == 4, told
    environment = (await box.files.read("env")).decode()
    assert "HOLDFAST_RUN=r-1" in environment
    assert "HOME=/home/box" in environment
    assert "MORE=1" in environment
    assert TOKEN not in environment
    processes = await box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; true"])
    assert TOKEN.encode() not in processes.stdout
    found = await box.exec(["grep", "-rl", TOKEN, "/home", "/tmp", "/workspace", "/run"])
    assert found.stdout == b""
    await runner.kill()


WATCH = """
import ctypes, json, os, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
folder = os.path.expanduser('~/.holdfast/runs/r-1')
watch = libc.inotify_init1(0)
assert libc.inotify_add_watch(watch, folder.encode(), 0x100 | 0x80) >= 0  # created, moved here
seen = []
def look():
    while True:
        seen.append(os.read(watch, 4096).hex())
threading.Thread(target=look, daemon=True).start()
line = json.dumps({'n': 'x' * 4000}) + '\\n'
for _ in range(200):
    os.write(1, line.encode())
open(folder + '/mark', 'w').close()
while not any(b'mark'.hex() in each for each in seen):
    time.sleep(0.01)
open('told.tmp', 'w').write(json.dumps(b''.join(bytes.fromhex(each) for each in seen).decode('latin-1')))
os.rename('told.tmp', 'told')
time.sleep(1000)
"""


async def test_no_file_of_the_journal_ever_has_a_name_in_the_box(box: Box) -> None:
    argv = ["python3", "-c", WATCH]
    runner = await start(box, "", argv=argv, limits={"memory": 10_000})
    await appears(box, "told")
    told = (await box.files.read("told")).decode()
    assert "mark" in told
    assert "journal" not in told
    await runner.kill()


REACH = """
import ctypes, json, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
told = {}
# In pieces, as this code is in the command of the driver.
kinds = {'guest.runner.' + 'main': 'runner', 'runpy.' + 'run_module': 'driver', '/.holdfast' + '/init': 'guest'}
for name in os.listdir('/proc'):
    try:
        command = open('/proc/%s/cmdline' % int(name)).read()
    except (ValueError, OSError):
        continue
    kind = [kind for part, kind in kinds.items() if part in command]
    if not kind:
        continue
    reached = []
    for each in ('mem', 'environ', 'maps', 'fd', 'fdinfo', 'fd/0', 'fd/1', 'fd/3', 'cwd', 'root', 'exe', 'auxv', 'io'):
        path = '/proc/%s/%s' % (name, each)
        try:
            if each in ('fd', 'fdinfo'):
                os.listdir(path)
            elif each in ('cwd', 'root', 'exe'):
                os.readlink(path)
            else:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            reached.append(each)
        except OSError:
            pass
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            reached.append(each + ' to write')
        except OSError:
            pass
    for request, what in ((16, 'attach'), (0x4206, 'seize')):
        if libc.ptrace(request, int(name), 0, 0) == 0:
            reached.append(what)
            libc.ptrace(17, int(name), 0, 0)
    piece = (ctypes.c_ulong * 2)(0, 8)
    if libc.process_vm_readv(int(name), piece, 1, piece, 1, 0) >= 0 or ctypes.get_errno() not in (1, 3):
        reached.append('process_vm_readv')
    handle = libc.syscall(434, int(name), 0)
    if handle >= 0 and libc.syscall(438, handle, 0, 0) >= 0:
        reached.append('pidfd_getfd')
    told[kind[0]] = reached + told.get(kind[0], [])
open('told.tmp', 'w').write(json.dumps(told))
os.rename('told.tmp', 'told')
time.sleep(1000)
"""
DRIVER = """
import subprocess, sys
if __name__ == '__main__':
    subprocess.run(['python3', '-c', sys.argv[1]])
"""


async def test_an_agent_reaches_neither_the_runner_nor_its_driver_nor_the_guest(box: Box, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    more = [("holdfast.harnesses.scripted.driver", driver)]
    runner = await start(box, "", more=more, driver="scripted", argv=[REACH])
    await appears(box, "told")
    told: dict[str, list[str]] = json.loads(await box.files.read("told"))
    assert told == {"runner": [], "driver": [], "guest": []}
    await runner.kill()


async def test_a_runner_is_closed_before_it_is_told_anything(box: Box) -> None:
    runner = await box.spawn(runner_archive.boot_argv(await box.python()), stdin=True, tree=True)
    # Its descriptors are a sign: they belong to nobody here once it has closed itself, which is the first it does.
    look = (
        "for n in $(seq 1000); do for each in /proc/[0-9]*; do"
        " if tr '\\0' ' ' < $each/cmdline | grep -q guest.runner.main; then"
        " if ls $each/fd >/dev/null 2>&1; then sleep 0.01; else echo closed; exit 0; fi; fi; done; done; exit 1"
    )
    done = await box.exec(["sh", "-c", look], timeout=PATIENCE)
    assert done.text.strip() == "closed"
    await runner.kill()


async def test_a_runner_that_is_told_nothing_says_so(box: Box) -> None:
    process = await box.spawn(runner_archive.boot_argv(await box.python()), stdin=True, tree=True)
    await process.close_stdin()
    assert await process.wait(PATIENCE) == 1
    assert b"did not arrive" in await process.read("stderr")


async def test_a_configuration_that_is_none_ends_the_runner(box: Box) -> None:
    process = await box.spawn(runner_archive.boot_argv(await box.python()), stdin=True, tree=True)
    await process.write(runner_archive.stdin_of(archive(), {"run": "r-1"}))
    assert await process.wait(PATIENCE) == 70
    assert b"cannot start" in await process.read("stderr")


def test_the_archive_holds_what_is_imported_and_no_more() -> None:
    found = zipfile.ZipFile(io.BytesIO(archive())).namelist()
    assert "holdfast/guest/runner/main.py" in found
    assert "holdfast/guest/runner/main.pyc" in found
    assert "holdfast/guest/agent_reader.py" in found
    assert "holdfast/harnesses/scripted/reader.py" in found
    assert not [name for name in found if "init.py" in name and "__init__" not in name]
    assert archive() is archive()


@pytest.mark.parametrize("harness", [*names(), "acp"])
def test_the_archive_of_a_harness_needs_nothing_else(harness: str, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(runner_archive.pack((harness,)))
    program = (
        f"import sys; sys.path.insert(0, '{tmp_path}/archive')\n"
        f"from holdfast.harnesses.{harness} import reader; reader.Reader()\n"
        "import importlib.util\n"
        f"if importlib.util.find_spec('holdfast.harnesses.{harness}.driver'):\n"
        f"    import holdfast.harnesses.{harness}.driver\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_everything_in_the_archive_is_python_3_9() -> None:
    packed = zipfile.ZipFile(io.BytesIO(runner_archive.pack(names())))
    for name in packed.namelist():
        if name.endswith(".py"):
            ast.parse(packed.read(name), name, feature_version=(3, 9))


def test_a_configuration_reads_back_as_it_was() -> None:
    sent = runner_archive.stdin_of(b"archive", {"token": "ü"})
    assert sent[:8] == (7).to_bytes(8, "big")
    assert json.loads(sent[8 + 7 + 8 :]) == {"token": "ü"}
