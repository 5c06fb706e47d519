"""A server for the tests of a module, and what it is to have: a model, and in the end none of their boxes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.agents import InstalledAgents

from holdfast import SyncClient
from holdfast.api.model.models import Api
from holdfast.testing.model import ScriptedModel
from holdfast.testing.server import ServerProcess


@contextmanager
def serving(home: Path, **options: Any) -> Iterator[ServerProcess]:
    with ServerProcess(home, **options) as server:
        yield server
        with SyncClient(server.url, api_key=server.api_key) as client:
            for each in client.boxes.list():
                client.boxes.delete(each.id)


@contextmanager
def serving_agents(home: Path, installed: InstalledAgents, *agents: str, **options: Any) -> Iterator[ServerProcess]:
    """A server with these agents, which are not installed again."""
    for agent in agents:
        installed.install(agent)
    installed.share_with(home)
    with serving(home, **options) as server:
        yield server


def add_models(client: SyncClient, model: ScriptedModel, key: str | None = None) -> None:
    """Add a scripted model under a name for each API: `chat`, `responses` and `anthropic`."""
    for name, api in (("chat", Api.OPENAI_CHAT), ("responses", Api.OPENAI_RESPONSES), ("anthropic", Api.ANTHROPIC)):
        base_url = model.url if api is Api.ANTHROPIC else model.openai_url
        client.models.add(name, apis=[api], base_url=base_url, model="scripted", key=key)


@contextmanager
def with_model(server: ServerProcess, name: str = "mine") -> Iterator[ScriptedModel]:
    """One that the server knows by that name, for as long as this lasts."""
    with ScriptedModel() as model, SyncClient(server.url, api_key=server.api_key) as client:
        client.models.add(name, apis=[Api.OPENAI_CHAT], base_url=model.url, model="scripted")
        yield model
        client.models.remove(name)
