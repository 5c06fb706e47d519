"""A real server with real boxes and pi, for tests of delegation. Only the model is scripted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.agents import InstalledAgents

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel
from holdfast.testing.model.requests import Request
from holdfast.testing.model.steps import Scripted, Step, tool
from holdfast.testing.server import ServerProcess

PATIENCE: Final = 240.0
ANSWER: Final = "The answer is forty-two, I looked it up."


class Delegating:
    """What tests of delegation need. Prompts contain a marker, by which the model knows which script to follow."""

    def __init__(self, server: ServerProcess, model: ScriptedModel, client: SyncClient) -> None:
        self.server = server
        self.model = model
        self.client = client

    def launch(self, marker: str, steps: list[Scripted], **more: Any) -> str:
        self.model.script(steps, when=marker)
        prompt = f"Please do the {marker}."
        return self.client.runs.launch(prompt, agent="pi", model="scripted", **more).thread

    def entries(self, thread: str, kind: str) -> list[dict[str, Any]]:
        return [entry.payload for entry in self.client.thread(thread).entries(types=kind)]

    def results(self, thread: str, task: str) -> list[dict[str, Any]]:
        return [each for each in self.entries(thread, "chat") if each.get("child") == task]

    def requests(self, marker: str) -> list[Request]:
        return [each for each in self.model.main_requests if each.script == marker]

    def until_entry(self, thread: str, kind: str) -> None:
        with self.client.thread(thread).tail() as tail:
            next(entry for entry in tail if entry.type == kind)

    def until_reported(self, task: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.client.tasks.get(task).reported:
            assert time.monotonic() < deadline, self.client.tasks.get(task)
            self.client.tasks.result(task)


def calls(name: str, **arguments: Any) -> Scripted:
    return tool(name, arguments)


def task_in(request: Request) -> str:
    """The id of the task that the last call has returned."""
    return str(re.findall(r"t-[0-9a-z]{10,}", request.results[-1].text)[0])


def asks_for_result(request: Request) -> Step:
    return tool("task_result", {"task": task_in(request), "wait": 45})


@contextmanager
def a_delegating_server(folder: Path, agents: InstalledAgents, **settings: Any) -> Iterator[Delegating]:
    home = folder / "home"
    agents.install("pi")
    agents.share_with(home)
    with ScriptedModel() as model, ServerProcess(home, **settings) as server:
        with SyncClient(server.url, api_key=server.api_key) as first:
            key = first.keys.create("tests").secret  # the server's own key changes when it is restarted
        with SyncClient(server.url, api_key=key) as client:
            client.models.add("scripted", apis=[Api.ANTHROPIC], base_url=model.url, model="scripted", key="sk-x")
            yield Delegating(server, model, client)
            for box in client.boxes.list():
                client.boxes.delete(box.id)
