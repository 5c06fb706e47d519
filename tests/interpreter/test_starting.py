"""Kernel that boxes of the pool have ahead: on a real server, in real boxes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from tests.serving import serving

from holdfast import Interpreter
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError
from holdfast.interpreter.client_host import ClientHost
from holdfast.providers.local import LocalProvider
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("ahead") / "home", pool=4) as server:
        yield server


async def ready(server: ServerProcess) -> int:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {server.api_key}"}) as http:
        told = (await http.get(f"{server.url}/metrics")).text
    return int(float(next(line for line in told.splitlines() if line.startswith("holdfast_pool_boxes ")).split()[-1]))


async def fill(host: ClientHost, server: ServerProcess) -> None:
    """Until there is one for whoever comes next."""
    async with asyncio.timeout(240):
        for _ in range(2):
            async with Interpreter(host=host):
                pass
        while not await ready(server):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def started_ahead(py: Interpreter, host: ClientHost) -> bool:
    """Whether its kernel is older than its box, which is as old as it is somebody's."""
    [kernel] = [each for each in await py.box.processes() if each.exit_code is None]
    return kernel.started_at < (await host.client.boxes.get(py.box.id)).created_at


async def test_a_kernel_of_the_pool_is_like_any_other(host: ClientHost, server: ServerProcess) -> None:
    await fill(host, server)
    async with Interpreter(host=host, tools=[len]) as py:
        assert await started_ahead(py, host)
        names = (await py.execute("[name for name in globals() if not name.startswith('_')]")).value
        assert set(names) == {"llm_query", "llm_query_batched", "len", "SUBMIT"}
        assert (await py.execute("import os; os.environ['HOLDFAST_BOX']")).value == py.box.id
        assert (await py.execute("os.getcwd()")).value == py.box.spec.workdir
        assert (await py.execute("len('four')")).value == 4
        first = (await py.execute("import random; random.random()")).value
        started = [each["payload"] async for each in py.history() if each["payload"]["type"] == "interpreter.started"]
        assert [each["memory_kept"] for each in started] == [False]
    await fill(host, server)
    async with Interpreter(host=host) as other:
        assert await started_ahead(other, host)
        assert (await other.execute("import random; random.random()")).value != first


async def test_one_that_is_kept_is_found_again_with_its_memory(host: ClientHost, server: ServerProcess) -> None:
    await fill(host, server)
    async with Interpreter(id="i-pooled", host=host) as py:
        ahead = await started_ahead(py, host)
        await py.execute("kept = 1")
    async with Interpreter(id="i-pooled", host=host) as again:
        assert (await again.execute("kept")).value == 1
        again.keep = False
    assert ahead


async def test_who_wants_another_kernel_gets_his_own(host: ClientHost, server: ServerProcess) -> None:
    await fill(host, server)
    async with Interpreter(host=host, memory=300 << 20) as py:
        assert (await py.execute("import resource; resource.getrlimit(resource.RLIMIT_DATA)[0]")).value == 300 << 20
        assert (await py.execute("'x' * (400 << 20)")).error is not None


async def test_a_kernel_that_died_in_the_pool_is_replaced(host: ClientHost, server: ServerProcess) -> None:
    await fill(host, server)
    taken = {each.id async for each in host.client.boxes.list()}
    async with LocalProvider(server.home) as provider:
        for info in await provider.find():
            if info.id not in taken:
                box = await provider.attach(info.id)
                for process in await box.processes():
                    await (await box.process(process.id)).kill()
    async with Interpreter(host=host) as py:
        assert (await py.execute("1 + 1")).value == 2


async def test_boxes_of_others_have_none(host: ClientHost, server: ServerProcess) -> None:
    for _ in range(3):
        made = (await host.client.boxes.create(BoxSpec())).box
        box = await host.client.boxes.open(made.id)
        assert await box.processes() == []
        with pytest.raises(BoxError):
            await box.files.read("/tmp/.holdfast-kernel.json")
