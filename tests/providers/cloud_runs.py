"""The first turn of an agent in a box of a cloud, which is the same at each: the real pi puts a file beside another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.agents import InstalledAgents
from tests.serving import serving_agents

from holdfast.api.model.models import Api
from holdfast.api.run.info import RunInfo
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text, write

SECRET: Final = "sk-the-real-key"
"""The key of the model, which no box sees."""


@contextmanager
def client_of_cloud(
    home: Path, agents: InstalledAgents, model: ScriptedModel, settings: Mapping[str, Any]
) -> Iterator[SyncClient]:
    """A client of a server with pi, a model with `SECRET` as its key, and these settings of a provider."""
    with (
        serving_agents(home, agents, "pi", provider_settings=settings) as server,
        SyncClient(server.url, api_key=server.api_key) as client,
    ):
        client.models.add("scripted", apis=[Api.ANTHROPIC], base_url=model.url, model="scripted", key=SECRET)
        yield client


def first_turn(client: SyncClient, model: ScriptedModel, provider: str, folder: Path) -> tuple[str, RunInfo]:
    """Returns a thread whose agent has added a file to those of its user, and its run."""
    project = folder / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    model.script([write("b.txt", "two\n"), bash("cat a.txt b.txt; pwd; env"), text("Both files are there.")])
    launched = client.runs.launch(
        "put a second file beside the first",
        agent="pi", model="scripted", workspace=client.runs.upload(project), box={"provider": provider},
    )  # fmt: skip
    run = client.runs.wait(launched.run)
    assert run.status == "completed", run.error
    assert (run.provider, run.session) == (provider, "new")
    printed = results(client, launched.thread)[-1]
    assert printed.startswith("one\ntwo\n/workspace\n")
    assert SECRET not in printed
    assert [(each.path, each.how) for each in client.runs.changes(launched.thread).files] == [("b.txt", "added")]
    return launched.thread, run


def results(client: SyncClient, thread: str) -> list[Any]:
    """What came of the agent's tool calls."""
    return [entry.payload["result"] for entry in client.thread(thread).entries(types="pi.tool")]
