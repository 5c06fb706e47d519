"""The first run of an agent on a machine: whoever follows it sees that the agent is being installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harnesses.npm_world import Registry, script_agent

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.server import ServerProcess

_AGENT = """
from holdfast.harnesses.harness import Package
from tests.harnesses.scripted_agent import Scripted


class Packed(Scripted):
    package = Package("tiny-agent", "1.2.3", "tiny")
"""
_FINDER = """
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), {checkout!r}]


def find(name):
    from packed_agent import Packed

    return Packed()
"""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    with Registry() as registry:
        monkeypatch.setenv("npm_config_registry", registry.url)
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
        yield registry


@pytest.fixture
def server(registry: Registry, tmp_path: Path) -> Iterator[ServerProcess]:
    """On a home where nothing was installed yet, with an agent that npm brings from the registry."""
    script_agent(tmp_path / "packed_agent", registry)
    (tmp_path / "packed_agent" / "__init__.py").write_text(_AGENT)
    (tmp_path / "finder.py").write_text(_FINDER.format(checkout=str(Path(__file__).parents[2])))
    spec = importlib.util.spec_from_file_location("finder", tmp_path / "finder.py")
    assert spec is not None
    assert spec.loader is not None
    finder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(finder)
    with (
        ServerProcess(tmp_path / "home", agents=finder.find) as server,
        SyncClient(server.url, api_key=server.api_key) as client,
    ):
        client.models.add("none", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:1/v1", model="none")
        yield server
        for box in client.boxes.list():
            client.boxes.delete(box.id)


def installing(client: SyncClient, thread: str) -> list[dict[str, Any]]:
    return [entry.payload for entry in client.thread(thread).entries(types="signal.run.installing")]


def test_who_follows_the_first_run_sees_what_is_installed(server: ServerProcess, registry: Registry) -> None:
    registry.release.clear()
    with SyncClient(server.url, api_key=server.api_key) as client:
        thread = client.runs.launch('{"words": 1}', agent="scripted").thread
        for entry in client.thread(thread).tail():
            if entry.payload.get("what") == "scripted 1.2.3":
                break
        # That it begins is on the thread while npm still waits for the package.
        assert "ms" not in entry.payload
        assert list(client.thread(thread).entries(types="signal.run.provisioned")) == []
        registry.release.set()
        assert client.runs.wait(thread).status == "completed"
        told = installing(client, thread)
        assert [(each["what"], "ms" in each) for each in told] == [
            ("node", False), ("node", True), ("scripted 1.2.3", False), ("scripted 1.2.3", True),
        ]  # fmt: skip
        # Once per machine.
        second = client.runs.launch('{"words": 1}', agent="scripted").thread
        assert client.runs.wait(second).status == "completed"
        assert installing(client, second) == []
    assert registry.downloads == 1


def test_the_command_says_it_too(server: ServerProcess) -> None:
    command = [sys.executable, "-P", "-m", "holdfast", "run", '{"words": 1}', "--agent", "scripted", "--empty"]
    done = subprocess.run(
        [*command, "--home", str(server.home)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "  installing   scripted 1.2.3\n" in done.stdout
    assert "  installed    scripted 1.2.3  " in done.stdout


def test_an_agent_that_cannot_be_installed_ends_the_run_with_why(server: ServerProcess, registry: Registry) -> None:
    registry.status = 404
    with SyncClient(server.url, api_key=server.api_key) as client:
        launched = client.runs.launch('{"words": 1}', agent="scripted")
        run = client.runs.wait(launched.run)
        assert run.status == "failed"
        assert run.error is not None
        assert run.error.code == "agent_not_installed"
        # What was begun is told, and that it was done is not.
        assert [(each["what"], "ms" in each) for each in installing(client, launched.thread)][-1] == (
            "scripted 1.2.3",
            False,
        )
