"""An agent at work in a box at Modal: the real pi, the vendor's SDK; only the model and the cloud are ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents

from holdfast.api.models import Api
from holdfast.client import SyncClient
from holdfast.testing.modal import ModalCloudThread
from holdfast.testing.model import ScriptedModel, bash, text, write
from holdfast.testing.server import ServerProcess

SECRET = "sk-the-real-key"
BOX = {"provider": "modal"}


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
    home = tmp_path / "home"
    installed_agents.share_with(home)
    settings = {
        "modal_server_url": thread.cloud.url,
        "modal_token_id": thread.cloud.token_id,
        "modal_token_secret": thread.cloud.token_secret,
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


@pytest.mark.sampled
def test_pi_works_at_modal_and_goes_on_after_its_box_was_stopped(
    client: SyncClient, thread: ModalCloudThread, model: ScriptedModel, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    model.script([write("b.txt", "two\n"), bash("cat a.txt b.txt; pwd"), text("Both files are there.")])
    launched = client.runs.launch(
        "put a second file beside the first",
        agent="pi", model="scripted", workspace=client.runs.upload(project), box=BOX,
    )  # fmt: skip
    first = client.runs.wait(launched.run)
    assert first.status == "completed", first.error
    assert (first.provider, first.session) == ("modal", "new")
    assert results(client, launched.thread)[-1] == "one\ntwo\n/workspace\n"
    assert [(each.path, each.how) for each in client.runs.changes(launched.thread).files] == [("b.txt", "added")]

    # No sandbox is left of a stopped box. It goes on in another one, with its files and pi's own session.
    assert first.box is not None
    [sandbox] = thread.cloud.running
    assert SECRET not in str(sandbox.definition)
    client.boxes.stop(first.box)
    assert thread.cloud.running == []
    model.script([bash("ls"), text("Nothing more to do.")])
    second = client.runs.wait(client.runs.resume(launched.thread, "anything else?").run)
    assert (second.status, second.box, second.session) == ("completed", first.box, "continued"), second.error
    assert results(client, launched.thread)[-1] == "a.txt\nb.txt\n"
    assert len(thread.cloud.running) == 1
