"""`restore="fork"`: code that has to be killed, or kills its own process, costs what it did itself and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import Interpreter
from holdfast.api.box.spec import BoxSpec
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.kernel import context as contexts

pytestmark = pytest.mark.anyio

C_LOOP = "sum(range(10**13))"
"""Code that no interrupt reaches."""


@pytest.fixture
async def py(host: ClientHost, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Interpreter]:
    monkeypatch.setattr(contexts, "GRACE_SECONDS", 0.3)
    async with Interpreter(host=host, spec=spec, restore="fork", tools={"double": lambda n: n * 2}) as py:
        yield py


async def living(py: Interpreter) -> list[str]:
    assert py._runtime.kernel is not None
    return [each.id for each in await py._runtime.kernel.contexts() if each.pid is not None]


@pytest.mark.parametrize(
    "code",
    [
        f"kept.append('lost')\n{C_LOOP}",
        "kept.append('lost')\nimport os\nos._exit(3)",
        "kept.append('lost')\nimport os\nos.kill(os.getpid(), 11)",
        "kept.append('lost')\nimport os\nos.closerange(0, 70_000)",
    ],
    ids=["killed", "exits", "crashes", "cut off"],
)
async def test_what_was_in_memory_before_is_there_again(py: Interpreter, code: str) -> None:
    assert (await py.execute("import math\nkept = [1]\ndef add(n): kept.append(n); return kept")).ok
    assert (await py.execute("add(2)")).value == [1, 2]
    done = await py.execute(code, timeout=0.5)
    assert done.error is not None
    assert (done.restored, done.state_lost) == (True, False)
    assert "restored to the state before this execution" in done.error.message
    assert (await py.execute("add(3)")).value == [1, 2, 3]
    assert (await py.execute("double(math.floor(2.5))")).value == 4, "imports and tools are there, too"
    again = await py.execute(code, timeout=0.5)
    assert again.restored
    assert (await py.execute("kept")).value == [1, 2, 3]
    told = [each["payload"].get("what") async for each in py.history()]
    assert told.count("restored") == 2


async def test_an_execution_that_ends_leaves_no_point_behind(py: Interpreter) -> None:
    for _ in range(3):
        assert (await py.execute("1 + 1")).value == 2
    assert (await py.execute("1 / 0")).restored is False
    count = """\
import os, time
for _ in range(500):
    parents = [open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]
               for pid in os.listdir("/proc") if pid.isdigit() and os.path.exists(f"/proc/{pid}/stat")]
    found = parents.count(str(os.getpid()))
    if found <= 1:
        break
    time.sleep(0.01)
found
"""
    assert (await py.execute(count)).value == 1, "the one of this execution"
    assert await living(py) == ["main"]


async def test_cancelled_code_is_undone_and_the_next_execution_runs(py: Interpreter) -> None:
    began = asyncio.Event()

    async def begun() -> None:
        began.set()

    py.tools["begun"] = begun
    await py.execute("x = 1")
    deaf = "import signal; signal.signal(signal.SIGINT, lambda *_: None)"  # also before it is in the loop
    running = asyncio.create_task(py.execute(f"{deaf}\nx = 2\nbegun()\n{C_LOOP}"))
    await asyncio.wait_for(began.wait(), 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    done = await py.execute("x")
    assert (done.value, done.state_lost) == (1, False)


async def test_without_it_the_state_is_lost_and_the_result_says_so(
    host: ClientHost, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "GRACE_SECONDS", 0.3)
    async with Interpreter(host=host, spec=spec) as py:
        await py.execute("x = 1")
        done = await py.execute(C_LOOP, timeout=0.3)
        assert (done.restored, done.state_lost) == (False, True)
        assert done.error is not None
        assert "is lost" in done.error.message
        assert (await py.execute("'x' in globals()")).value is False


async def test_a_reset_is_not_undone(py: Interpreter) -> None:
    began = asyncio.Event()

    async def begun() -> None:
        began.set()

    py.tools["begun"] = begun
    await py.execute("x = 1")
    running = asyncio.create_task(py.execute("begun()\nwhile True: pass"))
    await asyncio.wait_for(began.wait(), 60)
    await py.reset()
    done: Any = await running
    assert (done.restored, done.state_lost) == (False, True)
    assert (await py.execute("'x' in globals()")).value is False
    assert await living(py) == ["main"]


async def test_branches_and_children_have_it_too(py: Interpreter) -> None:
    await py.execute("x = 1")
    [branch] = await py.fork()
    done = await branch.execute("x = 2\nimport os\nos._exit(1)")
    assert done.restored
    assert (await branch.execute("x")).value == 1
    child = await py.build_child()
    await child.execute("y = 5")
    assert (await child.execute("import os\nos._exit(1)")).restored
    assert (await child.execute("y")).value == 5
