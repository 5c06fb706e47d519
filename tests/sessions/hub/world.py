"""A real server, real local boxes and the real OpenCode, whose prompts go over the hub. Only the model is scripted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.agents import InstalledAgents
from tests.runs.faulting import marked

from holdfast.api.model.models import Api
from holdfast.api.session.sessions import PromptInfo, SessionInfo
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel
from holdfast.testing.server import ServerProcess

PATIENCE: Final = 300.0


class HubWorld:
    """A prompt contains a marker, by which the model knows which script to follow."""

    def __init__(self, server: ServerProcess, model: ScriptedModel, client: SyncClient, key: str) -> None:
        self.key = key
        self.server = server
        self.model = model
        self.client = client

    def session(self, **more: Any) -> SessionInfo:
        made = self.client.sessions.create(agent="opencode", model="scripted", **more)
        running = self.client.sessions.wait(made.id)
        assert running.state == "running", running
        return running

    def prompt(self, id: str, marker: str, steps: list[Any], **more: Any) -> PromptInfo:
        """The steps are those of the whole conversation."""
        self.model.script(steps, when=marker)
        return self.client.sessions.prompt(id, f"Please do the {marker}.", **more)

    def ended(self, id: str, prompt: PromptInfo) -> str:
        return str(self.client.sessions.wait_for_prompt(id, prompt.id).status)

    def entries(self, id: str, kind: str) -> list[dict[str, Any]]:
        return [entry.payload for entry in self.client.thread(id).entries(types=kind)]

    def runner_of(self, id: str) -> str:
        """The process of the session's runner, by its last run."""
        return str(self.entries(id, "signal.run.runner")[-1]["process"])


def processes(session: str, word: bytes) -> list[int]:
    """Processes of the session's runner, and of what it started, with a word in their command."""
    found = []
    for pid in marked(f"HOLDFAST_SESSION={session}".encode()):
        with suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def until(holds: Callable[[], Any], what: object = "") -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.05)
    return found


@contextmanager
def a_hub_world(folder: Path, agents: InstalledAgents, **settings: Any) -> Iterator[HubWorld]:
    home = folder / "home"
    agents.install("opencode")
    agents.share_with(home)
    with ScriptedModel() as model, ServerProcess(home, **settings) as server:
        with SyncClient(server.url, api_key=server.api_key) as first:
            key = first.keys.create("tests").secret  # the server's own key changes when it is restarted
        with SyncClient(server.url, api_key=key) as client:
            client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.url, model="scripted", key="sk-x")
            yield HubWorld(server, model, client, key)
            for box in client.boxes.list():
                client.boxes.delete(box.id)
