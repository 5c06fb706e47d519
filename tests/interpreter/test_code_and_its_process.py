"""What code may do to the process it runs in, and the context answers all the same: forks, descriptors, builtins."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.api.box.box import Box
from holdfast.api.errors.interpreters import KernelLost
from holdfast.interpreter.bridge.calls import Call, Submission, ToolName
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.kernel import Kernel

pytestmark = pytest.mark.anyio

TOOLS = (ToolName("echo"), ToolName("SUBMIT"))


async def handle(call: Call) -> Any:
    return Submission(call.kwargs) if call.name == "SUBMIT" else call.args[0]


@pytest.fixture
async def context(kernels: Kernel) -> AsyncIterator[Context]:
    context = await kernels.context(f"c-{secrets.token_hex(4)}")
    await context.define(TOOLS)
    yield context
    await context.kill()
    await context.close()


# --- forks ---

FORK = """\
import os, sys
pid = os.fork()
if pid == 0:
    {child}
else:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"parent of", pid > 0, status if pid else None
"""


async def test_a_forked_child_that_runs_on_answers_for_nobody(context: Context) -> None:
    done = await context.execute(FORK.format(child="print('said by the child')"), timeout=30, handler=handle)
    assert done.value == ("parent of", True, 0)
    assert done.stdout == "said by the child\n"
    assert (await context.execute("1 + 1", timeout=30, handler=handle)).value == 2
    assert context.pid == (await context.execute("import os; os.getpid()", timeout=30, handler=handle)).value


@pytest.mark.parametrize(
    ("child", "code", "said"),
    [
        ("raise ValueError('of the child')", 1, "ValueError: of the child"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('gone')", 1, "gone"),
        ("os._exit(3)", 3, ""),
    ],
)
async def test_a_forked_child_ends_with_its_own_exit_code_and_traceback(
    context: Context, child: str, code: int, said: str
) -> None:
    done = await context.execute(FORK.format(child=child), timeout=30, handler=handle)
    assert done.value == ("parent of", True, code)
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)


async def test_what_was_printed_before_a_fork_is_printed_once(context: Context) -> None:
    done = await context.execute(
        "print('before', end=' ')\n" + FORK.format(child="print('child', end='')"), timeout=30, handler=handle
    )
    assert sorted(done.stdout.split()) == ["before", "child"]


async def test_a_tool_called_in_a_fork_raises_at_once(context: Context) -> None:
    done = await context.execute(FORK.format(child="echo(1)"), timeout=30, handler=handle)
    assert done.value == ("parent of", True, 1)
    assert "echo can only be called in the process of the interpreter, not in a fork" in done.stderr
    code = """\
import multiprocessing
def work(n):
    try:
        return echo(n)
    except RuntimeError as error:
        return str(error)
with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map(work, [1, 2])
found
"""
    pooled = await context.execute(code, timeout=60, handler=handle)
    assert all("not in a fork" in each for each in pooled.value)
    assert (await context.execute("echo(5)", timeout=30, handler=handle)).value == 5


async def test_a_fork_holds_no_connection_of_a_context_that_dies(context: Context) -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(600)\nos._exit(5)"
    with pytest.raises(KernelLost):
        async with asyncio.timeout(240):
            await context.execute(code)


async def test_what_a_context_has_started_ends_with_it_and_branches_do_not(context: Context, box: Box) -> None:
    mark = f"holdfast-{secrets.token_hex(6)}"
    start = f"import subprocess; started = subprocess.Popen(['/bin/sh', '-c', 'sleep 600; : {mark}'])"
    await context.execute(start, timeout=30, handler=handle)
    [branch] = await context.fork(1)
    fork = f"import os, time\nif os.fork() == 0:\n    os.execv('/bin/sh', ['sh', '-c', 'sleep 600; : {mark}'])"
    await context.execute(fork, timeout=30, handler=handle)

    async def until(condition: str) -> None:
        there = f"grep -la '[h]{mark[1:]}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
        wait = f"for i in $(seq 1000); do [ $({there}) {condition} ] && exit 0; sleep 0.02; done; exit 1"
        assert (await box.exec(["/bin/sh", "-c", wait])).exit_code == 0

    await until("-ge 2")
    await context.kill()
    await until("-eq 0")
    assert (await branch.execute("started.args[0]", timeout=30)).value == "/bin/sh"
    await branch.kill()
    await branch.close()


# --- descriptors ---


async def test_closing_descriptors_costs_neither_the_connection_nor_the_state(context: Context) -> None:
    await context.execute("kept = 'still here'", timeout=30, handler=handle)
    done = await context.execute("import os\nos.closerange(0, 200)\nprint('printed'); kept", timeout=30, handler=handle)
    assert (done.value, done.stdout) == ("still here", "printed\n")
    after = await context.execute("os.system('echo from a program'); echo(kept)", timeout=30, handler=handle)
    assert (after.value, after.stdout) == ("still here", "from a program\n")
    assert "kept" in (await context.save("/tmp/saved-later")).names


async def test_a_context_that_closed_all_of_its_descriptors_is_lost_by_name(context: Context) -> None:
    with pytest.raises(KernelLost, match="closed the connection to the host"):
        async with asyncio.timeout(240):
            await context.execute("import os; os.closerange(0, 70_000)")
    await context.restart()
    assert (await context.execute("'new'", timeout=30, handler=handle)).value == "new"


# --- builtins and names ---

_NAMES = "str isinstance len dict list repr type getattr open compile eval bytes print range super"
REPLACED = [*_NAMES.split(), "Exception", "BaseException", "OSError", "__import__", "__build_class__"]


@pytest.mark.parametrize("name", REPLACED)
async def test_a_builtin_that_code_replaced_is_its_own_affair(context: Context, name: str) -> None:
    done = await context.execute(
        f"import builtins, sys\nbuiltins.{name} = None\n'was replaced'", timeout=30, handler=handle
    )
    assert done.value == "was replaced"
    wrong = await context.execute("sys.stdout.write('words')\n1 / 0", timeout=30, handler=handle)
    assert wrong.error is not None
    assert wrong.error.kind == "ZeroDivisionError"
    assert "1 / 0" in wrong.error.traceback
    assert (await context.execute("echo({'a': [1, (2, 3)]})", timeout=30, handler=handle)).value == {"a": [1, (2, 3)]}
    assert (await context.execute(f"builtins.{name} is None", timeout=30)).value is True, "it stays replaced"


@pytest.mark.parametrize(
    "code",
    [
        "__builtins__ = {}",
        "__builtins__ = None",
        "del __builtins__",
        "import os, time, select, struct\ntime.monotonic = os.urandom = os.getpid = select.poll = struct.unpack = None",
        "import os\nos.read = os.write = os.makedirs = os.environ = None",
        "import sys\nsys.stdout = sys.stderr = sys.modules['traceback'] = None",
        "import sys, builtins\nisinstance = str = None",
    ],
)
async def test_names_that_code_replaced_leave_the_next_execution_alone(context: Context, code: str) -> None:
    assert (await context.execute(code, timeout=30, handler=handle)).error is None
    done = await context.execute("[each for each in range(3)]", timeout=30, env={"TRACEPARENT": "00-1"})
    assert done.value == [0, 1, 2]
    wrong = await context.execute("undefined_name", timeout=30, handler=handle)
    assert wrong.error is not None
    assert wrong.error.kind == "NameError"
    assert (await context.execute("echo(4)", timeout=30, handler=handle)).value == 4


async def test_tools_and_submit_are_there_again_in_the_next_execution(context: Context) -> None:
    done = await context.execute("SUBMIT = echo = None\nSUBMIT is echo", timeout=30, handler=handle)
    assert done.value is True
    assert (await context.execute("echo('again')", timeout=30, handler=handle)).value == "again"
    await context.execute("del echo, SUBMIT", timeout=30, handler=handle)
    assert (await context.execute("SUBMIT(answer=echo(3))", timeout=30, handler=handle)).submitted == {"answer": 3}
