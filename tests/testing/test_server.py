"""The server that tests use starts, stops, dies and comes back like any other, on the same home and port."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider
from holdfast.server.config import Settings
from holdfast.testing.server import ServerFailed, ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "home") as server:
        yield server


def threads(server: ServerProcess) -> list[str]:
    headers = {"authorization": f"Bearer {server.api_key}"}
    listed = httpx.get(f"{server.url}/v1/threads", headers=headers, timeout=240).raise_for_status().json()
    return [thread["id"] for thread in listed["threads"]]


def create(server: ServerProcess, id: str) -> None:
    headers = {"authorization": f"Bearer {server.api_key}"}
    httpx.post(f"{server.url}/v1/threads", json={"id": id}, headers=headers, timeout=240).raise_for_status()


def ask_until_it_fails(server: ServerProcess) -> None:
    while True:
        httpx.get(f"{server.url}/health", timeout=240)


def fail_after_asking(server: ServerProcess) -> None:
    httpx.get(f"{server.url}/nowhere", timeout=240)
    raise AssertionError("something is wrong")


def test_it_answers_with_the_key_it_announces(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/health", timeout=240).json()["status"] == "ok"
    assert httpx.get(f"{server.url}/v1/threads", timeout=240).status_code == 401
    assert isinstance(threads(server), list)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_comes_back_on_the_same_port_with_what_it_had(server: ServerProcess, end: str) -> None:
    create(server, f"t-{end}")
    url = server.url
    getattr(server, end)()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", timeout=240)
    server.start()
    assert server.url == url
    assert f"t-{end}" in threads(server)


def test_starting_twice_is_a_mistake(server: ServerProcess) -> None:
    with pytest.raises(RuntimeError, match="already running"):
        server.start()


def test_it_logs_to_a_file(server: ServerProcess) -> None:
    # A request is logged after it is answered, so it may take another answer until the line is there.
    assert any(
        httpx.get(f"{server.url}/nowhere", timeout=240).status_code and "/nowhere" in server.read_log()
        for _ in range(100)
    )


def test_a_second_server_on_the_same_home_fails_and_says_why(server: ServerProcess, tmp_path: Path) -> None:
    second = ServerProcess(server.home, log=tmp_path / "second.log")
    with pytest.raises(ServerFailed, match="a server is already running on"), second:
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
        assert (await http.get(f"{server.url}/v1/threads", timeout=240)).json()["threads"] == []


async def told_where_it_runs(settings: Settings, egress: Egress) -> Mapping[str, Provider]:
    (settings.home / "told").write_text(f"{os.environ['TOLD']} in {Path.cwd()}")
    return {}


@pytest.mark.parametrize("told", ["once", "again"])
def test_it_has_the_folder_and_the_environment_of_its_start(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", told)
    monkeypatch.chdir(tmp_path)
    with ServerProcess(tmp_path / "home", auth=False, providers=told_where_it_runs) as server:
        httpx.get(f"{server.url}/v1/boxes", timeout=240)  # which waits for the providers
        assert (server.home / "told").read_text() == f"{told} in {tmp_path}"


def test_servers_run_side_by_side_each_with_a_log_of_its_own(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "one", auth=False) as one, ServerProcess(tmp_path / "two", auth=False) as two:
        one.kill()
        assert httpx.get(f"{two.url}/health", timeout=240).status_code == 200
        one.start()
        assert one.pid != two.pid
        assert one.url not in two.read_log()


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    starting = (
        "import sys, time; from pathlib import Path; from holdfast.testing.server import ServerProcess\n"
        "server = ServerProcess(Path(sys.argv[1])); server.start(); print(server.pid, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-P", "-c", starting, str(tmp_path / "home")], stdout=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        server = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    assert select.select([server], [], [], 30)[0]
    os.close(server)
