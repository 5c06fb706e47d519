"""Boxes of two homes on one machine may have the same id. What happens to the one is nothing to the other."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.machine import needs_groups

from holdfast.api.box.box import Power
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.ids import new_id
from holdfast.boxes.provider import Provider
from holdfast.providers.local import LocalProvider
from holdfast.providers.process import ProcessProvider


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("make", "network"),
    [(LocalProvider, NetworkPolicy()), (ProcessProvider, NetworkPolicy(Network.OPEN))],
)
async def test_ending_a_box_leaves_the_box_of_that_id_of_another_home_alone(
    make: Callable[[Path], Provider], network: NetworkPolicy, tmp_path: Path
) -> None:
    id = new_id("b")
    async with make(tmp_path / "one") as one, make(tmp_path / "two") as two:
        mine = await one.create(BoxSpec(provider=one.name, network=network), id=id)
        other = await two.create(BoxSpec(provider=two.name, network=network), id=id)
        process = await other.spawn(["sleep", "1000"])
        await mine.stop()
        await mine.start()
        await mine.delete()
        assert await other.power() is Power.RUNNING
        assert (await process.info()).exit_code is None
        assert (await other.exec(["true"])).ok
        await other.delete()


_OTHER = """
import asyncio, sys
from pathlib import Path
from holdfast.api.box.spec import BoxSpec
from holdfast.providers.local import LocalProvider

async def main():
    async with LocalProvider(Path(sys.argv[1])) as provider:
        box = await provider.create(BoxSpec(), id="b-other")
        process = await box.spawn(["sleep", "1000"])
        print("running", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        info = await process.info()
        metrics = await box.metrics()
        await box.delete()
        print(info.state.value, info.exit_code, metrics.processes, flush=True)

asyncio.run(main())
"""


@needs_groups
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another machine's view of the disk")
@pytest.mark.anyio
async def test_a_sweep_leaves_the_boxes_of_another_container_at_the_same_path_alone(tmp_path: Path) -> None:
    """As two containers with the same home path on one kernel are: they share control groups, and no files."""
    home = tmp_path / "home"
    home.mkdir()
    script = f"mount -t tmpfs other {home} && exec {sys.executable} -c '{_OTHER}' {home}"
    other = await asyncio.create_subprocess_exec(
        "unshare", "--mount", "sh", "-c", script, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert await other.stdout.readline() == b"running\n"
        async with LocalProvider(home) as provider:
            mine = await provider.create(BoxSpec(), id="b-mine")
            await provider.sweep()
            await mine.delete()
        other.stdin.write(b"go on\n")
        assert (await other.stdout.readline()).startswith(b"running None ")
        assert await other.wait() == 0
    finally:
        if other.returncode is None:
            other.kill()
            await other.wait()
