"""The bridge through a real box, on this machine and at the end of one byte stream: one contract for both. Then code in
the box that attacks its host."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.egress.model_world import make_world

from holdfast.api.errors.interpreters import InterpreterError
from holdfast.egress.models import ask
from holdfast.interpreter.bridge.bridge import Bridge, Delegation
from holdfast.interpreter.bridge.budget import Budget, Limits
from holdfast.interpreter.execution import Execution
from holdfast.interpreter.host import Completion
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.kernel import Kernel

pytestmark = [pytest.mark.anyio, pytest.mark.places("local", "stream", "docker", "daytona")]

WAIT = 30.0
names = (f"context-{number}" for number in itertools.count())


class Bridged:
    """A context and its bridge."""

    def __init__(self, context: Context, bridge: Bridge) -> None:
        self.context = context
        self.bridge = bridge

    async def run(self, code: str, **more: Any) -> Execution:
        id = f"x-{next(names)}"
        async with asyncio.timeout(WAIT), self.bridge.turn(id):
            await self.context.define(self.bridge.names())
            return await self.context.execute(code, id=id, handler=self.bridge.handle, **more)


@contextlib.asynccontextmanager
async def bridged(kernels: Kernel, **more: Any) -> AsyncIterator[Bridged]:
    bridge = Bridge(**more)
    context = await kernels.context(next(names))
    try:
        yield Bridged(context, bridge)
    finally:
        await context.kill()
        await context.close()
        await bridge.close()


# --- the contract ---------------------------------------------------------------------------------------------------


async def test_tools_take_typed_arguments_and_give_results(kernels: Kernel) -> None:
    def describe(name: str, count: int = 1, *, tags: list[str] | None = None) -> dict[str, Any]:
        """Describe it."""
        return {"name": name, "count": count, "tags": tags}

    async def later(x: Any) -> Any:
        await asyncio.sleep(0)
        return x

    async with bridged(kernels, tools=[describe, later]) as box:
        made = await box.run("describe('[1, 2]', '3', tags=('a', 'b'))")
        assert made.value == {"name": "[1, 2]", "count": 3, "tags": ["a", "b"]}
        made = await box.run("""[later(x) for x in ('{"a": 1}', None, 1.5, b'raw', (1, 2), {1: 2})]""")
        assert made.value == ['{"a": 1}', None, 1.5, b"raw", (1, 2), {1: 2}]
        made = await box.run("describe.__doc__")
        assert made.value == (
            "describe(name: str, count: int = 1, *, tags: list[str] | None = None) -> dict[str, Any]\n\nDescribe it."
        )


async def test_errors_say_what_the_model_needs_and_can_be_caught(kernels: Kernel) -> None:
    def fail(how: str) -> None:
        raise {"value": ValueError("no such city"), "file": FileNotFoundError(2, "No such file")}[how]

    async with bridged(kernels, tools=[fail]) as box:
        made = await box.run("fail('value')")
        assert made.error is not None
        assert (made.error.kind, made.error.message) == ("ValueError", "no such city")
        made = await box.run("fail('file')")
        assert made.error is not None
        assert (made.error.kind, made.error.message) == ("FileNotFoundError", "[Errno 2] No such file")
        made = await box.run("try:\n    fail(5)\nexcept TypeError as error:\n    told = str(error)\ntold")
        assert made.value == "fail: how must be str, not 5 (int)"


async def test_a_submission_is_typed(kernels: Kernel) -> None:
    async with bridged(kernels, output_fields=[{"name": "total", "type": "int"}, {"name": "why"}]) as box:
        made = await box.run("SUBMIT(total='many', wy='x')")
        assert made.error is not None
        assert made.error.message == (
            "total must be int, not 'many' (str); why is missing; 'wy' is not a field: did you mean why?: "
            "call SUBMIT(total: int, why)"
        )
        made = await box.run("""SUBMIT(total='7', why='["x"]')\nraise ValueError('never')""")
        assert (made.ok, made.submitted) == (True, {"total": 7, "why": '["x"]'})


async def test_a_model_is_asked_through_the_gateway(kernels: Kernel, tmp_path: Path) -> None:
    async with make_world(tmp_path) as world:
        world.provider.answer_sides(lambda request: f"answer to {request.body['messages'][0]['content']}")

        async def complete(model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Completion:
            choice = world.models.resolve(model or "mine")
            said = await ask(world.gateway, choice, messages, run="t-1", timeout=timeout)
            return Completion(said.text, str(choice), said.input_tokens, said.output_tokens, said.cost)

        budget = Budget(Limits(calls=20))
        async with bridged(kernels, complete=complete, budget=budget) as box:
            made = await box.run("llm_query_batched([f'q{n}' for n in range(16)])")
            assert made.value == [f"answer to q{n}" for n in range(16)]
            assert (budget.spent.calls, budget.spent.tokens) == (16, 16 * 110)
            made = await box.run("llm_query_batched(['q'] * 5)")
            assert made.error is not None
            assert "4 of 20 model calls are left" in made.error.message


async def test_children_answer(kernels: Kernel) -> None:
    async def child(delegation: Delegation) -> Any:
        return [delegation.query, delegation.context, delegation.depth]

    async with bridged(kernels, delegate=child) as box:
        made = await box.run("[sub_rlm('one', context={'a': 1})] + sub_rlm_batched(['two', 'three'])")
        assert made.value == [["one", {"a": 1}, 1], ["two", None, 1], ["three", None, 1]]


async def test_calls_of_many_threads_get_each_its_own_answer(kernels: Kernel) -> None:
    async def double(x: int) -> int:
        return 2 * x

    async with bridged(kernels, tools=[double]) as box:
        made = await box.run(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(20) as pool:\n"
            "    made = list(pool.map(double, range(40)))\n"
            "made"
        )
        assert made.value == [2 * x for x in range(40)]


async def test_a_call_outlives_its_connection_and_is_carried_out_once(kernels: Kernel) -> None:
    began, go_on, went = asyncio.Event(), asyncio.Event(), []

    async def slow(x: int) -> int:
        went.append(x)
        began.set()
        await go_on.wait()
        return x + 1

    async with bridged(kernels, tools={"slow": slow, "quick": lambda: 0}) as box:
        running = asyncio.create_task(box.run("quick()\nslow(1)"))
        await began.wait()
        connection = box.context._connection
        assert connection is not None
        await connection.close()  # the way is gone, not the context
        await until(lambda: box.context._connection not in (None, connection))
        go_on.set()
        assert (await running).value == 2
        assert went == [1]


async def test_an_interrupt_cancels_what_the_host_does(kernels: Kernel) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with bridged(kernels, tools=[slow]) as box:
        running = asyncio.create_task(box.run("slow()"))
        await began.wait()
        await box.context.interrupt()
        made = await running
        assert made.error is not None
        assert made.error.kind == "KeyboardInterrupt"
        assert ended.is_set()
        assert (await box.run("1 + 1")).value == 2


async def test_a_call_that_is_under_way_when_its_execution_ends_is_cancelled(kernels: Kernel) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def when_begun() -> None:
        await began.wait()

    async with bridged(kernels, tools=[slow, when_begun]) as box:
        code = "import threading\nthreading.Thread(target=slow, daemon=True).start()\nwhen_begun()"
        assert (await box.run(code)).ok
        assert ended.is_set()
        assert (await box.run("1 + 1")).value == 2


async def until(holds: Any) -> None:
    async with asyncio.timeout(WAIT):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- attacks --------------------------------------------------------------------------------------------------------

FORGE = """
import json, os
kernel = [cell.cell_contents for cell in look.__closure__ if hasattr(cell.cell_contents, "connection")][0]
def send(body=b'{"args": [], "kwargs": {}}', **more):
    "A call as nobody but the kernel should make one."
    call = {"t": "call", "id": os.urandom(8).hex(), "name": "look", "e": kernel.execution, **more}
    kernel.connection.send(call, body)
"""


@contextlib.asynccontextmanager
async def attacked(kernels: Kernel, **more: Any) -> AsyncIterator[tuple[Bridged, list[Any]]]:
    looked: list[Any] = []

    async def look(at: Any = None) -> int:
        looked.append(at)
        return len(looked)

    async with bridged(kernels, tools=[look], **more) as box:
        assert (await box.run(FORGE)).ok
        yield box, looked


REFUSED = [
    "name='os.system'",
    "name='_perform'",
    "name='x' * 100_000",
    "name=['look']",
    "e='x-another'",
    "e=['x']",
    "b''",
    "b'not json'",
    "b'[]'",
    "b'5'",
    "b'null'",
    "b'{}'",
    "b'[' * 100_000 + b']' * 100_000",
    """b'{"args": "ab", "kwargs": {}}'""",
    """b'{"args": 5, "kwargs": {}}'""",
    """b'{"args": [], "kwargs": [1]}'""",
    """b'{"args": [{"$": "float", "text": "x"}], "kwargs": {}}'""",
    """b'{"args": [{"$": "dict", "items": [[[1], 2]]}], "kwargs": {}}'""",
    """b'{"args": [{"$": "bytes"}], "kwargs": {}}'""",
    """b'{"args": [], "kwargs": {"at": ' + b'[' * 900 + b']' * 900 + b'}}'""",
    """b'{"args": [[' + b'0,' * 1_010_000 + b'0]], "kwargs": {}}'""",
]
HUNG_UP = ["t=5", "t='done'", "t='ready'", "t='out'", "t='answer'", "t='x' * 100_000"]
"""What is no call at all. Who talks nonsense may be hung up on."""


async def test_a_forged_call_is_refused_and_nothing_is_carried_out(kernels: Kernel) -> None:
    async with attacked(kernels) as (box, looked):
        made = await box.run("\n".join(f"send({forged})" for forged in REFUSED) + "\nlook('mine')")
        assert (made.ok, looked) == (True, ["mine"])


@pytest.mark.parametrize("forged", HUNG_UP)
async def test_what_is_no_call_hurts_nobody_else(kernels: Kernel, forged: str) -> None:
    async with attacked(kernels) as (box, looked):
        with contextlib.suppress(InterpreterError):
            await box.run(f"send({forged})\nlook('mine')")
        assert set(looked) <= {"mine"}
    async with bridged(kernels, tools={"look": lambda: 1}) as box:
        assert (await box.run("look()")).value == 1


async def test_code_that_calls_after_its_execution_has_ended_is_refused(kernels: Kernel) -> None:
    code = """
import threading
first, over, told = kernel.execution, threading.Event(), []
def late():
    over.wait()
    send(e=first)
    send(e="")
    told.append("sent")
    over.clear()
thread = threading.Thread(target=late, daemon=True)
thread.start()
"""
    async with attacked(kernels) as (box, looked):
        assert (await box.run(code)).ok
        # What it says now is said while another execution runs, in the name of the one that is over.
        made = await box.run("over.set()\nthread.join(20)\nlook('mine')\ntold")
        assert (made.value, looked) == (["sent"], ["mine"])


async def test_code_that_calls_while_nothing_runs_cannot_even_ask(kernels: Kernel) -> None:
    code = """
import threading
go, told = threading.Event(), []
def later():
    go.wait()
    try:
        look("late")
    except Exception as error:
        told.append(str(error))
waiting = threading.Thread(target=later, daemon=True)
waiting.start()
"""
    async with attacked(kernels) as (box, looked):
        assert (await box.run(code)).ok
        made = await box.run("kernel.execution = ''\ngo.set()\nwaiting.join(20)\ntold")
        assert (made.value, looked) == (["look can only be called while an execution runs"], [])


async def test_a_duplicate_id_is_not_carried_out_twice(kernels: Kernel) -> None:
    async with attacked(kernels) as (box, looked):
        code = "for _ in range(20):\n    send(id='same')\nlook('mine')"
        assert (await box.run(code)).ok
        assert len(looked) <= 2
        assert looked.count(None) <= 1


async def test_a_flood_of_calls_is_bounded_and_the_host_goes_on(kernels: Kernel) -> None:
    async with attacked(kernels) as (box, looked):
        with contextlib.suppress(InterpreterError):
            await box.run("for _ in range(3000):\n    send()\nlook('last')")
        assert len(looked) <= 3001
    async with bridged(kernels, tools={"look": lambda: 1}) as box:
        assert (await box.run("look()")).value == 1


async def test_arguments_that_are_too_large_are_refused_in_the_box_and_by_the_host(kernels: Kernel) -> None:
    async with attacked(kernels) as (box, looked):
        made = await box.run("look('x' * (65 << 20))")
        assert made.error is not None
        assert "at most 67108864 can be sent" in made.error.message
        with contextlib.suppress(InterpreterError):
            await box.run("send(b'\"' + b'x' * (65 << 20) + b'\"')")
        assert looked == []


async def test_an_answer_that_was_forged_ends_no_execution_of_another(kernels: Kernel) -> None:
    """Code owns its own context, and can make it say anything; it stays in it."""
    async with attacked(kernels) as (box, looked), bridged(kernels, tools={"look": lambda: 1}) as other:
        async with asyncio.timeout(WAIT):
            running = asyncio.create_task(other.run("import time; time.sleep(0.3); look()"))
            with contextlib.suppress(InterpreterError):
                await box.run("kernel.connection.send({'t': 'done', 'id': 'x-other', 'error': None})")
            assert (await running).value == 1
        assert looked == []
