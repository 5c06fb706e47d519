"""`spawn`: processes in the background, and their stored output."""

from __future__ import annotations

import asyncio
import os
import signal
from time import time

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.process import ProcessState
from holdfast.api.errors.boxes import BoxError, ProcessNotFound
from holdfast.testing.provider_suite.base import (
    MEGABYTE,
    PATIENCE,
    BoxFactory,
    Suite,
    all_of,
    appears,
    cancelled,
    ends,
    eventually,
    number_in,
    prints,
    runs,
)
from holdfast.time_limit import time_limit


class Processes(Suite):
    async def test_a_process_needs_nobody_and_its_output_is_kept(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "printf out; printf problem >&2; echo end > end; exit 4"])
        await appears(box, "end")
        assert await process.wait(PATIENCE) == 4
        assert await process.wait() == 4
        assert await process.read() == b"out"
        assert await process.read("stderr") == b"problem"
        again = await box.process(process.id)
        assert (again.id, again.argv, again.pty) == (process.id, process.argv, False)
        assert await again.wait(PATIENCE) == 4
        assert await again.read() == b"out"

    async def test_a_process_tells_of_itself(self, box: Box) -> None:
        before = int(time() * 1000) - 5000
        process = await box.spawn(["sh", "-c", "cat; exit 2", "grüße"], stdin=True)
        info = await process.info()
        assert (info.id, info.argv, info.pty) == (process.id, ("sh", "-c", "cat; exit 2", "grüße"), False)
        assert (info.state, info.exit_code, info.ended_at) == (ProcessState.RUNNING, None, None)
        await process.close_stdin()
        await process.wait(PATIENCE)
        info = await process.info()
        assert (info.state, info.exit_code) == (ProcessState.EXITED, 2)
        assert info.ended_at is not None
        assert before <= info.started_at <= info.ended_at <= int(time() * 1000) + 5000

    async def test_processes_are_listed_the_oldest_first(self, box: Box) -> None:
        assert await box.processes() == []
        spawned = [await box.spawn(["sh", "-c", f"exit {number}"]) for number in range(5)]
        for number, process in enumerate(spawned):
            assert await process.wait(PATIENCE) == number
        listed = await box.processes()
        assert [each.id for each in listed] == [each.id for each in spawned]
        assert [each.exit_code for each in listed] == list(range(5))

    async def test_what_exec_and_channels_run_is_not_listed(self, box: Box) -> None:
        await box.exec(["true"])
        async with await box.channel(["cat"]):
            assert await box.processes() == []

    async def test_a_process_that_nobody_spawned_is_not_found(self, box: Box) -> None:
        for wrong in ("nothing", "1", "999999", "../../etc/passwd", ""):
            with pytest.raises(ProcessNotFound):
                await box.process(wrong)

    async def test_output_is_read_from_any_place_and_again(self, box: Box) -> None:
        process = await box.spawn(["printf", "0123456789"])
        await process.wait(PATIENCE)
        assert await process.read(offset=4) == b"456789"
        assert await process.read(offset=4, limit=3) == b"456"
        assert await process.read(offset=10) == b""
        assert await process.read(offset=1000) == b""
        assert await all_of(process, offset=7) == b"789"
        assert await all_of(process) == b"0123456789"
        assert await all_of(process, offset=10) == b""
        assert await all_of(process, "stderr") == b""

    async def test_output_is_followed_as_it_comes_until_the_end(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "while read line; do echo got $line; done; echo end"], stdin=True)
        assert await process.read() == b""
        follower = asyncio.create_task(all_of(process))
        for number in range(3):
            await process.write(f"{number}\n".encode())
            await prints(process, f"got {number}\n".encode())
        await process.close_stdin()
        assert await follower == b"got 0\ngot 1\ngot 2\nend\n"
        assert await process.wait(PATIENCE) == 0

    async def test_many_follow_one_process(self, box: Box) -> None:
        script = "until [ -e go ]; do sleep 0.01; done; i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i + 1)); done"
        process = await box.spawn(["sh", "-c", script])
        followers = [asyncio.create_task(all_of(process)) for _ in range(5)]
        await box.files.write("go", b"")
        expected = b"".join(b"%d\n" % number for number in range(2000))
        assert await asyncio.gather(*followers) == [expected] * 5

    async def test_a_lot_of_output_is_kept_without_a_reader(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "head -c 16777216 /dev/zero; printf end"])
        assert await process.wait(PATIENCE) == 0
        assert await process.read(offset=16 * MEGABYTE) == b"end"
        assert len(await all_of(process)) == 16 * MEGABYTE + 3
        piece = await process.read(limit=1000)
        assert piece == bytes(1000)

    async def test_waiting_ends_with_its_timeout_and_the_process_goes_on(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "cat; exit 6"], stdin=True)
        with pytest.raises(TimeoutError):
            await process.wait(0.05)
        assert (await process.info()).state is ProcessState.RUNNING
        await process.close_stdin()
        assert await process.wait(PATIENCE) == 6

    async def test_a_cancelled_reader_or_waiter_does_not_touch_the_process(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "echo ready; cat; exit 6"], stdin=True)
        await prints(process, b"ready")
        reader = asyncio.create_task(all_of(process))
        waiter = asyncio.create_task(process.wait())
        assert (await process.info()).state is ProcessState.RUNNING
        await cancelled(reader)
        await cancelled(waiter)
        await process.write(b"on\n")
        await prints(process, b"ready\non\n")
        await process.close_stdin()
        assert await process.wait(PATIENCE) == 6

    async def test_a_process_has_stdin_only_where_it_was_asked_for(self, box: Box) -> None:
        closed = await box.spawn(["cat"])
        assert await closed.wait(PATIENCE) == 0
        sleeping = await box.spawn(["sleep", "1000"])
        with pytest.raises(BoxError):
            await sleeping.write(b"nobody reads this")
        await sleeping.kill()

    async def test_a_lot_of_input_waits_for_its_reader(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "until [ -e go ]; do sleep 0.01; done; wc -c"], stdin=True)
        writing = asyncio.create_task(process.write(bytes(4 * MEGABYTE)))
        await box.files.write("go", b"")
        async with time_limit(PATIENCE):
            await writing
        await process.close_stdin()
        assert (await all_of(process)).strip() == b"4194304"

    async def test_a_signal_reaches_the_process_and_its_group(self, box: Box) -> None:
        script = "trap 'echo caught; exit 3' TERM; sleep 1000 & echo $! > child; echo ready; wait; wait"
        process = await box.spawn(["sh", "-c", script])
        await prints(process, b"ready")
        child = await number_in(box, "child")
        assert await runs(box, child)
        await process.signal(signal.SIGTERM)
        assert await process.wait(PATIENCE) == 3
        assert await process.read() == b"ready\ncaught\n"
        await ends(box, child)

    async def test_signals_stop_and_continue_a_process(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "trap 'echo here' USR1; echo ready; while :; do sleep 0.01; done"])
        await prints(process, b"ready")
        await process.signal(signal.SIGUSR1)
        await prints(process, b"here\n")
        await process.signal(signal.SIGSTOP)
        assert (await process.info()).state is ProcessState.RUNNING
        await process.signal(signal.SIGCONT)
        await process.signal(signal.SIGTERM)
        assert await process.wait(PATIENCE) == 128 + 15

    async def test_a_killed_process_says_by_what(self, box: Box) -> None:
        process = await box.spawn(["sleep", "1000"])
        await process.kill()
        assert await process.wait(PATIENCE) == 128 + 9
        assert (await process.info()).exit_code == 128 + 9
        await process.kill()
        await process.signal(signal.SIGTERM)

    async def test_a_process_has_the_env_and_place_that_it_was_given(self, factory: BoxFactory) -> None:
        box = await factory.box(env={"FROM_BOX": "box"})
        await box.files.write("below/mark", b"below")
        script = 'printf "%s|" "$FROM_BOX" "$FROM_SPAWN"; cat mark'
        process = await box.spawn(["sh", "-c", script], env={"FROM_SPAWN": "ünï\n"}, cwd="below")
        await process.wait(PATIENCE)
        assert await process.read() == "box|ünï\n|below".encode()

    async def test_arguments_of_a_process_are_kept_as_they_are(self, box: Box) -> None:
        odd = ("two words", "", "two\nlines", os.fsdecode(b"\xff"), "*")
        process = await box.spawn(["printf", "%s|", *odd])
        await process.wait(PATIENCE)
        assert await process.read() == b"".join(os.fsencode(each) + b"|" for each in odd)
        assert (await process.info()).argv == ("printf", "%s|", *odd)
        assert (await box.processes())[-1].argv == ("printf", "%s|", *odd)

    async def test_many_processes_run_at_once(self, box: Box) -> None:
        spawned = await asyncio.gather(
            *(box.spawn(["sh", "-c", 'echo "$1"; exit "$1"', "sh", str(number)]) for number in range(30))
        )
        codes = await asyncio.gather(*(each.wait(PATIENCE) for each in spawned))
        assert codes == list(range(30))
        assert [await each.read() for each in spawned] == [b"%d\n" % number for number in range(30)]
        assert len({each.id for each in spawned}) == 30

    async def test_a_process_goes_on_when_the_handle_is_closed(self, box: Box, factory: BoxFactory) -> None:
        process = await box.spawn(["sh", "-c", "echo ready; cat; exit 8"], stdin=True)
        await prints(process, b"ready")
        other = await factory.attach(box.id)
        await box.close()
        again = await other.process(process.id)
        assert (await again.info()).state is ProcessState.RUNNING
        await again.write(b"on\n")
        await again.close_stdin()
        assert await again.wait(PATIENCE) == 8
        assert await again.read() == b"ready\non\n"

    async def test_with_its_tree_goes_whatever_left_its_group_its_session_and_its_parent(self, box: Box) -> None:
        script = """
import os, sys
def leave(name, env):
    os.execve("/bin/sh", ["sh", "-c", f"echo $$ > {name}.new; mv {name}.new {name}; exec sleep 1000"], env)
for name in ("one", "two", "three"):
    if os.fork() == 0:
        if name != "one":
            os.setsid()
        if name != "two" or os.fork() == 0:
            leave(name, {} if name == "three" else dict(os.environ))
        os._exit(0)
sys.stdin.read()
"""
        argv = [*await box.python(), "-I", "-S", "-c", script]
        process = await box.spawn(argv, stdin=True, tree=True)
        left = []
        for name in ("one", "two", "three"):
            await appears(box, name)
            left.append(await number_in(box, name))
        assert all([await runs(box, pid) for pid in left])
        await process.signal(signal.SIGKILL)
        assert await process.wait(PATIENCE) == 128 + signal.SIGKILL
        assert not any([await runs(box, pid) for pid in left])

    async def test_a_process_with_its_tree_is_one_like_any_other(self, box: Box) -> None:
        process = await box.spawn(["sh", "-c", "cat; printf problem >&2; exit 3"], stdin=True, tree=True)
        await process.write(b"hello")
        await prints(process, b"hello")
        assert (await box.metrics()).processes >= 1
        await process.close_stdin()
        assert await process.wait(PATIENCE) == 3
        assert (await process.read(), await process.read("stderr")) == (b"hello", b"problem")
        with pytest.raises(BoxError):
            await box.spawn(["/nowhere/nothing"], tree=True)
        waits = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done"
        stopped = await box.spawn(["sh", "-c", waits], tree=True)
        await prints(stopped, b"up\n")
        await stopped.signal(signal.SIGTERM)
        assert await stopped.wait(PATIENCE) == 5
        assert await stopped.read() == b"up\nbye\n"

    async def test_code_of_ours_is_run_by_a_python_that_the_box_names(self, box: Box) -> None:
        python = await box.python()
        done = await box.exec([*python, "-I", "-S", "-c", "import sys; print(sys.version_info >= (3, 9))"])
        assert (done.exit_code, done.stdout.strip()) == (0, b"True"), done.stderr

    async def test_metrics_count_what_runs(self, box: Box) -> None:
        async def processes() -> int:
            return (await box.metrics()).processes

        async def idle() -> bool:
            metrics = await box.metrics()
            return metrics.processes == 0 and metrics.idle_seconds > 0

        assert await processes() == 0
        process = await box.spawn(["sleep", "1000"])
        assert await processes() == 1
        assert (await box.metrics()).idle_seconds == 0
        await process.kill()
        await process.wait(PATIENCE)
        await eventually(idle, "the box did not become idle")

    async def test_metrics_count_what_is_held_open(self, box: Box) -> None:
        async def connections() -> int:
            return (await box.metrics()).connections

        async def let_go() -> bool:
            return await connections() == 0

        await eventually(let_go, "there are connections though nobody has one")
        async with await box.channel(["cat"]):
            assert await connections() >= 1
            assert (await box.metrics()).idle_seconds == 0
        await eventually(let_go, "the channel is closed and still counted")
