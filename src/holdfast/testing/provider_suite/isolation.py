"""Isolation: what a box cannot see, and its limits. A sandbox needs adversarial tests beyond these."""

# Small files of their own, read to check them.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxError, ExecTimeout
from holdfast.boxes.capabilities import Capability
from holdfast.testing.provider_suite.base import MEGABYTE, PATIENCE, BoxFactory, Suite, claims, fresh, sh, text


class Isolation(Suite):
    @claims(Capability.ISOLATION)
    async def test_a_box_does_not_see_the_files_of_its_machine(self, box: Box, open_folder: Path) -> None:
        secret = fresh("secret")
        (open_folder / secret).write_text(secret)
        done = await sh(box, 'cat "$1/$2"; ls -la "$1"', str(open_folder), secret)
        assert secret.encode() not in done.stdout

    @claims(Capability.ISOLATION)
    async def test_files_and_commands_see_the_same_places(self, box: Box) -> None:
        assert await box.files.read("/etc/passwd") == (await box.exec(["cat", "/etc/passwd"])).stdout
        assert await box.files.read("../" * 40 + "etc/passwd") == await box.files.read("/etc/passwd")
        workdir = box.spec.workdir
        assert await text(box, "pwd; mkdir below; echo here > below/file") == workdir
        assert (await box.exec(["pwd"], cwd=f"{workdir}/below")).text == f"{workdir}/below\n"
        assert (await box.exec(["pwd"], cwd="/")).text == "/\n"
        assert await box.files.read(f"{workdir}/below/file") == b"here\n"
        assert [each.path for each in await box.files.list("below")] == [f"{workdir}/below/file"]
        assert [each.path for each in await box.files.find("below")] == [f"{workdir}/below/file"]
        assert [each.path for each in await box.files.search("here", "below")] == [f"{workdir}/below/file"]
        assert [each.path for each in await box.files.list()] == [f"{workdir}/below"]

    @claims(Capability.ISOLATION)
    async def test_a_box_does_not_see_the_processes_of_its_machine(self, box: Box) -> None:
        with subprocess.Popen(["sleep", "98765.4321"]) as outside:  # noqa: ASYNC220 - starts at once
            try:
                assert "98765.4321" not in await text(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
                await sh(box, 'kill -9 "$1"', str(outside.pid))
                assert outside.poll() is None
            finally:
                outside.kill()
        assert (await box.exec(["true"])).ok

    @claims(Capability.ISOLATION)
    async def test_a_box_does_not_see_its_neighbours(self, box: Box, factory: BoxFactory) -> None:
        secret = fresh("secret")
        other = await factory.box()
        await sh(other, 'echo "$1" > file; echo "$1" > "$HOME/file"; echo "$1" > /tmp/file', secret)
        process = await other.spawn(["sh", "-c", f"exec sleep 1000 # {secret}"])
        done = await sh(
            box, 'cat file "$HOME/file" /tmp/file; cat /proc/[0-9]*/cmdline; find / -name file -xdev | head'
        )
        assert secret.encode() not in done.stdout
        await process.kill()

    @claims(Capability.ISOLATION)
    async def test_the_rest_of_the_box_is_not_written_to(self, box: Box) -> None:
        for place in ("/usr/holdfast-suite", "/etc/holdfast-suite", "/holdfast-suite"):
            await sh(box, 'echo x > "$1"', place)
        for place in ("/usr/holdfast-suite", "/etc/holdfast-suite"):
            assert not Path(place).exists()

    @claims(Capability.ISOLATION, Capability.NETWORK_NONE)
    async def test_a_box_without_a_network_has_its_loopback_alone(self, box: Box) -> None:
        devices = await text(box, "sed -n '3,$s/:.*//p' /proc/net/dev")
        assert devices.split() == ["lo"]

    @claims(Capability.ISOLATION)
    async def test_processes_that_lost_their_parent_are_cleared_away(self, box: Box) -> None:
        await sh(box, "i=0; while [ $i -lt 20 ]; do (sleep 0 &) ; i=$((i + 1)); done")
        script = 'n=0; while grep -lq "^State:[[:space:]]*Z" /proc/[0-9]*/status 2>/dev/null; do sleep 0.02; done'
        assert (await sh(box, script, timeout=PATIENCE)).ok

    # --- limits ---

    @claims(Capability.PIDS_LIMIT)
    async def test_more_processes_than_the_limit_are_not_started(self, box: Box, factory: BoxFactory) -> None:
        small = await factory.box(pids=24)
        process = await small.spawn(["sh", "-c", "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i + 1)); done; wait"])
        # Either the shell gives up, or it goes on with fewer children than it wanted.
        with suppress(TimeoutError):
            await process.wait(3)
        metrics = await small.metrics()
        assert metrics.processes <= 24 + 4  # a guest may have some beside
        assert (await box.exec(["true"])).ok
        await process.kill()
        await small.delete()

    @claims(Capability.MEMORY_LIMIT)
    async def test_more_memory_than_the_limit_ends_the_command_and_not_the_box(self, factory: BoxFactory) -> None:
        small = await factory.box(memory=64 * MEGABYTE)
        await small.files.write("file", b"kept")
        # Without a line end, tail has to keep all of it.
        done = await sh(small, "head -c 300000000 /dev/zero | tail -n 1 | wc -c", timeout=60)
        assert done.text.strip() != "300000000"
        assert await small.files.read("file") == b"kept"
        assert (await small.exec(["true"])).ok

    @claims(Capability.MEMORY_LIMIT)
    async def test_where_memory_runs_out_all_of_a_command_goes_before_the_box_does(self, box: Box) -> None:
        # Many: what a command had started before it had its score would go without.
        for _ in range(20):
            assert await text(box, "cat /proc/self/oom_score_adj | cat") == "1000"
        # The box has its own score again as soon as it has started something; what that is may be quicker.
        lower = "until [ $(cat /proc/1/oom_score_adj) -lt 1000 ]; do sleep 0.01; done"
        assert (await sh(box, lower, timeout=PATIENCE)).ok

    @claims(Capability.DISK_LIMIT)
    async def test_more_on_disk_than_the_limit_is_not_had(self, factory: BoxFactory) -> None:
        small = await factory.box(disk=16 * MEGABYTE)
        await small.files.write("kept", b"kept")
        # Many files, at a pace that a provider which has to look after it can keep up with.
        script = "i=0; while head -c 1000000 /dev/zero > f$i; do i=$((i + 1)); sleep 0.05; done; exit 1"
        try:
            done = await sh(small, script, timeout=PATIENCE)
        except ExecTimeout:
            raise AssertionError("the box wrote on and on") from None
        except BoxError:
            pass
        else:
            assert done.exit_code != 0
        size = sum(each.size for each in await small.files.list())
        assert size <= 3 * 16 * MEGABYTE
        assert not (await sh(small, "head -c 64000000 /dev/zero > one", timeout=PATIENCE)).ok
        assert await small.files.read("kept") == b"kept"

    @claims(Capability.CPU_LIMIT)
    async def test_more_cpu_than_the_limit_is_not_had(self, factory: BoxFactory) -> None:
        small = await factory.box(cpu=0.2)
        burn = "while :; do :; done"
        processes = [await small.spawn(["sh", "-c", burn]) for _ in range(2)]
        before, started = (await small.metrics()).cpu_seconds, asyncio.get_running_loop().time()
        await asyncio.sleep(1.5)
        after, ended = (await small.metrics()).cpu_seconds, asyncio.get_running_loop().time()
        for process in processes:
            await process.kill()
        if before is not None and after is not None:
            assert (after - before) / (ended - started) < 0.4 * max(1, os.cpu_count() or 1) / 2 + 0.2
