"""The server that tests use starts, stops, dies and comes back like any other, on the same home and port."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.testing.server import ServerFailed, ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "home") as server:
        yield server


def threads(server: ServerProcess) -> list[str]:
    headers = {"authorization": f"Bearer {server.api_key}"}
    listed = httpx.get(f"{server.url}/v1/threads", headers=headers, timeout=30).raise_for_status().json()
    return [thread["id"] for thread in listed["threads"]]


def create(server: ServerProcess, id: str) -> None:
    headers = {"authorization": f"Bearer {server.api_key}"}
    httpx.post(f"{server.url}/v1/threads", json={"id": id}, headers=headers, timeout=30).raise_for_status()


def ask_until_it_fails(server: ServerProcess) -> None:
    while True:
        httpx.get(f"{server.url}/health", timeout=30)


def fail_after_asking(server: ServerProcess) -> None:
    httpx.get(f"{server.url}/nowhere", timeout=30)
    raise AssertionError("something is wrong")


def test_it_answers_with_the_key_it_announces(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/health", timeout=30).json()["status"] == "ok"
    assert httpx.get(f"{server.url}/v1/threads", timeout=30).status_code == 401
    assert isinstance(threads(server), list)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_comes_back_on_the_same_port_with_what_it_had(server: ServerProcess, end: str) -> None:
    create(server, f"t-{end}")
    url = server.url
    getattr(server, end)()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", timeout=30)
    server.start()
    assert server.url == url
    assert f"t-{end}" in threads(server)


def test_starting_twice_is_a_mistake(server: ServerProcess) -> None:
    with pytest.raises(RuntimeError, match="started already"):
        server.start()


def test_it_logs_to_a_file(server: ServerProcess) -> None:
    # A request is logged after it is answered, so it may take another answer until the line is there.
    assert any(
        httpx.get(f"{server.url}/nowhere", timeout=30).status_code and "/nowhere" in server.read_log()
        for _ in range(100)
    )


def test_a_second_server_on_the_same_home_fails_and_says_why(server: ServerProcess, tmp_path: Path) -> None:
    second = ServerProcess(server.home, log=tmp_path / "second.log")
    with pytest.raises(ServerFailed, match="a server already runs on"), second:
        pass


def test_one_that_dies_by_itself_is_noticed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.start()
    os.kill(server.pid, signal.SIGSEGV)
    with pytest.raises(httpx.TransportError):
        ask_until_it_fails(server)
    with pytest.raises(ServerFailed, match="SIGSEGV"):
        server.close()


def test_a_failing_test_shows_the_log(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home", auth=False)
    with pytest.raises(AssertionError) as failure, server:
        fail_after_asking(server)
    assert "/nowhere" in "".join(failure.value.__notes__)


async def test_async_code_can_use_it(tmp_path: Path) -> None:
    async with ServerProcess(tmp_path / "home", auth=False) as server, httpx.AsyncClient() as http:
        assert server.api_key is None
        assert (await http.get(f"{server.url}/v1/threads", timeout=30)).json()["threads"] == []
