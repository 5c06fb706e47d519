"""An agent at work in a sprite: the real pi and a real server. Only the cloud and the model are simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents import InstalledAgents

from holdfast.api.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text, write
from holdfast.testing.server import ServerProcess
from holdfast.testing.sprites import SpritesCounterpart

SECRET = "sk-the-real-key"
BOX = {"provider": "sprites"}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=SECRET) as model:
        yield model


@pytest.fixture
def server(
    counterpart: SpritesCounterpart, installed_agents: InstalledAgents, tmp_path: Path
) -> Iterator[ServerProcess]:
    home = tmp_path / "home"
    installed_agents.install("pi")
    installed_agents.share_with(home)
    settings = {"sprites_token": counterpart.token, "sprites_url": counterpart.url}
    with ServerProcess(home, provider_settings=settings) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess, model: ScriptedModel) -> Iterator[SyncClient]:
    with SyncClient(server.url, api_key=server.api_key) as client:
        client.models.add("scripted", apis=[Api.ANTHROPIC], base_url=model.url, model="scripted", key=SECRET)
        yield client
        for box in client.boxes.list():
            client.boxes.delete(box.id)


@pytest.mark.sampled
def test_pi_works_in_a_sprite_through_a_cut_and_goes_on_there(
    client: SyncClient, model: ScriptedModel, counterpart: SpritesCounterpart, tmp_path: Path
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
    assert (first.provider, first.session) == ("sprites", "new")
    results = [entry.payload["result"] for entry in client.thread(launched.thread).entries(types="pi.tool")]
    assert results[-1].startswith("one\ntwo\n/workspace\n")
    assert SECRET not in results[-1]
    assert [(each.path, each.how) for each in client.runs.changes(launched.thread).files] == [("b.txt", "added")]

    # The same sprite, and pi's own session in it. The stream breaks while the agent works.
    asked = len(model.main_requests)
    model.script([bash("sleep 2; echo on"), text("Nothing more to do.")])
    resumed = client.runs.resume(launched.thread, "anything else?")
    while len(model.main_requests) == asked:
        time.sleep(0.05)
    counterpart.faults.cut()
    second = client.runs.wait(resumed.run)
    assert counterpart.faults.pending == 0
    assert (second.status, second.box, second.session) == ("completed", first.box, "continued"), second.error
