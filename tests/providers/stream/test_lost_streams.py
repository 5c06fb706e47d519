"""A stream is lost: what ran over it ends, what was spawned goes on, and the next one is dialled by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.providers.stream.over_pipes import PipesProvider

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.process import ProcessState
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, BoxGone, BoxStopped, BoxUnreachable
from holdfast.guest.init import frames
from holdfast.testing.provider_suite.base import all_of, appears, ends, number_in, prints, sh

pytestmark = pytest.mark.anyio
PATIENCE = 240.0


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[PipesProvider]:
    async with PipesProvider(tmp_path / "pipes") as provider:
        yield provider
        for info in await provider.find():
            await provider.remove(info.id)


@pytest.fixture
async def box(provider: PipesProvider) -> Box:
    return await provider.create(BoxSpec(provider="pipes", network=NetworkPolicy(Network.OPEN)), id="one")


def cut(provider: PipesProvider) -> None:
    """End the bridge, as a crash would."""
    provider.transports["one"].process.kill()


async def comes_back(box: Box) -> None:
    """What is asked before the loss was noticed fails with it; what is asked after it finds a new stream."""
    for _ in range(3):
        with contextlib.suppress(BoxUnreachable):
            assert (await box.exec(["true"], timeout=PATIENCE)).ok
            return
    raise AssertionError("the box does not come back")


async def told(work: Any) -> BaseException:
    async with asyncio.timeout(PATIENCE):
        try:
            await work
        except Exception as error:
            return error
    raise AssertionError("it succeeded")


async def test_what_was_pending_fails_and_its_commands_end(provider: PipesProvider, box: Box) -> None:
    running = asyncio.create_task(told(sh(box, "sleep 1000 & echo $! > child; echo $$ > self; wait")))
    channel = await box.channel(["sh", "-c", "echo $$ > channel; exec cat"])
    pids = [await number_in(box, name) for name in ("self", "child", "channel")]
    reading = asyncio.create_task(told(channel.read()))
    await asyncio.sleep(0)
    cut(provider)
    assert isinstance(await running, BoxUnreachable)
    assert isinstance(await reading, BoxUnreachable)
    await channel.close()
    await comes_back(box)
    for pid in pids:
        await ends(box, pid)  # over the next stream, which nobody had to ask for
    assert (await box.exec(["true"])).ok


async def test_a_spawned_process_is_followed_and_waited_for_across_streams(provider: PipesProvider, box: Box) -> None:
    process = await box.spawn(["sh", "-c", "while read line; do echo $line; done; exit 6"], stdin=True)
    following = asyncio.create_task(all_of(process))
    waiting = asyncio.create_task(process.wait(PATIENCE))
    expected = b""
    for number in range(3):
        await process.write(b"%d\n" % number)
        expected += b"%d\n" % number
        await prints(process, expected)
        cut(provider)
        await comes_back(box)
    assert (await process.info()).state is ProcessState.RUNNING
    await process.close_stdin()
    assert await following == expected
    assert await waiting == 6


async def test_hanging_up_ends_what_runs(provider: PipesProvider, box: Box) -> None:
    running = asyncio.create_task(told(sh(box, "echo $$ > self; exec sleep 1000")))
    pid = await number_in(box, "self")
    await provider.guest("one").close()
    assert isinstance(await running, BoxUnreachable)
    await ends(box, pid)


async def test_whoever_waits_in_a_box_that_stops_or_goes_is_told_so(provider: PipesProvider, box: Box) -> None:
    running = asyncio.create_task(told(sh(box, "echo 1 > begun; exec sleep 1000")))
    await appears(box, "begun")
    await provider.sandbox.end(_guest_client(provider))
    assert isinstance(await running, BoxStopped)
    await box.start()
    running = asyncio.create_task(told(sh(box, "echo 1 > again; exec sleep 1000")))
    await appears(box, "again")
    await box.delete()
    assert isinstance(await running, (BoxGone, BoxStopped, BoxUnreachable))  # as far as it had got
    with pytest.raises(BoxGone):
        await box.exec(["true"])


def _guest_client(provider: PipesProvider) -> Any:
    from holdfast.providers.host.guest_client import GuestClient

    return GuestClient("one", provider.data_dir.box("one"))


async def test_a_file_that_was_being_written_is_not_there_by_halves(provider: PipesProvider, box: Box) -> None:
    await box.files.write("file", b"old")
    asked = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(100_000)
        asked.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(told(box.files.write("file", pieces())))
    await asked.wait()
    cut(provider)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await comes_back(box)
    assert await box.files.read("file") == b"old"
    for _ in range(100):
        if [each.name for each in await box.files.list()] == ["file"]:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the half of a file is left")


async def test_a_stream_that_is_silent_is_lost(
    provider: PipesProvider, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PING_SECONDS", 0.05)
    monkeypatch.setattr(frames, "SILENCE_SECONDS", 0.4)
    assert (await box.exec(["true"])).ok
    bridge = provider.transports["one"].process
    os.kill(bridge.pid, signal.SIGSTOP)
    try:
        assert isinstance(await told(box.exec(["true"])), BoxUnreachable)
    finally:
        os.kill(bridge.pid, signal.SIGKILL)
    monkeypatch.undo()
    await comes_back(box)


async def test_the_silence_of_a_paused_box_says_nothing(
    provider: PipesProvider, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PING_SECONDS", 0.05)
    monkeypatch.setattr(frames, "SILENCE_SECONDS", 0.3)
    running = asyncio.create_task(sh(box, "echo 1 > begun; until [ -e go ]; do sleep 0.01; done; echo done"))
    await appears(box, "begun")
    guest, bridge = provider.guest("one"), provider.transports["one"].process
    guest.set_paused(True)
    os.kill(bridge.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BoxStopped):
            await box.exec(["true"])
        await asyncio.sleep(0.8)  # more than twice the silence that would end it
    finally:
        os.kill(bridge.pid, signal.SIGCONT)
        guest.set_paused(False)
    await box.files.write("go", b"")
    assert (await running).text == "done\n"


async def test_a_box_that_sleeps_is_woken_for_what_is_asked(provider: PipesProvider, box: Box) -> None:
    await box.stop()
    woken = 0

    async def wake() -> bool:
        nonlocal woken
        woken += 1
        await provider.lifecycle.start_box("one")
        return True

    waking = await provider.attach("one", wake=wake)
    steps = await waking.ping()
    assert not steps[-1].ok
    assert woken == 0
    assert (await waking.exec(["true"])).ok
    assert woken == 1


async def test_writing_to_a_process_that_does_not_read_says_so(box: Box) -> None:
    process = await box.spawn(["sh", "-c", "exec <&-; echo deaf; exec sleep 1000"], stdin=True)
    await prints(process, b"deaf")
    with pytest.raises(BoxConflict):
        await process.write(bytes(1 << 20))
    await process.kill()
