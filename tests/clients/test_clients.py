"""Other people's clients of Durable Streams, the published ones, read and write our streams whole."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from durable_streams import DurableStream, astream, stream

from holdfast.testing.server import ServerProcess

Headers = dict[str, str | Callable[[], str]]
"""As the clients for Python have them."""
HERE = Path(__file__).parent
MESSAGES = 6000
"""Of a kilobyte: several times what a server has in memory of one read."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("clients") / "home") as server:
        yield server


@pytest.fixture
def headers(server: ServerProcess) -> Headers:
    return {"Authorization": f"Bearer {server.api_key}"}


@pytest.fixture
def long_stream(server: ServerProcess, headers: Headers, request: pytest.FixtureRequest) -> str:
    """The URL of a stream of six megabytes."""
    url = f"{server.url}/v1/stream/{request.node.name}"
    plain = {"Authorization": str(headers["Authorization"]), "Content-Type": "application/json"}
    with httpx.Client(headers=plain, trust_env=False, timeout=240) as http:
        http.put(url).raise_for_status()
        for begin in range(0, MESSAGES, 1000):
            batch = [{"n": number, "text": "x" * 1000} for number in range(begin, begin + 1000)]
            http.post(url, content=json.dumps(batch)).raise_for_status()
    return url


def test_the_client_for_python_reads_to_the_tail(long_stream: str, headers: Headers) -> None:
    with DurableStream(long_stream, headers=headers, content_type="application/json") as handle:
        handle.append({"n": "python-1"})
    with stream(long_stream, headers=headers, live=False) as response:
        messages: list[Any] = response.read_json()
    assert [message["n"] for message in messages] == [*range(MESSAGES), "python-1"]
    with stream(long_stream, headers=headers, live=False) as response:
        assert [message["n"] for message in response.iter_json()] == [*range(MESSAGES), "python-1"]
        assert response.up_to_date
    with stream(long_stream, headers=headers, live=False) as response:
        assert len(response.read_bytes()) > MESSAGES * 1000


@pytest.mark.anyio
async def test_the_async_client_for_python_reads_to_the_tail(long_stream: str, headers: Headers) -> None:
    with anyio.fail_after(60):
        async with astream(long_stream, headers=headers, live=False) as response:
            messages: list[Any] = await response.read_json()
    assert [message["n"] for message in messages] == [*range(MESSAGES)]


def test_the_client_for_node_reads_to_the_tail(long_stream: str, headers: Headers) -> None:
    node = shutil.which("node")
    assert node, "node is missing: run this with bin/test, which brings its own"
    run = subprocess.run(
        [node, "read.mjs", long_stream, str(headers["Authorization"])],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    read = json.loads(run.stdout)
    assert (read["messages"], read["followed"]) == (MESSAGES + 2, MESSAGES + 2)
    assert (read["last"], read["upToDate"]) == ({"n": "node-2"}, True)
    assert read["bytes"] > MESSAGES * 1000
