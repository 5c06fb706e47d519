"""Nothing of a box is lost or left behind, whoever is killed at whichever step; a restarted server finds all again."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random, SystemRandom

import pytest
from tests.machine import needs_groups
from tests.providers.local import faults
from tests.providers.local.fault_work import SERVICE_WORK, WORK, Victim
from tests.providers.local.faults import Neighbour, strike_at_steps
from tests.providers.local.inventory import guests_of, monitors_of

from holdfast.api.box.box import Power
from holdfast.api.box.process import ProcessState
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxStopped
from holdfast.providers.host.guest_client import get_descriptor
from holdfast.providers.local import LocalProvider

ALL = bool(os.environ.get("HOLDFAST_TEST_ALL"))
MOST = None if ALL else 1
"""Steps at which somebody is killed, for each kind of work. All of them take minutes."""


@pytest.fixture
def random() -> Random:
    given = os.environ.get("HOLDFAST_TEST_SEED")
    seed = int(given) if given else SystemRandom().randrange(2**32)
    sys.stdout.write(f"repeat with HOLDFAST_TEST_SEED={seed}\n")
    return Random(seed)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Boxes of all the trials: what one left would be seen by the next."""
    home = tmp_path_factory.mktemp("faults") / "home"
    yield home
    asyncio.run(_remove_all(home))


@pytest.fixture(scope="module")
def neighbour(home: Path) -> Neighbour:
    return asyncio.run(Neighbour.make(home))


@pytest.fixture(scope="module")
def service_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("service") / "home"
    yield home
    asyncio.run(_remove_all(home))


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path / "home") as provider:
        yield provider
    await _remove_all(tmp_path / "home")


async def _remove_all(home: Path) -> None:
    async with LocalProvider(home) as provider:
        for info in await provider.find():
            await provider.remove(info.id)
        await provider.sweep()


@pytest.mark.sampled(share=0.5)
@pytest.mark.parametrize(
    "work", [pytest.param(each, marks=needs_groups) if each in ("pause", "resume") else each for each in WORK]
)
def test_a_server_killed_at_any_step_leaves_whole_boxes_and_nothing_else(
    home: Path, neighbour: Neighbour, work: str, random: Random
) -> None:
    strike_at_steps(home, work, Victim.SERVER, neighbour, most=MOST, random=random).check()


@pytest.mark.sampled(share=0.5)
@pytest.mark.parametrize("work", SERVICE_WORK)
def test_a_server_killed_at_any_step_has_rows_and_boxes_that_agree_after_the_next_sweep(
    service_home: Path, work: str, random: Random
) -> None:
    service_home.mkdir(exist_ok=True)
    strike_at_steps(service_home, work, Victim.SERVER, None, most=MOST, random=random).check()


@pytest.mark.sampled(share=0.5)
@pytest.mark.parametrize("work", ["create", "restore", "snapshot", "snapshot of a busy box", "start", "stop", "delete"])
def test_a_guest_killed_at_any_step_leaves_whole_boxes_and_nothing_else(
    home: Path, neighbour: Neighbour, work: str, random: Random
) -> None:
    strike_at_steps(home, work, Victim.GUEST, neighbour, most=MOST, random=random).check()


@pytest.mark.sampled(share=0.5)
@pytest.mark.parametrize("work", ["create", "restore", "snapshot", "delete"])
def test_bubblewrap_killed_at_any_step_leaves_whole_boxes_and_nothing_else(
    home: Path, neighbour: Neighbour, work: str, random: Random
) -> None:
    strike_at_steps(home, work, Victim.MONITOR, neighbour, most=MOST, random=random).check()


@pytest.mark.sampled(share=0.5)
@pytest.mark.parametrize("work", ["create", "snapshot", "start"])
def test_a_launcher_killed_at_any_step_leaves_whole_boxes_and_nothing_else(
    home: Path, neighbour: Neighbour, work: str, random: Random
) -> None:
    strike_at_steps(home, work, Victim.LAUNCHER, neighbour, most=MOST, random=random).check()


def test_a_server_killed_while_it_opens_the_provider_for_the_first_time_leaves_nothing(
    tmp_path: Path, random: Random
) -> None:
    outcome = faults.strike_at_opening(tmp_path, most=MOST and 3, random=random)
    outcome.check()
    assert outcome.steps > 50


@pytest.mark.anyio
async def test_a_restarted_server_finds_every_box_with_its_processes_running_and_their_output_complete(
    provider: LocalProvider, tmp_path: Path, random: Random
) -> None:
    served = await asyncio.to_thread(faults.serve_and_kill, tmp_path / "home", random)
    assert len(served.boxes) == 2
    assert await faults.left_behind(provider) == []
    assert await faults.find_again(provider, served) == []
    assert await faults.left_behind(provider) == []


@pytest.mark.anyio
async def test_boxes_come_back_with_their_files_after_everything_was_killed_and_their_groups_were_lost(
    provider: LocalProvider, tmp_path: Path, random: Random
) -> None:
    await provider.close()
    served = await asyncio.to_thread(faults.serve_and_kill, tmp_path / "home", random)
    await asyncio.to_thread(faults.kill_all_of, tmp_path / "home")
    await provider.open()
    assert await faults.left_behind(provider) == []
    assert await faults.come_back(provider, served) == []
    assert await faults.left_behind(provider) == []


@pytest.mark.anyio
async def test_a_box_whose_guest_was_killed_is_stopped_its_processes_lost_and_it_starts_again(
    provider: LocalProvider, tmp_path: Path
) -> None:
    box = await provider.create(BoxSpec(), id="struck")
    await box.files.write("kept", b"files")
    process = await box.spawn(["sh", "-c", "echo before; sleep 1000"])
    async for chunk in process.output():
        assert chunk.data == b"before\n"
        break
    [(guest, _)] = guests_of(tmp_path / "home")
    handle = os.pidfd_open(guest)
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    await asyncio.to_thread(_wait_for, handle)
    assert await box.power() is Power.STOPPED
    assert (await process.info()).state is ProcessState.LOST
    assert await faults.left_behind(provider) == []
    await box.start()
    assert await box.files.read("kept") == b"files"
    assert await process.read() == b"before\n"
    assert (await box.exec(["true"])).ok


@pytest.mark.anyio
async def test_a_box_whose_guest_was_killed_is_stopped_even_where_somebody_still_holds_its_socket(
    provider: LocalProvider, tmp_path: Path
) -> None:
    box = await provider.create(BoxSpec(), id="struck")
    assert await box.power() is Power.RUNNING
    [(guest, _)] = guests_of(tmp_path / "home")
    handle = os.pidfd_open(guest)
    kept = get_descriptor(handle, 3)  # where every guest has it
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        await asyncio.to_thread(_wait_for, handle)
        assert await box.power() is Power.STOPPED
        with pytest.raises(BoxStopped):
            await box.exec(["true"])
        await box.start()
        assert (await box.exec(["true"])).ok
    finally:
        os.close(kept)


@pytest.mark.anyio
async def test_a_box_whose_guest_was_killed_is_stopped_even_where_whoever_started_it_has_not_ended(
    provider: LocalProvider, tmp_path: Path
) -> None:
    box = await provider.create(BoxSpec(), id="struck")
    [(guest, _)] = guests_of(tmp_path / "home")
    [(monitor, _)] = monitors_of(tmp_path / "home")
    handle = os.pidfd_open(guest)
    os.kill(monitor, signal.SIGSTOP)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        await asyncio.to_thread(_wait_for, handle)
        assert await box.power() is Power.STOPPED
    finally:
        os.kill(monitor, signal.SIGCONT)


@pytest.mark.anyio
async def test_a_channel_whose_closing_is_cancelled_leaves_no_descriptor_behind(provider: LocalProvider) -> None:
    box = await provider.create(BoxSpec(), id="cut-short")

    def ours() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    async def close_by_halves() -> None:
        channel = await box.channel(["cat"])
        await channel.write(b"x")
        assert await channel.read() == b"x"
        closing = asyncio.create_task(channel.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    await close_by_halves()
    before = ours()
    for _ in range(3):
        await close_by_halves()
    assert ours() == before


@pytest.mark.anyio
async def test_a_sweep_leaves_an_export_alone_that_is_on_its_way(provider: LocalProvider) -> None:
    box = await provider.create(BoxSpec(), id="large")
    content = os.urandom(1 << 20)
    for number in range(8):
        await box.files.write(f"part{number}", content)
    snapshot = await box.snapshot()

    async def swept() -> AsyncIterator[bytes]:
        async for piece in provider.export_snapshot(snapshot.id):
            await provider.sweep()
            yield piece

    again = await provider.import_snapshot(swept())
    other = await provider.restore(again.id, BoxSpec(), id="other")
    for number in range(8):
        assert await other.files.read(f"part{number}") == content
    assert await faults.left_behind(provider) == []


def _wait_for(handle: int) -> None:
    ended, _, _ = select.select([handle], [], [], 30.0)
    os.close(handle)
    assert ended, "it was killed, and has not ended"
