"""What an interpreter survives at every place, and what it says when it cannot; and the smoke test there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.interpreter.places import ALL, Place

from holdfast import Interpreter
from holdfast.api.box.box import Power
from holdfast.api.box.spec import BoxSpec
from holdfast.client import Client
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.host import Host
from holdfast.interpreter.replay import replay
from holdfast.interpreter.smoke_test import smoke
from holdfast.interpreter.workspace.workspace import CurrentBox, Workspace
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio
WAIT = 120.0


class Gate:
    """A tool that code waits at."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        self.reached.set()
        await self.open.wait()
        return self.calls


@pytest.fixture
async def py(host: ClientHost, spec: BoxSpec) -> AsyncIterator[Interpreter]:
    async with Interpreter(host=host, spec=spec) as py:
        yield py


async def ends(py: Interpreter) -> list[bool | None]:
    """How each execution on the thread ended."""
    return [each.ok for each in replay([entry async for entry in py.history()]).executions]


async def test_code_goes_on_while_its_connection_breaks_and_what_comes_of_it_is_recorded_once(py: Interpreter) -> None:
    gate = Gate()

    async def wait() -> int:
        return await gate()

    py.tools["wait"] = wait
    running = asyncio.create_task(py.execute("print('once')\nwent = open('went', 'a').write('x')\nwait()"))
    async with asyncio.timeout(WAIT):
        await gate.reached.wait()
        context = py._runtime.context
        assert context is not None
        assert context._connection is not None
        await context._connection.close()
        gate.open.set()
        done = await running
        assert (done.value, done.stdout) == (1, "once\n")
        assert (await py.execute("open('went').read()")).value == "x"
    assert await ends(py) == [True, True]


async def test_a_request_that_is_lost_with_its_connection_is_repeated_and_carried_out_once(py: Interpreter) -> None:
    context = py._runtime.context
    assert context is not None
    connection = context._connection
    assert connection is not None
    arrives = connection.write

    async def lose(data: bytes) -> None:
        """Half of it arrives."""
        await arrives(data[: len(data) // 2])
        await connection.close()

    connection.write = lose  # type: ignore[method-assign]
    async with asyncio.timeout(WAIT):
        done = await py.execute("went = open('went', 'a').write('x')\nopen('went').read()")
        assert done.value == "x"
    assert await ends(py) == [True]


@pytest.mark.places(*ALL)
async def test_a_box_that_is_stopped_under_its_code_loses_the_memory_says_so_and_keeps_its_files(
    py: Interpreter, host: ClientHost
) -> None:
    gate = Gate()

    async def wait() -> int:
        return await gate()

    py.tools["wait"] = wait
    await py.execute("x = open('kept.txt', 'w').write('here')")
    running = asyncio.create_task(py.execute("wait()"))
    async with asyncio.timeout(WAIT):
        await gate.reached.wait()
        await host.client.boxes.stop(py.box.id)
        done = await running
        assert done.error is not None
        assert (done.error.kind, done.state_lost) == ("KernelKilled", True)
        assert (await py.execute("'x' in globals(), open('kept.txt').read()")).value == (False, "here")
    assert await ends(py) == [True, False, True]


@pytest.mark.places("local")
async def test_a_box_that_is_stopped_just_after_it_was_looked_at_is_started_again(
    py: Interpreter, host: ClientHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await py.execute("x = open('kept.txt', 'w').write('here')")
    before = CurrentBox(None, Power.RUNNING)
    box = py.box.id
    await host.client.boxes.stop(box)

    async def looked_at_before(workspace: Workspace) -> CurrentBox | None:
        monkeypatch.undo()
        return before

    monkeypatch.setattr(Workspace, "_current", looked_at_before)
    async with asyncio.timeout(WAIT):
        done = await py.execute("1")
        assert done.state_lost
        assert (await py.execute("'x' in globals(), open('kept.txt').read()")).value == (False, "here")
    assert py.box.id == box


@pytest.mark.places(*ALL)
async def test_the_smoke_test_passes_and_tells_how_long_each_phase_took(server: ServerProcess, place: Place) -> None:
    async def open_host() -> Host:
        return await ClientHost.of_home(server.home)

    report = await smoke(open_host, spec=place.spec)
    assert report.ok, report.to_json()
    told: dict[str, Any] = {each.name: each.seconds for each in report.phases}
    assert list(told) == ["config", "box", "driver", "execute", "state", "cleanup"]
    assert told["box"] > 0
    async with Client(server.url, api_key=server.api_key) as client:
        assert not [each async for each in client.boxes.list() if (each.key or "").startswith("smoke-")]
