"""Agents at work in boxes at Docker: the real pi, in real containers, with nothing simulated but the model."""

from __future__ import annotations

import io
import secrets
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.providers.docker.engine import BUSYBOX_IMAGE, DockerEngine, python_files

from holdfast.api.box.spec import BoxSpec
from holdfast.api.ids import new_id
from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.harnesses import registry
from holdfast.providers.docker import DockerHost, DockerProvider
from holdfast.testing.model import ScriptedModel, bash, text, write
from holdfast.testing.server import ServerProcess

SECRET = "sk-the-real-key"
IMAGE = "holdfast-test/agents:1"
"""What an image of a distribution has: a shell, commands, and the libraries that node needs. No node."""
BOX = {"provider": "docker", "image": IMAGE}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=SECRET) as model:
        yield model


@pytest.fixture
def client(
    engine: DockerEngine, installed_agents: InstalledAgents, model: ScriptedModel, tmp_path: Path
) -> Iterator[SyncClient]:
    home = tmp_path / "home"
    engine.import_image(IMAGE, python_files([installed_agents.install("pi").node]))
    installed_agents.share_with(home)
    with (
        ServerProcess(home, provider_settings={"docker_host": engine.url}) as server,
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
def test_pi_works_in_a_container_and_goes_on_in_another_one(
    client: SyncClient, model: ScriptedModel, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    model.script([write("b.txt", "two\n"), bash("cat a.txt b.txt; pwd"), text("Both files are there.")])
    launched = client.runs.launch(
        "put a second file beside the first",
        agent="pi", model="scripted", workspace=client.runs.upload(project), box=BOX, checkpoints="off",
    )  # fmt: skip
    thread = launched.thread
    first = client.runs.wait(launched.run)
    assert first.status == "completed", first.error
    assert (first.provider, first.session) == ("docker", "new")
    assert results(client, thread)[-1] == "one\ntwo\n/workspace\n"
    assert [(each.path, each.how) for each in client.runs.changes(thread).files] == [("b.txt", "added")]

    # The same container, and pi's own session in it.
    model.script([text("Nothing more to do.")])
    second = client.runs.wait(client.runs.resume(thread, "anything else?").run)
    assert (second.status, second.box, second.session) == ("completed", first.box, "continued")

    # Another container, in which nothing is left of the first: pi is told all of it from the thread.
    assert first.box is not None
    client.boxes.delete(first.box)
    model.script([bash("ls"), text("I go on from there.")])
    third = client.runs.wait(client.runs.resume(thread, "go on").run)
    assert third.status == "completed", third.error
    assert third.box not in (None, first.box)
    assert (third.session, third.files) == ("rebuilt", "workspace")
    asked = model.main_requests[-2]  # before it has used a tool again
    assert asked.user_texts[:2] == ["put a second file beside the first", "anything else?"]
    assert asked.assistant_texts == ["Both files are there.", "Nothing more to do."]
    assert [call.name for call in asked.calls] == ["write", "bash"]
    assert not asked.open_calls
    assert asked.saw("/workspace")
    assert results(client, thread)[-1] == "a.txt\n"


@pytest.mark.sampled
def test_turns_in_containers_are_forked_and_rewound_where_checkpoints_are_asked_for(
    client: SyncClient, model: ScriptedModel
) -> None:
    model.script([bash("echo 1 > state"), text("One.")])
    launched = client.runs.launch("one", agent="pi", model="scripted", box=BOX, checkpoints="every seconds=600")
    thread = launched.thread
    assert client.runs.wait(launched.run).status == "completed"
    model.script([bash("echo 2 > state; echo more > second"), text("Two.")])
    assert client.runs.wait(client.runs.resume(thread, "two").run).status == "completed"

    model.script([bash("cat state; ls"), text("As it was.")])
    sizes = [each.size for each in client.forks.turns(thread)]
    forked = client.forks.fork(thread, 1, prompt="look")
    assert forked.run is not None
    assert client.runs.wait(forked.run).status == "completed"
    assert results(client, forked.thread)[-1] == "1\nstate\n"
    assert model.main_requests[-1].user_texts == ["one", "look"]

    assert client.forks.rewind(thread, 1).turn == 1
    model.script([bash("cat state; ls"), text("Back.")])
    assert client.runs.wait(client.runs.resume(thread, "look").run).status == "completed"
    assert results(client, thread)[-1] == "1\nstate\n"

    assert sizes[0] is not None
    assert sizes[0] < 20 << 20, "without the agent, which has many times that"


@pytest.mark.sampled
def test_turns_in_containers_are_saved_unless_they_are_told_not_to_be(client: SyncClient, model: ScriptedModel) -> None:
    model.script([text("One.")])
    saved = client.runs.launch("one", agent="pi", model="scripted", box=BOX)
    assert client.runs.wait(saved.run).status == "completed"
    model.script([bash("head -c 20M /dev/urandom > large"), text("Two.")])
    large = client.runs.launch("two", agent="pi", model="scripted", box=BOX, checkpoints="every size=10M")
    assert client.runs.wait(large.run).status == "completed"
    model.script([text("Three."), text("Four.")])
    for each in (saved, large):  # each waits for the checkpoint of the turn before
        assert client.runs.wait(client.runs.resume(each.thread, "on").run).status == "completed"
    kinds = ("signal.thread.checkpoint", "signal.thread.checkpoint_skipped")
    [entry] = client.thread(saved.thread).entries(types=kinds, limit=1)
    # A machine under load may need longer than the policy allows.
    assert entry.type == kinds[0] or "took longer" in entry.payload["why"]
    skipped = next(iter(client.thread(large.thread).entries(types="signal.thread.checkpoint_skipped")))
    assert "more than 10 MB" in skipped.payload["why"]


@pytest.mark.sampled
def test_a_snapshot_that_takes_too_long_keeps_no_run_from_its_box(client: SyncClient, model: ScriptedModel) -> None:
    model.script([bash("head -c 300M /dev/urandom > large"), text("One.")])
    launched = client.runs.launch("one", agent="pi", model="scripted", box=BOX, checkpoints="every seconds=1")
    assert client.runs.wait(launched.run).status == "completed"
    model.script([text("Two.")])
    again = client.runs.wait(client.runs.resume(launched.thread, "two").run)
    assert again.status == "completed", again.error
    skipped = list(client.thread(launched.thread).entries(types="signal.thread.checkpoint_skipped"))
    assert "took longer than 1 s" in skipped[0].payload["why"]


_IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, "/tmp/runner")
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.mark.anyio
async def test_the_runner_of_every_agent_finds_its_modules_in_an_image_without_python(engine: DockerEngine) -> None:
    async with DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4)) as provider:
        box = await provider.create(BoxSpec(provider="docker", image=BUSYBOX_IMAGE), id=new_id("b"))
        try:
            for name in (*registry.names(), *registry.kinds()):
                archive = registry.find(name).archive()
                await box.files.write("/tmp/runner", archive)
                packed = zipfile.ZipFile(io.BytesIO(archive)).namelist()
                modules = [each[:-3].replace("/", ".") for each in packed if each.endswith(".py")]
                assert "holdfast.guest.runner.main" in modules
                done = await box.exec([*await box.python(), "-I", "-S", "-B", "-c", _IMPORT_ALL, *modules])
                assert done.ok, (name, done.stderr.decode())
        finally:
            await provider.remove(box.id)
