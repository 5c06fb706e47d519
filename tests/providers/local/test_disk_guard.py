"""What a box wrote before its processes ended does not count as the growth of those that are started later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.host.disk.disk_guard import DiskGuard, Watched
from holdfast.providers.local import LocalProvider
from holdfast.testing.provider_suite.base import sh

pytestmark = pytest.mark.anyio
MEGABYTE = 1 << 20
PATIENCE = 240.0


async def test_only_what_is_written_after_the_end_ends_processes_again(tmp_path: Path) -> None:
    folder = tmp_path / "box"
    folder.mkdir()

    def write(name: str, megabytes: int) -> None:
        (folder / name).write_bytes(b"x" * megabytes * MEGABYTE)

    ended: list[str] = []

    async def end_writers(id: str) -> None:
        ended.append(id)
        write(f"last words {len(ended)}", 5)  # what they still wrote between the measurement and their end

    guard = DiskGuard(tmp_path, lambda: [Watched("one", folder, MEGABYTE)], end_writers)
    await guard.close()  # its own rounds; these are ours
    await guard.check()
    assert ended == []
    write("much", 2)
    await guard.check()
    assert ended == ["one"]
    await guard.check()  # commands of now write nothing
    await guard.check()
    assert ended == ["one"]
    write("more", 1)
    await guard.check()
    assert ended == ["one", "one"]
    await guard.check()
    assert ended == ["one", "one"]


@pytest.mark.box
async def test_a_box_over_its_limit_runs_commands_that_write_nothing(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider, asyncio.timeout(PATIENCE):
        box = await provider.create(BoxSpec(disk=8 * MEGABYTE), id="full")
        # Many writers, because a single file has a limit of its own.
        script = "for n in $(seq 40); do head -c 7000000 /dev/zero > file-$n & done; wait; sleep 1000"
        assert (await sh(box, script)).exit_code != 0
        # As long as several rounds of measuring: each of them may find the box over its limit.
        for _ in range(2):
            done = await sh(box, "sleep 1.2; rm -f file-1; echo lives")
            assert done.stdout == b"lives\n", done
        await box.delete()
