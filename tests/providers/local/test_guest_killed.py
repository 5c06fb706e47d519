"""A box whose guest was killed is stopped from that moment on, however long the kernel takes to end it.

A guest that dies passes through steps that are usually over in a moment. Here it is held at each of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest

from holdfast.api.box.box import Box, Power
from holdfast.api.box.process import Process, ProcessState
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxStopped
from holdfast.boxes.capabilities import Capability
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.local import LocalProvider
from holdfast.providers.pipes import readable

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may hold a guest: it does not let itself be traced"),
]

_SEIZE, _DETACH = 0x4206, 17
_TRACE_EXIT = 0x40
_EXIT_STOP = signal.SIGTRAP | 6 << 8
_WALL = 0x40000000
_SECONDS = 240.0


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path / "home") as provider:
        yield provider
        for info in await provider.find():
            await provider.remove(info.id)


@pytest.fixture
async def box(provider: LocalProvider) -> Box:
    box = await provider.create(BoxSpec(), id="struck")
    await box.files.write("kept", b"files")
    return box


@pytest.fixture
async def sleeper(box: Box) -> Process:
    return await box.spawn(["sleep", "1000"])


async def test_it_is_stopped_while_it_has_yet_to_notice(provider: LocalProvider, box: Box, sleeper: Process) -> None:
    if provider.capabilities.isdisjoint({Capability.PAUSE}):
        pytest.skip("there is no freezer here")
    await provider.sandbox.freeze(box.id)  # where control groups are of version 1, what is frozen cannot even die
    os.kill(_guest(provider, box), signal.SIGKILL)
    await _check_stopped(box, sleeper)
    await box.start()
    await _check_runs(box)


async def test_it_is_stopped_while_it_begins_to_exit(provider: LocalProvider, box: Box, sleeper: Process) -> None:
    with _HeldAtExit(_guest(provider, box)) as held:
        os.kill(held.pid, signal.SIGKILL)
        await held.wait()
        await _check_stopped(box, sleeper)
        starting = asyncio.create_task(box.start())
        await asyncio.sleep(0)
    await starting
    await _check_runs(box)


async def test_it_is_stopped_while_it_waits_for_others_in_the_box_to_end(
    provider: LocalProvider, box: Box, sleeper: Process
) -> None:
    guest = _guest(provider, box)
    with (
        GuestClient(box.id, provider.data_dir.box(box.id)).connect() as connection,
        _HeldAtExit(_child_of(guest)) as held,
    ):
        os.kill(guest, signal.SIGKILL)
        await held.wait()
        async with asyncio.timeout(_SECONDS):
            await readable(connection.fileno())  # it has closed its files: nobody listens
        await _check_stopped(box, sleeper)
        starting = asyncio.create_task(box.start())
        await asyncio.sleep(0)
    await starting
    await _check_runs(box)


async def test_a_server_that_never_saw_it_alive_finds_it_stopped_too(
    provider: LocalProvider, box: Box, tmp_path: Path
) -> None:
    async with LocalProvider(tmp_path / "home") as other:
        with _HeldAtExit(_guest(provider, box)) as held:
            os.kill(held.pid, signal.SIGKILL)
            await held.wait()
            assert [info.power for info in await other.find()] == [Power.STOPPED]
            removing = asyncio.create_task(other.remove(box.id))
            await asyncio.sleep(0)
        assert await removing > 0
        assert await other.find() == []


async def _check_stopped(box: Box, process: Process) -> None:
    async with asyncio.timeout(_SECONDS / 2):  # nobody waits for an answer that cannot come
        assert await box.power() is Power.STOPPED
        assert (await process.info()).state is ProcessState.LOST
        with pytest.raises(BoxStopped):
            await box.exec(["true"])


async def _check_runs(box: Box) -> None:
    assert await box.power() is Power.RUNNING
    assert await box.files.read("kept") == b"files"


def _guest(provider: LocalProvider, box: Box) -> int:
    pid = GuestClient(box.id, provider.data_dir.box(box.id)).pid()
    assert pid is not None
    return pid


def _child_of(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


class _HeldAtExit:
    """A process that stops where it begins to exit, for as long as this is entered."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._trace(_SEIZE, _TRACE_EXIT)

    async def wait(self) -> None:
        async with asyncio.timeout(_SECONDS):
            _, status = await asyncio.to_thread(os.waitpid, self.pid, _WALL)
        assert status >> 8 == _EXIT_STOP

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._trace(_DETACH, 0)
        except ProcessLookupError:  # killed once more, it went on by itself, and is ours to take
            os.waitpid(self.pid, _WALL)

    def _trace(self, request: int, data: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(request, self.pid, None, ctypes.c_void_p(data)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
