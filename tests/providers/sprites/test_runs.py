"""An agent at work in a sprite: the real pi and a real server. Only the cloud and the model are simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.providers.cloud_runs import SECRET, client_of_cloud, first_turn

from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.sprites import SpritesCounterpart


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=SECRET) as model:
        yield model


@pytest.fixture
def client(
    counterpart: SpritesCounterpart, installed_agents: InstalledAgents, model: ScriptedModel, tmp_path: Path
) -> Iterator[SyncClient]:
    settings = {"sprites_token": counterpart.token, "sprites_url": counterpart.url}
    with client_of_cloud(tmp_path / "home", installed_agents, model, settings) as client:
        yield client


@pytest.mark.sampled
def test_pi_works_in_a_sprite_through_a_cut_and_goes_on_there(
    client: SyncClient, model: ScriptedModel, counterpart: SpritesCounterpart, tmp_path: Path
) -> None:
    thread, first = first_turn(client, model, "sprites", tmp_path)

    # The same sprite, and pi's own session in it. The stream breaks while the agent works.
    asked = len(model.main_requests)
    model.script([bash("sleep 2; echo on"), text("Nothing more to do.")])
    resumed = client.runs.resume(thread, "anything else?")
    while len(model.main_requests) == asked:
        time.sleep(0.05)
    counterpart.faults.cut()
    second = client.runs.wait(resumed.run)
    assert counterpart.faults.pending == 0
    assert (second.status, second.box, second.session) == ("completed", first.box, "continued"), second.error
