"""Interpreters of a server through the client: code runs once whatever the network does, and its output comes whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.client.proxy import Fault, Proxy
from tests.serving import serving

from holdfast import Client, SyncClient
from holdfast.client import Conflict, NotFound
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def interpreter_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("interpreters") / "home") as server:
        yield server


@pytest.fixture(scope="module")
def made(interpreter_server: ServerProcess) -> str:
    with SyncClient(interpreter_server.url, api_key=interpreter_server.api_key) as client:
        return client.interpreters.create(title="shared").id


@pytest.fixture
async def proxy(interpreter_server: ServerProcess) -> AsyncIterator[Proxy]:
    async with Proxy(interpreter_server.address) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy, interpreter_server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(proxy.url, api_key=interpreter_server.api_key) as client:
        yield client


async def test_output_comes_as_it_is_printed(client: Client, made: str) -> None:
    said: list[tuple[str, str]] = []
    done = await client.interpreters.execute(
        made,
        "import sys\nprint('out', n)\nprint('err', file=sys.stderr)\nn + 1",
        variables={"n": 1},
        on_output=lambda stream, text: said.append((stream, text)),
    )
    assert (done.ok, done.value, done.value_text) == (True, 2, "2")
    assert "".join(text for stream, text in said if stream == "stdout") == done.stdout == "out 1\n"
    assert "".join(text for stream, text in said if stream == "stderr") == done.stderr == "err\n"


async def test_a_lost_answer_does_not_run_the_code_twice(client: Client, proxy: Proxy, made: str) -> None:
    await client.interpreters.execute(made, "count = 0")
    proxy.faults += [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST]
    said: list[str] = []
    done = await client.interpreters.execute(
        made, "count += 1; print('once'); count", on_output=lambda _, text: said.append(text)
    )
    assert (done.value, "".join(said)) == (1, "once\n")


async def test_a_connection_that_breaks_in_the_middle_is_made_again_without_gap_or_repetition(
    client: Client, proxy: Proxy, made: str
) -> None:
    said: list[str] = []
    first = asyncio.Event()

    def printed(_: str, text: str) -> None:
        said.append(text)
        first.set()

    waits = "while not os.path.exists('go'): time.sleep(0.01)"
    code = f"import os, time\nprint('first', flush=True)\n{waits}\nprint('second')"
    running = asyncio.create_task(client.interpreters.execute(made, code, on_output=printed))
    await first.wait()
    await proxy.cut()
    box = (await client.interpreters.get(made)).box
    assert box is not None
    await (await client.boxes.open(box)).files.write("/workspace/go", b"")
    done = await running
    assert (done.ok, "".join(said)) == (True, "first\nsecond\n")


async def test_what_was_begun_is_not_begun_again_after_a_restart(interpreter_server: ServerProcess, made: str) -> None:
    async with Client(interpreter_server.url, api_key=interpreter_server.api_key) as client:
        await client.interpreters.execute(made, "ran = 1", execution_id="x-before")
    interpreter_server.restart()
    async with Client(interpreter_server.url, api_key=interpreter_server.api_key) as client:
        with pytest.raises(Conflict) as refused:
            await client.interpreters.execute(made, "ran += 1", execution_id="x-before")
        assert refused.value.code == "execution_known"
        assert (await client.interpreters.execute(made, "ran")).value == 1


async def test_errors_come_as_themselves(interpreter_server: ServerProcess, made: str) -> None:
    async with Client(interpreter_server.url, api_key=interpreter_server.api_key) as client:
        with pytest.raises(NotFound, match="no interpreter"):
            await client.interpreters.execute("i-nobody", "1")
        assert made in [each.id async for each in client.interpreters.list()]
        assert (await client.interpreters.test_box()).ok
        assert (await client.interpreters.test_model(model="nobody")).category == "model"


def test_the_sync_twin_does_the_same(interpreter_server: ServerProcess) -> None:
    with SyncClient(interpreter_server.url, api_key=interpreter_server.api_key) as client:
        info = client.interpreters.create(title="sync", output_fields=[{"name": "n", "type": "int"}])
        said: list[str] = []
        done = client.interpreters.execute(
            info.id, "print(1); SUBMIT(n=2)", on_output=lambda _, text: said.append(text)
        )
        assert (done.submitted, "".join(said)) == ({"n": 2}, "1\n")
        client.interpreters.execute(info.id, "import threading; kept = [1, 2]; lock = threading.Lock()")
        state = b"".join(client.interpreters.export_state(info.id))
        client.interpreters.execute(info.id, "kept.append(3); other = 1")
        assert "kept" in client.interpreters.import_state(info.id, state).names
        done = client.interpreters.execute(info.id, "kept, 'other' in globals(), 'lock' in globals()")
        assert done.value == {"$": "tuple", "items": [[1, 2], False, False]}
        with pytest.raises(Conflict, match="state"):
            client.interpreters.import_state(info.id, b"nonsense")
        assert client.interpreters.execute(info.id, "kept").value == [1, 2]
        client.interpreters.interrupt(info.id)
        moved = client.interpreters.configure_workspace(info.id)
        assert moved.kind == "reused"
        assert client.interpreters.get(info.id).title == "sync"
        client.interpreters.delete(info.id)
        assert info.id in [each.id for each in client.interpreters.list(deleted=True)]
