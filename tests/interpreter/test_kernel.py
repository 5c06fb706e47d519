"""Contexts in a real box: what code gives, how it is stopped, and what outlives a connection."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, Unsupported
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable, NoPython
from holdfast.boxes.capabilities import Capability
from holdfast.guest.kernel.output import KEPT
from holdfast.guest.kernel.protocol import pack
from holdfast.interpreter.bridge.calls import Call, Submission, ToolName
from holdfast.interpreter.execution import RunningExecution
from holdfast.interpreter.kernel.context import Context, ContextRefused
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.testing.dummy import CAPABILITIES, DummyProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
async def context(kernels: Kernel) -> AsyncIterator[Context]:
    context = await kernels.context(f"c-{secrets.token_hex(4)}")
    yield context
    await context.kill()
    await context.close()


class Host:
    """Answers what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.came = asyncio.Event()
        self.go_on = asyncio.Event()

    async def handle(self, call: Call) -> Any:
        self.calls.append(call)
        self.came.set()
        if call.name == "wait":
            await self.go_on.wait()
            return "waited"
        if call.name == "fail":
            raise ValueError("not like this")
        if call.name == "SUBMIT":
            return Submission(call.kwargs)
        return {"args": list(call.args), "kwargs": dict(call.kwargs)}


async def hosted(context: Context) -> Host:
    host = Host()
    await context.define([ToolName(name) for name in ("echo", "wait", "fail", "SUBMIT")])
    return host


# --- values and output ---


async def test_an_execution_brings_its_tools_along_and_does_not_run_without_them(context: Context) -> None:
    done = await context.execute("echo(1)", tools=[ToolName("echo")], handler=Host().handle)
    assert done.value == {"args": [1], "kwargs": {}}
    broken = [ToolName(["no name"])]  # type: ignore[arg-type]
    with pytest.raises(ContextRefused, match="could not define"):
        await context.execute("ran = True", tools=broken)
    done = await context.execute("'ran' in globals(), 'echo' in globals()", tools=[ToolName("other")])
    assert done.value == (False, False)
    assert (await context.execute("echo", tools=())).error is not None


async def test_names_live_from_one_execution_to_the_next_and_the_last_expression_is_the_value(context: Context) -> None:
    assert (await context.execute("x = 40")).value is None
    done = await context.execute("y = 2\nx + y")
    assert (done.value, done.value_text, done.ok) == (42, "42", True)
    assert (await context.execute("_ + 1")).value == 43
    assert (await context.execute("x;")).value_text is None
    assert (await context.execute("")).value is None


async def test_what_is_printed_comes_as_it_is_printed_also_by_other_programs(context: Context) -> None:
    host = await hosted(context)
    heard: list[tuple[str, bytes]] = []
    code = "import os, sys\nprint('one')\nwait()\nprint('two', file=sys.stderr)\nos.system('echo three')\nNone"
    work = asyncio.create_task(context.execute(code, on_output=lambda *said: heard.append(said), handler=host.handle))
    await host.came.wait()
    assert heard == [("stdout", b"one\n")]
    host.go_on.set()
    done = await work
    assert (done.stdout, done.stderr) == ("one\nthree\n", "two\n")


async def test_much_output_is_cut_for_its_reader_and_kept_whole_in_a_file(context: Context, box: Box) -> None:
    done = await context.execute("for i in range(5000): print('line', i)", limit=1000)
    whole = "".join(f"line {i}\n" for i in range(5000))
    [artifact] = done.artifacts
    assert artifact.size == len(whole)
    assert (await box.files.read(artifact.path)).decode() == whole
    assert done.stdout.startswith("line 0\nline 1\n")
    assert done.stdout.endswith("line 4999\n")
    assert f"{len(whole) - 1000} characters left out: all of it is in {artifact.path}" in done.stdout


async def test_what_is_left_out_is_counted_in_characters(context: Context) -> None:
    done = await context.execute("print('ä€😀' * 400, end='')", limit=1000)
    first, said, last = done.stdout.split("\n")
    assert (len(first), len(last)) == (500, 500)
    assert said.startswith("... 200 characters left out: ")
    fits = await context.execute("print('€' * 1000, end='')", limit=1000)
    assert fits.stdout == "€" * 1000


async def test_output_without_end_is_kept_up_to_a_bound(context: Context, box: Box) -> None:
    pieces = (KEPT >> 20) + 2
    heard = 0

    def hear(stream: str, data: bytes) -> None:
        nonlocal heard
        heard += len(data)

    code = f"import sys\nfor _ in range({pieces}): sys.stdout.write('x' * (1 << 20))\nNone"
    done = await context.execute(code, on_output=hear, timeout=120)
    [artifact] = done.artifacts
    assert heard == pieces << 20
    assert artifact.size == KEPT
    assert (await box.files.stat(artifact.path)).size == KEPT
    assert f"characters left out: its first {KEPT} bytes are in {artifact.path} ..." in done.stdout


async def test_values_travel_as_what_they_are(context: Context) -> None:
    given = {
        "plain": [1, 2.5, "text", None, True, {"a": {"b": []}}],
        "looks": '{"a": 1}',
        "data": b"\x00\xff",
        "pair": (1, (2, 3)),
        "some": {1, 2},
        "keys": {1: "one", ("a", 2): "two"},
        "strange": {"$": "bytes"},
        "large": 2**100,
    }
    done = await context.execute("[plain, looks, data, pair, some, keys, strange, large]", variables=given)
    assert done.value == list(given.values())
    assert isinstance(done.value[3], tuple)
    odd = await context.execute("import datetime, decimal, pathlib\n[float('inf'), decimal.Decimal('0.10'), "
                                "datetime.date(2024, 2, 29), pathlib.Path('/a')]")  # fmt: skip
    assert [str(each) for each in odd.value] == ["inf", "0.10", "2024-02-29", "/a"]


async def test_a_value_without_a_form_is_told_by_its_text_and_one_that_is_large_goes_by_file(
    context: Context, box: Box
) -> None:
    done = await context.execute("class Odd:\n    def __repr__(self): return '<odd>'\nOdd()")
    assert (done.value, done.value_text) == (None, "<odd>")
    done = await context.execute("loop = []\nloop.append(loop)\nloop")
    assert (done.value, done.value_text) == (None, "[[...]]")
    large = await context.execute("list(range(300_000))")
    [artifact] = large.artifacts
    assert (large.value, artifact.media_type) == (None, "application/json")
    assert json.loads(await box.files.read(artifact.path)) == list(range(300_000))
    assert large.value_text is not None
    assert "characters left out" in large.value_text


async def test_code_can_await_and_its_tasks_go_on_with_the_next_execution(context: Context) -> None:
    code = "import asyncio\nasync def add(a, b):\n    await asyncio.sleep(0)\n    return a + b\nawait add(1, 2)"
    assert (await context.execute(code)).value == 3
    await context.execute("later = asyncio.get_event_loop().create_task(add(3, 4))")
    assert (await context.execute("await later")).value == 7


# --- errors ---


async def test_an_error_is_a_result_with_the_lines_of_the_user_alone(context: Context) -> None:
    done = await context.execute("def f():\n    return 1 / 0\nprint('before')\nf()")
    assert done.error is not None
    assert (done.error.kind, done.error.message, done.error.syntax) == ("ZeroDivisionError", "division by zero", False)
    assert "return 1 / 0" in done.error.traceback
    assert "holdfast" not in done.error.traceback
    assert done.stdout == "before\n"
    assert "ZeroDivisionError" in done.text
    chained = await context.execute("try:\n    f()\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e")
    assert chained.error is not None
    assert "direct cause" in chained.error.traceback
    assert "holdfast" not in chained.error.traceback


@pytest.mark.parametrize("code", ["1 / 0", "x = 1\n1 / 0", "1 / 0\n", "(\n1 / 0)", "def f(n):\n    return 1 / n\nf(0)"])
async def test_the_marks_of_a_traceback_stand_under_what_they_mark(context: Context, code: str) -> None:
    """The last line too, which seldom ends with a line break."""
    done = await context.execute(code)
    assert done.error is not None
    lines = done.error.traceback.splitlines()
    for line, marks in pairwise(lines):
        if not marks.strip(" ~^") and "~^" in marks:
            assert line[marks.index("~") : len(marks)] in ("1 / 0", "1 / n")


async def test_what_cannot_be_compiled_does_not_begin(context: Context) -> None:
    done = await context.execute("print('never')\nx = (")
    assert done.error is not None
    assert (done.error.kind, done.error.syntax, done.stdout) == ("SyntaxError", True, "")
    assert "x = (" in done.error.traceback
    run = await context.execute("compile('(', 'name', 'exec')")
    assert run.error is not None
    assert (run.error.kind, run.error.syntax) == ("SyntaxError", False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise SystemExit(3)", "SystemExit"),
        ("import sys; sys.exit()", "SystemExit"),
        ("raise BaseException('b')", "BaseException"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class Bad(Exception):\n    def __str__(self): raise ValueError\nraise Bad", "Bad"),
        ("class Bad:\n    def __repr__(self): raise OSError('no text')\nBad()", "OSError"),
    ],
)
async def test_nothing_that_code_raises_ends_its_context(context: Context, code: str, kind: str) -> None:
    await context.execute("kept = 1")
    done = await context.execute(code)
    assert done.error is not None
    assert done.error.kind == kind
    assert (await context.execute("kept")).value == 1


async def test_more_memory_than_a_context_may_have_is_an_error_of_the_code(box: Box) -> None:
    kernels = await Kernel.start(box, memory=300 << 20)
    try:
        context = await kernels.context()
        done = await context.execute("kept = 1\ndata = bytearray(1 << 30)")
        assert done.error is not None
        assert done.error.kind == "MemoryError"
        assert (await context.execute("kept")).value == 1
    finally:
        await kernels.end()


async def test_a_box_without_python_says_what_to_do(box: Box) -> None:
    with pytest.raises(NoPython) as caught:
        await Kernel.start(box, python=["/usr/bin/no-python"])
    assert caught.value.hint
    with pytest.raises(NoPython):
        await Kernel.start(box, python=["/bin/false"])


# --- stopping ---


async def test_an_interrupt_is_a_keyboard_interrupt_in_the_code_and_nothing_is_lost(context: Context) -> None:
    host = await hosted(context)
    code = "kept = 1\nimport time\necho('runs')\nwhile True: time.sleep(1000)"
    work = asyncio.create_task(context.execute(code, handler=host.handle))
    await host.came.wait()
    while not work.done():
        await context.interrupt()
        await asyncio.wait([work], timeout=0.05)
    done = await work
    assert done.error is not None
    assert (done.error.kind, done.state_lost) == ("KeyboardInterrupt", False)
    await context.interrupt()  # of nothing
    assert (await context.execute("kept")).value == 1


async def test_code_that_waits_for_the_host_can_be_interrupted_and_its_call_is_given_up(context: Context) -> None:
    host = await hosted(context)
    cancelled = asyncio.Event()

    async def handle(call: Call) -> Any:
        try:
            return await host.handle(call)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    work = asyncio.create_task(context.execute("wait()", handler=handle))
    await host.came.wait()
    await context.interrupt()
    done = await work
    assert done.error is not None
    assert done.error.kind == "KeyboardInterrupt"
    await cancelled.wait()


async def test_code_that_takes_too_long_is_interrupted_and_killed_where_it_does_not_mind(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await context.execute("kept = 1\nimport time\nwhile True: time.sleep(0.01)", timeout=0.2)
    assert done.error is not None
    assert (done.error.kind, done.state_lost) == ("TimeoutError", False)
    assert "longer than 0.2 s" in done.error.message
    assert (await context.execute("kept")).value == 1
    monkeypatch.setattr("holdfast.interpreter.kernel.context.GRACE_SECONDS", 0.2)
    stubborn = "while True:\n    try:\n        time.sleep(1000)\n    except KeyboardInterrupt: pass"
    killed = await context.execute(stubborn, timeout=0.2)
    assert killed.error is not None
    assert (killed.error.kind, killed.state_lost) == ("KernelKilled", True)
    await context.restart()
    assert (await context.execute("kept")).error is not None


def test_the_clock_of_an_execution_stands_still_while_the_host_works() -> None:
    running = RunningExecution("x", 100.0, 10, None, None)  # type: ignore[arg-type]
    assert running.computed(103.0) == 3.0
    running.call_began(103.0)
    running.call_began(104.0)
    assert running.computed(110.0) == 3.0
    running.call_ended(111.0)
    assert running.computed(112.0) == 3.0
    running.call_ended(113.0)
    assert running.computed(115.0) == 5.0


async def test_a_caller_that_goes_away_stops_its_code(context: Context) -> None:
    host = await hosted(context)
    code = "import time\necho()\nwhile True: time.sleep(0.01)"
    work = asyncio.create_task(context.execute(code, handler=host.handle))
    await host.came.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (await context.execute("1 + 1")).value == 2


async def test_a_context_that_was_killed_is_said_to_be_lost_and_others_live_on(
    kernels: Kernel, context: Context
) -> None:
    other = await kernels.context("neighbour")
    await other.execute("kept = 1")
    with pytest.raises(KernelLost, match="was killed"):
        await context.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(KernelLost):
        await context.execute("1")
    assert (await other.execute("kept")).value == 1
    await context.restart()
    assert (await context.execute("2")).value == 2
    assert {each.id for each in await kernels.contexts() if each.pid} >= {context.id, "neighbour"}


# --- calls ---


async def test_code_calls_its_host(context: Context) -> None:
    host = await hosted(context)
    done = await context.execute("echo(1, '[2]', key={'a': b'x'})", handler=host.handle)
    assert done.value == {"args": [1, "[2]"], "kwargs": {"key": {"a": b"x"}}}
    code = "try:\n    fail()\nexcept ValueError as e:\n    print('caught', e)"
    failed = await context.execute(code, handler=host.handle)
    assert failed.stdout == "caught not like this\n"
    threads = "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as pool:\n    got = list(pool.map(echo, range(40)))\n[each['args'][0] for each in got]"  # noqa: E501
    assert (await context.execute(threads, handler=host.handle)).value == list(range(40))
    assert len(host.calls) == 42
    assert {call.execution for call in host.calls[:1]} == {done.id}


async def test_submit_ends_the_execution_whatever_the_code_catches(context: Context) -> None:
    host = await hosted(context)
    code = "try:\n    SUBMIT(a=1, b=[2])\nexcept Exception:\n    pass\nprint('never')"
    done = await context.execute(code, handler=host.handle)
    assert (done.submitted, done.stdout, done.error, done.value) == ({"a": 1, "b": [2]}, "", None, None)
    assert (await context.execute("3")).submitted is None


async def test_tools_that_are_taken_away_are_gone_and_cannot_be_called_by_who_kept_them(context: Context) -> None:
    host = await hosted(context)
    await context.execute("mine = echo")
    await context.define([ToolName("wait")])
    gone = await context.execute("echo(1)")
    assert gone.error is not None
    assert gone.error.kind == "NameError"
    kept = await context.execute("mine(1)", handler=host.handle)
    assert kept.error is not None
    assert "the host has no echo" in kept.error.message


# --- connections that break ---


async def test_an_execution_outlives_its_connection_and_its_call_is_carried_out_once(context: Context) -> None:
    host = await hosted(context)
    code = "print('before')\ngot = wait()\nprint('after', got)\n42"
    work = asyncio.create_task(context.execute(code, handler=host.handle))
    await host.came.wait()
    assert context._connection is not None
    await context._connection.close()
    host.go_on.set()
    done = await work
    assert (done.value, done.stdout, done.error) == (42, "before\nafter waited\n", None)
    assert len(host.calls) == 1
    assert (await context.execute("got")).value == "waited"


async def test_a_connection_is_closed_also_by_who_is_cancelled_while_doing_it(context: Context) -> None:
    connection = context._connection
    assert connection is not None
    closing = asyncio.create_task(context._disconnect())
    await asyncio.sleep(0)  # now it waits for its reader
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises((OSError, BoxError)):
        await connection.write(b"more")


async def test_another_process_finds_the_contexts_with_all_that_they_have(kernels: Kernel, context: Context) -> None:
    await context.execute("x = {'kept': [1, 2]}")
    later = await Kernel.attach(kernels.box, kernels.process, kernels.endpoint.token)
    again = await later.context(context.id, make=False)
    assert (await again.execute("x")).value == {"kept": [1, 2]}
    with pytest.raises(KernelUnreachable, match="taken over by another"):
        await context.execute("x")
    assert (await again.execute("x")).value == {"kept": [1, 2]}
    await later.close()
    with pytest.raises(KernelLost):
        await later.context("never", make=False)
    with pytest.raises(KernelLost):
        await Kernel.attach(kernels.box, "p-none", kernels.endpoint.token)


async def test_a_kernel_whose_host_does_not_come_back_ends_by_itself(box: Box) -> None:
    kernels = await Kernel.start(box, orphan_seconds=0.4)
    context = await kernels.context()
    assert (await context.execute("import time\ntime.sleep(1)\n1")).value == 1  # not while somebody is there
    await kernels.close()
    process = await box.process(kernels.process)
    assert await process.wait(240) == 0
    with pytest.raises(KernelLost):
        await Kernel.attach(box, kernels.process, kernels.endpoint.token)


# --- what a box must not be able to do ---


async def test_nobody_gets_in_without_the_token(kernels: Kernel) -> None:
    thief = Kernel(replace(kernels.endpoint, token="0" * 32), kernels.process)
    with pytest.raises(KernelUnreachable):
        await thief.contexts()
    for message in (b"\xff" * 64, pack({"t": "attach", "context": "main"}), pack({"t": "contexts", "token": 5})):
        async with await kernels.box.connect(kernels.endpoint.port) as connection:
            await connection.write(message)
            assert await connection.read() == b""
    assert await kernels.contexts() is not None


_SOCKETS = """
import os, stat, socket
def sockets():
    for name in os.listdir('/proc/self/fd'):
        try:
            if stat.S_ISSOCK(os.stat('/proc/self/fd/' + name).st_mode):
                yield socket.socket(fileno=os.dup(int(name)))
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        pack({"t": "ready"})[:6] + b"\x00" * 40,
        pack({"t": "done"}),
        pack({"t": "out", "s": 1}),
        pack({"t": "call", "id": {}}),
        b"\x00\x00\x00\x02\x00\x00\x00\x00[]",
        b"\x00\x00\x00\x04\xff\xff\xff\xff{}  ",
    ],
)
async def test_garbage_of_a_context_ends_its_connection_and_harms_nobody(
    kernels: Kernel, context: Context, garbage: bytes
) -> None:
    await context.execute(_SOCKETS)
    send = f"for each in sockets():\n    try: each.sendall({garbage!r})\n    except OSError: pass"
    with pytest.raises(KernelLost, match="malformed"):
        await context.execute(send + "\nwhile True: pass")
    other = await kernels.context("neighbour")
    assert (await other.execute("1 + 1")).value == 2


async def test_calls_that_nobody_made_are_refused(context: Context) -> None:
    host = await hosted(context)
    await context.execute(_SOCKETS)
    forged = b"".join(
        pack({"t": "call", "id": f"forged-{n}", "name": name, "e": execution}, b'{"args":[],"kwargs":{}}')
        for n, (name, execution) in enumerate([("echo", "x-other"), ("secrets", "x-now"), ("__class__", "x-now")])
    )
    send = f"for each in sockets():\n    try: each.sendall({forged!r})\n    except OSError: pass"
    done = await context.execute(send + "\necho('mine')", id="x-now", handler=host.handle)
    assert done.ok, done.error
    assert [call.args for call in host.calls] == [("mine",)]


async def test_a_start_takes_no_files_of_the_box_and_leaves_none(box: Box, tmp_path: Path) -> None:
    await box.files.write("json.py", b"raise RuntimeError('not this one')")
    kernels = await Kernel.start(box, cwd=box.spec.workdir)
    try:
        context = await kernels.context()
        done = await context.execute("import os\nos.getcwd()")
        assert done.value == box.spec.workdir
        await box.files.write("mine.py", b"x = 5")
        assert (await context.execute("import mine\nmine.x")).value == 5
    finally:
        await kernels.end()
        await box.files.delete("json.py")


async def test_packages_in_the_home_of_the_user_can_be_imported(box: Box) -> None:
    kernels = await Kernel.start(box)
    try:
        context = await kernels.context()
        code = (
            "import os, site\nplace = site.getusersitepackages()\nos.makedirs(place, exist_ok=True)\n"
            "x = open(place + '/of_the_user.py', 'w').write('x = 5')\nimport of_the_user\nof_the_user.x"
        )
        assert (await context.execute(code)).value == 5
        assert (await context.execute("import json\nplace in json.__file__")).value is False
    finally:
        await kernels.end()


async def test_a_box_without_connections_is_refused_by_name(tmp_path: Path) -> None:
    async with DummyProvider(tmp_path, capabilities=CAPABILITIES - {Capability.CONNECT}) as provider:
        box = await provider.create(BoxSpec(), id="closed")
        kernels = await Kernel.start(box)
        with pytest.raises(Unsupported, match="provider dummy does not support connect"):
            await kernels.context()
        await kernels.end()
        await box.delete()
