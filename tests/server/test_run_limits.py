"""Runs whose box ran into one of its limits: which it was is said, and how to go on. A real server, box and agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.machine import needs_groups

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.server import ServerProcess

MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[ServerProcess]:
    home: Path = tmp_path_factory.mktemp("limits") / "home"
    installed_agents.install("pi")
    installed_agents.share_with(home)
    with ServerProcess(home) as server:
        yield server
        with SyncClient(server.url, api_key=server.api_key) as client:
            for box in client.boxes.list():
                client.boxes.delete(box.id)


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def client(running: ServerProcess, model: ScriptedModel) -> Iterator[SyncClient]:
    with SyncClient(running.url, api_key=running.api_key) as client:
        client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted")
        yield client


def test_a_run_that_filled_its_disk_says_so_and_goes_on_with_more(
    running: ServerProcess, client: SyncClient, model: ScriptedModel
) -> None:
    # Each file is within the limit: it is their sum that is not.
    fill = "for n in 1 2 3 4 5 6 7 8; do head -c 9000000 /dev/zero > big$n; done; sleep 600"
    model.script([bash(fill), text("Never said.")])
    thread = client.runs.launch("fill it", agent="pi", model="scripted", box={"disk": 40 * MEGABYTE}).thread
    run = client.runs.wait(thread)
    assert run.status == "orphaned"
    assert run.error is not None
    assert run.error.code == "disk_limit"
    assert "ended by its disk limit: it holds " in run.error.message
    assert "its limit is 41.9 MB (41943040 bytes)" in run.error.message
    assert run.error.hint == f"give it more: holdfast resume {thread} --disk SIZE; its files are kept"
    found = client.runs.diagnose(thread)
    assert found.wrong is not None
    assert found.wrong.startswith("disk limit: it holds ")
    assert found.next_step == run.error.hint
    # What is over its limit and does not grow may be worked in: to make room, say.
    assert run.box is not None
    with client.boxes.open(run.box) as box:
        left = box.exec(["sh", "-c", "sleep 3; ls | wc -l"]).stdout.strip()
    assert int(left) > 4
    assert running.read_log().count(f"the processes of box {run.box} are ended") == 1

    model.script([bash("ls | wc -l"), text("There is room.")])
    client.runs.resume(thread, "go on", disk=400 * MEGABYTE)
    assert client.runs.wait(thread).status == "completed"
    assert model.main_requests[-1].results[-1].text.split()[-1].encode() == left


@needs_groups
def test_an_agent_that_was_killed_for_its_memory_is_told_from_others(client: SyncClient, model: ScriptedModel) -> None:
    model.script([text("Never said.")])
    thread = client.runs.launch("think", agent="pi", model="scripted", box={"memory": 48 * MEGABYTE}).thread
    run = client.runs.wait(thread)
    assert run.status in ("failed", "orphaned")  # the kernel chooses whom it kills: the agent, or its runner
    assert run.error is not None
    assert run.error.code == "memory_limit"
    assert "the box ran out of memory" in run.error.message
    assert "its limit is 48 MB" in run.error.message
    assert run.error.hint == f"give it more: holdfast resume {thread} --memory SIZE; its files are kept"
    found = client.runs.diagnose(thread)
    assert found.wrong is not None
    assert found.wrong.startswith("memory limit: the box ran out of memory")
    assert "its limit is 48 MB" in found.wrong
    assert found.next_step == f"give it more: holdfast resume {thread} --memory SIZE; its files are kept"
    client.runs.resume(thread, "go on", memory=1024 * MEGABYTE)
    assert client.runs.wait(thread).status == "completed"
