"""An agent at work in a box at Daytona: the real pi, the vendor's SDK; only the model and the cloud are ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agents import InstalledAgents
from tests.providers.cloud_runs import SECRET, client_of_cloud, first_turn, results

from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.server import ServerProcess


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=SECRET) as model:
        yield model


@pytest.fixture
def client(
    daytona_server: ServerProcess, installed_agents: InstalledAgents, model: ScriptedModel, tmp_path: Path
) -> Iterator[SyncClient]:
    """A client of a second server. To it, the first one is the cloud."""
    settings = {
        "daytona_api_key": daytona_server.api_key,
        "daytona_api_url": f"{daytona_server.url}/compat/daytona",
        "daytona_target": "local",
    }
    with client_of_cloud(tmp_path / "home", installed_agents, model, settings) as client:
        yield client


def sandboxes(server: ServerProcess) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    answer = httpx.get(f"{server.url}/compat/daytona/sandbox", headers=headers, timeout=240, trust_env=False)
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


@pytest.mark.sampled
def test_pi_works_at_daytona_and_goes_on_after_its_box_was_stopped(
    client: SyncClient, daytona_server: ServerProcess, model: ScriptedModel, tmp_path: Path
) -> None:
    thread, first = first_turn(client, model, "daytona", tmp_path)

    # No key is in the box, and a stopped box goes on with its files and pi's own session.
    [sandbox] = sandboxes(daytona_server)
    assert sandbox["state"] == "started"
    assert SECRET not in str(sandbox)
    assert first.box is not None
    client.boxes.stop(first.box)
    assert [each["state"] for each in sandboxes(daytona_server)] == ["stopped"]
    model.script([bash("ls"), text("Nothing more to do.")])
    second = client.runs.wait(client.runs.resume(thread, "anything else?").run)
    assert (second.status, second.box, second.session) == ("completed", first.box, "continued"), second.error
    assert results(client, thread)[-1] == "a.txt\nb.txt\n"
    assert [each["state"] for each in sandboxes(daytona_server)] == ["started"]
