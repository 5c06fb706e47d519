"""Processes with a terminal."""

from __future__ import annotations

import pytest

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxError
from holdfast.boxes.capabilities import Capability
from holdfast.testing.provider_suite.base import PATIENCE, Suite, all_of, claims, prints


class Terminals(Suite):
    @claims(Capability.PTY)
    async def test_a_terminal_is_one_for_all_three_streams(self, box: Box) -> None:
        script = "test -t 0 && test -t 1 && test -t 2 && echo yes; echo problem >&2; echo direct > /dev/tty"
        process = await box.spawn(["sh", "-c", script], pty=True)
        assert await process.wait(PATIENCE) == 0
        assert (await all_of(process)).split() == [b"yes", b"problem", b"direct"]
        assert process.pty
        assert (await process.info()).pty
        plain = await box.spawn(["sh", "-c", "test -t 0 || test -t 1 || echo no"])
        assert await all_of(plain) == b"no\n"

    @claims(Capability.PTY)
    async def test_a_terminal_has_its_size_and_tells_when_it_changes(self, box: Box) -> None:
        script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done"
        process = await box.spawn(["sh", "-c", script], pty=True, rows=41, columns=101)
        await prints(process, b"41 101")
        await process.resize(52, 132)
        await prints(process, b"52 132")
        await process.kill()
        assert await process.wait(PATIENCE) == 128 + 9

    @claims(Capability.PTY)
    async def test_control_c_interrupts_what_runs_in_a_terminal(self, box: Box) -> None:
        script = "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.02; done"
        process = await box.spawn(["sh", "-c", script], pty=True)
        await prints(process, b"ready")
        await process.write(b"\x03")
        assert await process.wait(PATIENCE) == 3
        assert b"caught" in await all_of(process)

    @claims(Capability.PTY)
    async def test_control_c_ends_what_does_not_listen(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "echo ready; exec sleep 1000"], pty=True)
        await prints(process, b"ready")
        await process.write(b"\x03")
        assert await process.wait(PATIENCE) == 128 + 2

    @claims(Capability.PTY)
    async def test_a_terminal_echoes_and_takes_an_end_of_input(self, box: Box) -> None:
        process = await box.spawn(["cat"], pty=True)
        await process.write(b"hello\n")
        await prints(process, b"hello\r\nhello\r\n")
        await process.write(b"\x04")
        assert await process.wait(PATIENCE) == 0

    @claims(Capability.PTY)
    async def test_a_shell_in_a_terminal_can_be_talked_to(self, box: Box) -> None:
        process = await box.spawn(["sh", "-i"], pty=True, env={"PS1": "ask> "})
        await prints(process, b"ask> ")
        await process.write(b"echo $((6 * 7))\n")
        seen = await prints(process, b"42\r\n")
        await process.write(b"exit 5\n")
        assert await process.wait(PATIENCE) == 5
        assert (await all_of(process)).startswith(seen)

    @claims(Capability.PTY)
    async def test_a_process_that_lets_go_of_its_terminal_is_not_hung_up(self, box: Box) -> None:
        """As many programs do just before their end, and daemons for good."""
        script = "echo begun; exec < /dev/null > /dev/null 2>&1; sleep 0.2; echo back > /dev/tty; exit 4"
        process = await box.spawn(["sh", "-c", script], pty=True)
        assert await process.wait(PATIENCE) == 4
        assert (await all_of(process)).split() == [b"begun", b"back"]

    @claims(Capability.PTY)
    async def test_a_terminal_prints_a_lot(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i + 1)); done"], pty=True)
        printed = await all_of(process)
        assert printed.split() == [str(number).encode() for number in range(20_000)]
        assert await process.wait(PATIENCE) == 0

    async def test_only_a_terminal_has_a_size(self, box: Box) -> None:
        process = await box.spawn(["cat"], stdin=True)
        with pytest.raises(BoxError):
            await process.resize(10, 10)
        await process.close_stdin()
        assert await process.wait(PATIENCE) == 0
