"""A thread whose box is moved from provider to provider and back, with a run before, between and after.

The real pi, real boxes and containers, the vendors' SDKs: only the model and the clouds are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.providers.docker.engine import DockerEngine, python_files
from tests.runs.clouds import AGENTS, add_agents, take_agents_snapshot

from holdfast.api.errors.boxes import BoxConflict, Unsupported
from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.modal import ModalCloudThread
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.server import ServerProcess

SECRET = "sk-the-real-key"
IMAGE = "holdfast-test/agents:1"
CLOUDS = ("daytona", "modal")

FILL = """
mkdir -p src deep/er && echo 'echo hello' > src/run.sh && chmod 750 src/run.sh && : > empty && chmod 400 empty
ln -s src/run.sh link; ln -s /nowhere broken; ln src/run.sh hard; printf '\\000\\377' > 'odd name'
chmod 700 deep/er; touch -d @1000000000 src/run.sh empty deep/er
touch -h -d @1100000000 link; touch -d @1200000000 deep
"""
LIST = """
find . -name '.*' -prune -o -printf '%P %y %m %l %n %T@\\n' | sed 's/\\.[0-9]*$//' | sort
find . -type f | sort | while read -r each; do sha256sum "$each"; done
"""


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=SECRET) as model:
        yield model


@pytest.fixture
def cloud(
    request: pytest.FixtureRequest, installed_agents: InstalledAgents, tmp_path: Path
) -> Iterator[dict[str, Any]]:
    """The settings of a provider whose cloud is here. Its machines have the agents: copying them is not tested here."""
    folder = tmp_path / request.param
    installed_agents.share_with(folder)
    with ExitStack() as stack:
        if request.param == "daytona":
            daytona = stack.enter_context(ServerProcess(folder, daytona=True))
            asyncio.run(take_agents_snapshot(daytona))
            yield {
                "daytona_api_key": daytona.api_key,
                "daytona_api_url": f"{daytona.url}/compat/daytona",
                "daytona_target": "local",
                "daytona_image": AGENTS,
            }
        else:
            modal = stack.enter_context(ModalCloudThread(folder, prepare=add_agents)).cloud
            yield {
                "modal_server_url": modal.url,
                "modal_token_id": modal.token_id,
                "modal_token_secret": modal.token_secret,
            }


@pytest.fixture
def client(
    engine: DockerEngine,
    installed_agents: InstalledAgents,
    model: ScriptedModel,
    cloud: dict[str, Any],
    tmp_path: Path,
) -> Iterator[SyncClient]:
    home = tmp_path / "home"
    engine.import_image(IMAGE, python_files([installed_agents.install("pi").node]))
    installed_agents.share_with(home)
    settings = {**cloud, "docker_host": engine.url, "docker_image": IMAGE}
    with (
        ServerProcess(home, provider_settings=settings) as server,
        SyncClient(server.url, api_key=server.api_key) as client,
    ):
        client.models.add("scripted", apis=[Api.ANTHROPIC], base_url=model.url, model="scripted", key=SECRET)
        yield client
        for box in client.boxes.list():
            client.boxes.delete(box.id)


def listing(client: SyncClient, id: str) -> str:
    """Everything in the workspace: kinds, modes, links, times in seconds, contents."""
    with client.boxes.open(id) as box:
        done = box.exec(["sh", "-c", LIST])
        assert done.ok, done.stderr
        return done.text


def results(client: SyncClient, thread: str) -> list[Any]:
    return [entry.payload["result"] for entry in client.thread(thread).entries(types="pi.tool")]


@pytest.mark.sampled(share=1 / len(CLOUDS))
@pytest.mark.parametrize(("cloud", "name"), [(each, each) for each in CLOUDS], indirect=["cloud"], ids=CLOUDS)
def test_a_thread_goes_on_from_provider_to_provider_and_back(
    client: SyncClient, model: ScriptedModel, name: str
) -> None:
    way = ("local", "docker", name, "local")
    model.script([bash(FILL.strip()), text("It is filled.")])
    launched = client.runs.launch("fill it", agent="pi", model="scripted", box={"provider": way[0]})
    thread, run = launched.thread, client.runs.wait(launched.run)
    assert run.status == "completed", run.error
    asked, said = ["fill it"], ["It is filled."]
    for number, provider in enumerate(way[1:]):
        assert run.box is not None
        before = listing(client, run.box)
        prompt, answer = f"go on at {provider}", f"This is {provider}."
        model.script([bash("cat src/run.sh && pwd"), text(answer)])
        if number % 2:  # by itself, and then a resume that names no provider
            moved = client.boxes.move(run.box, provider)
            assert (moved.box.provider, moved.box.key, moved.moved_from) == (provider, f"thread/{thread}", run.box)
            assert listing(client, moved.box.id) == before
            resumed = client.runs.resume(thread, prompt)
        else:
            resumed = client.runs.resume(thread, prompt, provider=provider)
        old, run = run, client.runs.wait(resumed.run)
        assert run.status == "completed", run.error
        assert (run.provider, run.files, run.session) == (provider, "kept", "rebuilt")
        assert run.box not in (None, old.box)
        assert run.box is not None
        assert listing(client, run.box) == before
        assert results(client, thread)[-1] == "echo hello\n/workspace\n"
        # The model gets every turn once, whatever machine it was in.
        request = model.main_requests[-2]
        assert [each.rpartition("]\n\n")[2] for each in request.user_texts] == [*asked, prompt]
        assert request.assistant_texts == said
        assert not request.open_calls
        asked.append(prompt)
        said.append(answer)
    assert [(box.provider, box.owner.thread) for box in client.boxes.list()] == [(way[-1], thread)]

    # What the target cannot do is refused before anything is done.
    assert run.box is not None
    with pytest.raises(Unsupported, match="there is no provider nowhere"):
        client.runs.resume(thread, provider="nowhere")
    with client.boxes.open(run.box) as box:
        box.spawn(["sleep", "600"])
    entries = [entry.id for entry in client.thread(thread).entries()]
    with pytest.raises(BoxConflict, match="a process runs in box"):
        client.runs.resume(thread, provider="docker")
    assert [entry.id for entry in client.thread(thread).entries()] == entries
    assert client.boxes.move(run.box, "docker", stop=True).box.provider == "docker"
