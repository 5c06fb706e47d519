"""A server for the tests of a module, and what it is to have: a model, and in the end none of their boxes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import SyncClient
from holdfast.api.models import Api
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
def with_model(server: ServerProcess, name: str = "mine") -> Iterator[ScriptedModel]:
    """One that the server knows by that name, for as long as this lasts."""
    with ScriptedModel() as model, SyncClient(server.url, api_key=server.api_key) as client:
        client.models.add(name, apis=[Api.OPENAI_CHAT], base_url=model.url, model="scripted")
        yield model
        client.models.remove(name)
