"""A real runner beside the test, with a scripted agent: a small Python program that prints lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.guest.fake_guest_api import FakeGuestApi
from tests.harnesses import scripted_reader

from holdfast.harnesses import runner_archive

READER: Final = Path(scripted_reader.__file__)
PATIENCE: Final = 240.0
PRELUDE: Final = """\
import json, os, signal, subprocess, sys, time
def say(**record):
    sys.stdout.write(json.dumps(record) + "\\n")
    sys.stdout.flush()
"""


def archive(more: Iterable[tuple[str, Path]] = ()) -> bytes:
    return runner_archive.pack((), (("holdfast.harnesses.scripted.reader", READER), *more))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def appears(path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not path.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Running:
    """A runner, from its start until the test has seen its end."""

    def __init__(self, process: asyncio.subprocess.Process, run: str) -> None:
        self.process = process
        self.run = run

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    async def errors(self) -> str:
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            return (await self.process.stderr.read()).decode()

    async def next_error(self) -> bytes:
        """The next line of what it says of itself."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            return await self.process.stderr.readline()

    def peak_memory(self) -> int:
        """Bytes, so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def start(
    api: FakeGuestApi,
    script: str,
    state: Path,
    *,
    epoch: int = 1,
    run: str = "r-1",
    python: tuple[str, ...] = (sys.executable,),
    limits: Mapping[str, float] | None = None,
    more: Iterable[tuple[str, Path]] = (),
    **fields: Any,
) -> Running:
    """Claim the epoch, as who starts a runner does, and start it with an agent that runs this script."""
    await api.claim(epoch)
    config = {
        "run": run,
        "thread": api.thread,
        "agent": "scripted",
        "reader": "scripted",
        "epoch": epoch,
        "url": api.url,
        "token": api.new_token(),
        "argv": [sys.executable, "-I", "-S", "-c", PRELUDE + script],
        "env": {"PATH": "/usr/bin:/bin"},
        "cwd": "/tmp",
        "stdin": None,
        "abort": {"signal": 2},
        "state": str(state),
        "limits": {"seconds": 600, "grace": 5, **(limits or {})},
        "beat": 5,
        **fields,
    }
    process = await asyncio.create_subprocess_exec(
        *runner_archive.boot_argv(python),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={},
    )
    assert process.stdin is not None
    process.stdin.write(runner_archive.stdin_of(archive(more), config))
    await process.stdin.drain()
    process.stdin.close()
    return Running(process, run)
