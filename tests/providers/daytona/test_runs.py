"""An agent at work in a box at Daytona: the real pi, the vendor's SDK; only the model and the cloud are ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agents import InstalledAgents

from holdfast.api.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text, write
from holdfast.testing.server import ServerProcess

SECRET = "sk-the-real-key"
BOX = {"provider": "daytona"}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=SECRET) as model:
        yield model


@pytest.fixture
def client(
    daytona_server: ServerProcess, installed_agents: InstalledAgents, model: ScriptedModel, tmp_path: Path
) -> Iterator[SyncClient]:
    """A client of a second server. To it, the first one is the cloud."""
    home = tmp_path / "home"
    installed_agents.share_with(home)
    settings = {
        "daytona_api_key": daytona_server.api_key,
        "daytona_api_url": f"{daytona_server.url}/compat/daytona",
        "daytona_target": "local",
    }
    with (
        ServerProcess(home, provider_settings=settings) as server,
        SyncClient(server.url, api_key=server.api_key) as client,
    ):
        client.models.add("scripted", apis=[Api.ANTHROPIC], base_url=model.url, model="scripted", key=SECRET)
        yield client
        for box in client.boxes.list():
            client.boxes.delete(box.id)


def results(client: SyncClient, thread: str) -> list[Any]:
    """What came of the agent's tool calls."""
    return [entry.payload["result"] for entry in client.thread(thread).entries(types="pi.tool")]


def sandboxes(server: ServerProcess) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    answer = httpx.get(f"{server.url}/compat/daytona/sandbox", headers=headers, timeout=30, trust_env=False)
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


@pytest.mark.sampled
def test_pi_works_at_daytona_and_goes_on_after_its_box_was_stopped(
    client: SyncClient, daytona_server: ServerProcess, model: ScriptedModel, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    model.script([write("b.txt", "two\n"), bash("cat a.txt b.txt; pwd; env"), text("Both files are there.")])
    launched = client.runs.launch(
        "put a second file beside the first",
        agent="pi", model="scripted", workspace=client.runs.upload(project), box=BOX,
    )  # fmt: skip
    first = client.runs.wait(launched.run)
    assert first.status == "completed", first.error
    assert (first.provider, first.session) == ("daytona", "new")
    printed = results(client, launched.thread)[-1]
    assert printed.startswith("one\ntwo\n/workspace\n")
    assert [(each.path, each.how) for each in client.runs.changes(launched.thread).files] == [("b.txt", "added")]

    # No key is in the box, and a stopped box goes on with its files and pi's own session.
    [sandbox] = sandboxes(daytona_server)
    assert sandbox["state"] == "started"
    assert SECRET not in printed
    assert SECRET not in str(sandbox)
    assert first.box is not None
    client.boxes.stop(first.box)
    assert [each["state"] for each in sandboxes(daytona_server)] == ["stopped"]
    model.script([bash("ls"), text("Nothing more to do.")])
    second = client.runs.wait(client.runs.resume(launched.thread, "anything else?").run)
    assert (second.status, second.box, second.session) == ("completed", first.box, "continued"), second.error
    assert results(client, launched.thread)[-1] == "a.txt\nb.txt\n"
    assert [each["state"] for each in sandboxes(daytona_server)] == ["started"]
