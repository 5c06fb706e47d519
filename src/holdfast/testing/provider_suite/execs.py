"""`exec`: commands that run to their end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import CannotExecute, CommandNotFound, ExecTimeout, InvalidSpec, OutputTooLarge
from holdfast.testing.provider_suite.base import (
    MEGABYTE,
    PATIENCE,
    BoxFactory,
    Memory,
    Suite,
    appears,
    cancelled,
    ends,
    fresh,
    number_in,
    sh,
    text,
)
from holdfast.time_limit import time_limit

ODD_ARGUMENTS = (
    "",
    " ",
    "two words",
    "two\nlines\n",
    "a\ttab",
    "'quotes\"",
    "$HOME `id` $(id) ; & | > *",
    "\\",
    "--",
    "grüße 🌊",
    os.fsdecode(b"not \xff\xfe text"),
)


class Execs(Suite):
    async def test_exec_gives_both_streams_apart_and_the_exit_code(self, box: Box) -> None:
        done = await sh(box, "printf out; printf err >&2; exit 7")
        assert (done.exit_code, done.stdout, done.stderr, done.ok, done.text) == (7, b"out", b"err", False, "out")
        assert (await box.exec(["true"])).ok

    async def test_exec_gives_the_exit_code_of_every_end(self, box: Box) -> None:
        for script, code in (
            ("exit 0", 0),
            ("exit 1", 1),
            ("exit 255", 255),
            ("kill -9 $$", 128 + 9),
            ("kill -15 $$", 128 + 15),
            ("kill -1 $$", 128 + 1),
        ):
            assert (await sh(box, script)).exit_code == code, script

    async def test_exec_gives_every_byte_as_it_was_printed(self, box: Box) -> None:
        every = bytes(range(256)) * 3
        await box.files.write("every", every)
        done = await sh(box, "cat every; cat every every >&2")
        assert (done.stdout, done.stderr) == (every, every + every)

    async def test_exec_has_stdin_and_its_end(self, box: Box) -> None:
        assert (await box.exec(["cat"], stdin=b"in\0put")).stdout == b"in\0put"
        assert (await box.exec(["cat"], timeout=20)).stdout == b""

    async def test_exec_hands_arguments_over_as_they_are(self, box: Box) -> None:
        done = await sh(box, 'for each; do printf "%s\\0" "$each"; done', *ODD_ARGUMENTS)
        assert done.stdout == b"".join(os.fsencode(each) + b"\0" for each in ODD_ARGUMENTS)

    async def test_exec_adds_its_env_to_that_of_the_box(self, factory: BoxFactory) -> None:
        box = await factory.box(env={"FROM_BOX": "box", "BOTH": "box"})
        script = 'printf "%s|" "$FROM_BOX" "$BOTH" "$FROM_EXEC"'
        assert await text(box, script) == "box|box||"
        done = await sh(box, script, env={"BOTH": "exec", "FROM_EXEC": "new"})
        assert done.text == "box|exec|new|"
        assert await text(box, script) == "box|box||"

    async def test_exec_hands_env_values_over_as_they_are(self, box: Box) -> None:
        for value in ODD_ARGUMENTS:
            done = await sh(box, 'printf %s "$VALUE"', env={"VALUE": value})
            assert done.stdout == os.fsencode(value)

    async def test_exec_has_a_path_and_a_home_to_write_to(self, box: Box) -> None:
        assert await text(box, 'test -n "$PATH" && echo kept > "$HOME/kept" && cat "$HOME/kept"') == "kept"

    async def test_exec_does_not_see_the_variables_of_the_server(
        self, factory: BoxFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = fresh("secret")
        monkeypatch.setenv("HOLDFAST_SUITE_SECRET", secret)
        box = await factory.box()
        done = await sh(box, "env; cat /proc/self/environ /proc/1/environ 2>/dev/null; true")
        assert secret.encode() not in done.stdout
        process = await box.spawn(["env"])
        await process.wait(20)
        assert secret.encode() not in await process.read()

    async def test_exec_begins_in_the_workdir_or_where_it_is_told(self, box: Box) -> None:
        await box.files.write("mark", b"here")
        await box.files.write("a folder/below/mark", b"below")
        assert await text(box, "cat mark") == "here"
        assert (await box.exec(["cat", "mark"], cwd="a folder/below")).text == "below"
        assert (await text(box, "cd 'a folder/below' && pwd -P")).endswith("/a folder/below")

    async def test_a_command_that_cannot_start_says_so(self, box: Box) -> None:
        await box.files.write("no-program", b"text", mode=0o644)
        await box.files.mkdir("folder")
        here = await text(box, "pwd -P")
        for argv, error in (
            (["no-such-program-anywhere"], CommandNotFound),
            (["/no/such/program"], CommandNotFound),
            ([f"{here}/no-program"], CannotExecute),
            ([f"{here}/folder"], CannotExecute),
        ):
            for attempt in (box.exec, box.spawn, box.channel):
                with pytest.raises(CannotExecute) as raised:
                    await attempt(argv)
                assert raised.type is error
        with pytest.raises(CannotExecute) as raised:
            await box.exec(["true"], cwd="no-such-folder")
        assert raised.type is CannotExecute
        assert (await box.exec(["true"])).ok

    async def test_a_command_that_makes_no_sense_is_refused(self, box: Box) -> None:
        for argv in ([], [""], ["echo", "a\0b"]):
            with pytest.raises((InvalidSpec, CannotExecute)):
                await box.exec(argv)
            with pytest.raises((InvalidSpec, CannotExecute)):
                await box.spawn(argv)
            with pytest.raises((InvalidSpec, CannotExecute)):
                await box.channel(argv)
        for env in ({"": "x"}, {"A=B": "x"}, {"A": "x\0y"}, {"A\0B": "x"}):
            with pytest.raises((InvalidSpec, CannotExecute)):
                await box.exec(["true"], env=env)

    async def test_long_arguments_and_a_large_env_arrive(self, box: Box) -> None:
        long = "x" * 120_000
        done = await sh(box, 'printf "%s %s %s" $# ${#1} ${#LARGE}', long, *["y" * 1000] * 400, env={"LARGE": long})
        assert done.text == "401 120000 120000"

    async def test_arguments_beyond_what_a_kernel_takes_are_refused(self, box: Box) -> None:
        with pytest.raises((CannotExecute, InvalidSpec)):
            await box.exec(["true", "x" * 4 * MEGABYTE])
        assert (await box.exec(["true"])).ok

    async def test_a_command_that_takes_too_long_is_killed_with_its_group_and_its_output_kept(self, box: Box) -> None:
        script = "printf partial; printf problem >&2; sleep 1000 & echo $! > child; echo $$ > self; wait"
        with pytest.raises(ExecTimeout) as caught:
            await sh(box, script, timeout=1.0)
        assert (caught.value.stdout, caught.value.stderr) == (b"partial", b"problem")
        await ends(box, await number_in(box, "self"))
        await ends(box, await number_in(box, "child"))

    async def test_a_command_that_ends_in_time_is_not_touched_by_its_timeout(self, box: Box) -> None:
        assert (await sh(box, "exit 3", timeout=60)).exit_code == 3

    async def test_a_cancelled_exec_leaves_no_process_behind(self, box: Box) -> None:
        task = asyncio.create_task(sh(box, "sleep 1000 & echo $! > child; echo $$ > self; wait"))
        self_, child = await number_in(box, "self"), await number_in(box, "child")
        await cancelled(task)
        await ends(box, self_)
        await ends(box, child)

    async def test_a_command_that_shuts_its_ears_is_killed_all_the_same(self, box: Box) -> None:
        script = "trap '' TERM INT HUP; echo $$ > self; while :; do sleep 0.1; done"
        task = asyncio.create_task(sh(box, script))
        pid = await number_in(box, "self")
        await cancelled(task)
        await ends(box, pid)

    async def test_more_output_than_the_caller_takes_is_refused_and_the_command_ended(self, box: Box) -> None:
        with pytest.raises(OutputTooLarge):
            await sh(box, "echo $$ > self; while :; do echo more and more; done", max_output=100_000, timeout=20)
        await ends(box, await number_in(box, "self"))
        assert len((await sh(box, "head -c 100000 /dev/zero", max_output=100_000)).stdout) == 100_000
        with pytest.raises(OutputTooLarge):
            await sh(box, "head -c 100001 /dev/zero >&2", max_output=100_000)

    async def test_sinks_take_the_output_as_it_comes(self, box: Box) -> None:
        out: list[bytes] = []
        problems: list[bytes] = []
        first = asyncio.Event()

        async def take(piece: bytes) -> None:
            await asyncio.sleep(0)
            out.append(piece)
            first.set()

        script = "echo one; until [ -e go ]; do sleep 0.01; done; echo two; echo problem >&2"
        task = asyncio.create_task(sh(box, script, on_stdout=take, on_stderr=problems.append))
        async with time_limit(20):
            await first.wait()
        assert b"".join(out) == b"one\n"
        await box.files.write("go", b"")
        done = await task
        assert (b"".join(out), b"".join(problems)) == (b"one\ntwo\n", b"problem\n")
        assert (done.stdout, done.stderr) == (b"", b"")

    async def test_a_sink_that_fails_ends_the_command(self, box: Box) -> None:
        class Full(Exception):
            pass

        def refuse(piece: bytes) -> None:
            raise Full

        with pytest.raises(Full):
            await sh(box, "echo $$ > self; while :; do echo more; sleep 0.01; done", on_stdout=refuse)
        await ends(box, await number_in(box, "self"))

    async def test_what_a_sink_takes_its_time_for_waits_in_the_box(self, box: Box) -> None:
        release = asyncio.Event()
        count = 0

        async def hold(piece: bytes) -> None:
            nonlocal count
            count += len(piece)
            await release.wait()

        task = asyncio.create_task(
            sh(box, "echo $$ > self; head -c 67108864 /dev/zero; echo done > done", on_stdout=hold)
        )
        await appears(box, "self")
        await sh(box, "i=0; while [ $i -lt 20 ]; do sleep 0.02; i=$((i + 1)); done")  # time enough for 64 MB
        assert not await box.files.exists("done")
        release.set()
        assert (await task).ok
        assert count == 64 * MEGABYTE

    async def test_a_lot_of_output_goes_through_a_sink_and_memory_stays_flat(self, box: Box) -> None:
        memory = Memory()
        count = 0

        def take(piece: bytes) -> None:
            nonlocal count
            count += len(piece)
            memory.look()

        assert (await box.exec(["head", "-c", str(64 * MEGABYTE), "/dev/zero"], on_stdout=take)).ok
        assert count == 64 * MEGABYTE
        assert memory.grown < 24 * MEGABYTE

    async def test_a_lot_of_input_flows_in_while_output_flows_back(self, box: Box) -> None:
        data = os.urandom(8 * MEGABYTE)
        assert (await box.exec(["cat"], stdin=data)).stdout == data
        assert (await sh(box, "cat >&2", stdin=data[:MEGABYTE])).stderr == data[:MEGABYTE]

    async def test_stdin_may_come_piece_by_piece_while_output_goes_back(self, box: Box) -> None:
        heard = asyncio.Event()

        async def pieces() -> AsyncIterator[bytes]:
            yield b"first\n"
            async with time_limit(PATIENCE):
                await heard.wait()  # the second piece comes only when the first was answered
            yield b"second\n"

        answers: list[bytes] = []

        def take(data: bytes) -> None:
            answers.append(data)
            heard.set()

        done = await box.exec(["cat"], stdin=pieces(), on_stdout=take, timeout=PATIENCE)
        assert done.exit_code == 0
        assert b"".join(answers) == b"first\nsecond\n"

    async def test_the_streams_of_a_command_are_opened_by_their_names(self, box: Box) -> None:
        """As many scripts do, and programs whose log is `/dev/stdout`."""
        done = await sh(box, "cat /dev/stdin > /dev/stdout; echo problem > /dev/stderr", stdin=b"in")
        assert (done.stdout, done.stderr) == (b"in", b"problem\n")

    async def test_input_that_nobody_reads_is_no_problem(self, box: Box) -> None:
        assert (await box.exec(["true"], stdin=bytes(8 * MEGABYTE))).exit_code == 0
        assert (await sh(box, "exec <&-; echo on", stdin=bytes(MEGABYTE))).text == "on\n"

    async def test_a_command_that_leaves_something_running_has_ended_all_the_same(self, box: Box) -> None:
        async with time_limit(20):
            done = await sh(box, "sleep 1000 & echo $!")
        assert done.ok
        await sh(box, 'kill "$1" || true', done.text.strip())

    async def test_what_a_command_leaves_running_may_go_on_printing(self, box: Box) -> None:
        """Also more than a pipe holds."""
        rest = "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; echo done > done"
        script = f"(until [ -e go ]; do sleep 0.05; done; {rest}) & echo started"
        assert (await box.exec(["sh", "-c", script], timeout=PATIENCE)).text == "started\n"
        await box.files.write("go", b"")
        await appears(box, "done")

    async def test_commands_run_as_in_a_usual_shell(self, box: Box) -> None:
        """Signals have their usual meaning, and nothing is open that is not the command's."""
        done = await sh(box, "while :; do echo y; done | head -n 1")
        assert (done.stdout, done.stderr) == (b"y\n", b"")
        assert (await text(box, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]

    async def test_many_commands_run_at_once(self, box: Box) -> None:
        done = await asyncio.gather(
            *(sh(box, 'cat; echo "$1"; echo "$1" >&2; exit "$1"', str(number), stdin=b"in ") for number in range(50))
        )
        for number, each in enumerate(done):
            assert (each.exit_code, each.text, each.stderr) == (number, f"in {number}\n", f"{number}\n".encode())

    async def test_long_and_short_commands_do_not_wait_for_each_other(self, box: Box) -> None:
        long = asyncio.create_task(sh(box, "until [ -e go ]; do sleep 0.01; done"))
        for _ in range(5):
            assert (await box.exec(["true"], timeout=20)).ok
        assert not long.done()
        await box.files.write("go", b"")
        assert (await long).ok
