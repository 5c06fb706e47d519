"""What the adversarial tests share: a box to attack from, a neighbour that must not notice, and programs that try."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.ids import new_id
from holdfast.providers.local import LocalProvider

PATIENCE: Final = 240.0
"""Seconds for what has to come at once on any machine that is not broken."""
PRELUDE: Final = """
import ctypes, errno, json, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(function, *arguments, **named):
    "What came of it: the name of an error, or the result."
    try:
        return function(*arguments, **named)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
def call(function, *arguments):
    "The same for a function of libc."
    ctypes.set_errno(0)
    if function(*arguments) == -1:
        return errno.errorcode[ctypes.get_errno()]
    return "done"
def tell(value):
    print(json.dumps(value, default=repr), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Scene:
    home: Path
    provider: LocalProvider
    box: Box
    """Where attacks are made that leave nothing behind."""
    neighbour: Box

    async def attack(self, program: str, *arguments: str, box: Box | None = None, timeout: float = PATIENCE) -> Any:
        """Run a program inside; what it told."""
        done = await (box or self.box).exec(["python3", "-c", PRELUDE + program, *arguments], timeout=timeout)
        assert done.exit_code == 0, done.stderr.decode()
        return json.loads(done.stdout)

    async def attack_detached(self, program: str, *, pty: bool = False) -> Any:
        """The same as a process whose output is kept."""
        process = await self.box.spawn(["python3", "-c", PRELUDE + program], pty=pty)
        assert await process.wait(PATIENCE) == 0, await process.read("stderr")
        return json.loads(await process.read())

    async def still_fine(self) -> None:
        """Neither the neighbour nor the provider has noticed anything."""
        async with asyncio.timeout(PATIENCE):
            token = new_id("x")
            assert (await self.neighbour.exec(["echo", token])).text == f"{token}\n"
            await self.neighbour.files.write("token", token.encode())
            assert await self.neighbour.files.read("token") == token.encode()
            assert self.neighbour.id in {info.id for info in await self.provider.find()}

    @asynccontextmanager
    async def another(self, **spec: Any) -> AsyncIterator[Box]:
        """A box for an attack that leaves something behind."""
        box = await self.provider.create(BoxSpec(**spec), id=new_id("b"))
        try:
            yield box
        finally:
            async with asyncio.timeout(PATIENCE):
                await box.delete()


def outside(program: str, *arguments: str) -> Any:
    """The same on the machine itself, where it works: an attack that works nowhere proves nothing."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments], capture_output=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the folder that is listed is one itself, both times


async def no_descriptor_is_left(before: int) -> None:
    """Waits for threads that still close theirs. A descriptor that leaked stays open."""
    async with asyncio.timeout(PATIENCE):
        while open_descriptors() > before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
