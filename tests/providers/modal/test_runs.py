"""An agent at work in a box at Modal: the real pi, the vendor's SDK; only the model and the cloud are ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.providers.cloud_runs import SECRET, client_of_cloud, first_turn, results

from holdfast.client import SyncClient
from holdfast.testing.modal import ModalCloudThread
from holdfast.testing.model import ScriptedModel, bash, text


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=SECRET) as model:
        yield model


@pytest.fixture
def thread(tmp_path: Path) -> Iterator[ModalCloudThread]:
    with ModalCloudThread(tmp_path / "cloud") as thread:
        yield thread


@pytest.fixture
def client(
    thread: ModalCloudThread, installed_agents: InstalledAgents, model: ScriptedModel, tmp_path: Path
) -> Iterator[SyncClient]:
    settings = {
        "modal_server_url": thread.cloud.url,
        "modal_token_id": thread.cloud.token_id,
        "modal_token_secret": thread.cloud.token_secret,
    }
    with client_of_cloud(tmp_path / "home", installed_agents, model, settings) as client:
        yield client


@pytest.mark.sampled
def test_pi_works_at_modal_and_goes_on_after_its_box_was_stopped(
    client: SyncClient, thread: ModalCloudThread, model: ScriptedModel, tmp_path: Path
) -> None:
    work, first = first_turn(client, model, "modal", tmp_path)

    # No sandbox is left of a stopped box. It goes on in another one, with its files and pi's own session.
    assert first.box is not None
    [sandbox] = thread.cloud.running
    assert SECRET not in str(sandbox.definition)
    client.boxes.stop(first.box)
    assert thread.cloud.running == []
    model.script([bash("ls"), text("Nothing more to do.")])
    second = client.runs.wait(client.runs.resume(work, "anything else?").run)
    assert (second.status, second.box, second.session) == ("completed", first.box, "continued"), second.error
    assert results(client, work)[-1] == "a.txt\nb.txt\n"
    assert len(thread.cloud.running) == 1
