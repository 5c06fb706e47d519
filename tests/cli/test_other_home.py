"""Work goes on in another home: a backup that is restored there, and a thread that is exported and imported.

The real agent is told each turn once, in order, and knows which files it has. The first home is gone by then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.server import ServerProcess

pytestmark = [
    pytest.mark.box, pytest.mark.agent, pytest.mark.slow, pytest.mark.xdist_group("runs of the command line"),
]  # fmt: skip


@dataclass
class World:
    folder: Path
    model: ScriptedModel
    home: Path
    server: ServerProcess
    thread: str = ""
    fork: str = ""
    exported: str = ""

    def run(self, *arguments: str, home: Path | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "holdfast", *arguments],
            env={**os.environ, "HOLDFAST_HOME": str(home or self.home), "COLUMNS": "100"},
            cwd=self.folder / "project",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def told(self, prompt: str, *command: str) -> list[str]:
        """Run a command, and return what the model was told in its first request: who spoke, and the text."""
        begin = len(self.model.main_requests)
        self.run(*command)
        request = self.model.main_requests[begin]
        said = [(getattr(turn, "role", ""), getattr(turn, "text", "")) for turn in request.turns]
        texts = [words for role, words in said if role in ("user", "assistant") and words]
        assert texts[-1].endswith(prompt)
        return texts


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[World]:
    """Two turns, and a fork after the first; all of it in a home that was restored from a backup."""
    folder = tmp_path_factory.mktemp("other-home")
    (folder / "project").mkdir()
    (folder / "project" / "begin.txt").write_text("begin\n")
    first, second = folder / "first", folder / "second"
    installed_agents.install("pi")
    installed_agents.share_with(first)
    with ScriptedModel() as model:
        with ServerProcess(first) as server, SyncClient(server.url, api_key=server.api_key) as client:
            client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted")
            world = World(folder, model, first, server)
            model.script([bash("echo 1 > state"), text("One.")])
            world.thread = json.loads(world.run("run", "First.", "--agent", "pi", "--json").splitlines()[-1])["thread"]
            model.script([bash("echo 2 > state"), text("Two.")])
            world.run("resume", world.thread, "Second.")
            world.fork = json.loads(world.run("fork", f"{world.thread}@1", "--json"))["forks"][0]["thread"]
            world.run("backup", str(folder / "backup"))
            world.exported = world.run("export", world.thread)
            for box in client.boxes.list():
                client.boxes.delete(box.id)
        world.run("restore", str(folder / "backup"), home=second)
        installed_agents.share_with(second)
        world.home = second
        with ServerProcess(second) as server, SyncClient(server.url, api_key=server.api_key) as client:
            world.server = server
            yield world
            for box in client.boxes.list():
                client.boxes.delete(box.id)


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_fork_goes_on_after_a_backup_was_restored(world: World) -> None:
    world.model.script([bash("cat state; cat begin.txt"), text("Otherwise.")])
    told = world.told("Otherwise?", "resume", world.fork, "Otherwise?")
    assert told[:2] == ["First.", "One."]
    assert len(told) == 3
    # Checkpoints are not part of a backup: the agent has the files of the beginning, and is told.
    assert "changes that were made since then are lost" in told[2]
    said = entries(world.run("export", world.fork))
    assert [each["payload"]["text"] for each in said if each["payload"]["type"] == "pi.assistant"][-1] == "Otherwise."
    (result,) = [each["payload"] for each in said if each["payload"]["type"] == "pi.tool"][-1:]
    assert "begin" in result["result"]
    (lineage,) = [each["payload"] for each in said if each["payload"]["type"] == "signal.thread.forked"]
    assert (lineage["from"], lineage["turn"]) == (world.thread, 1)


def test_an_exported_thread_goes_on_in_another_home(world: World) -> None:
    file = world.folder / "thread.jsonl"
    file.write_text(world.exported)
    told = json.loads(world.run("import", str(file), "--json"))
    assert told["agent"] == "holdfast"
    new = told["thread"]
    assert new not in (world.thread, world.fork)
    before, after = entries(world.exported), entries(world.run("export", new))
    spoken = [each for each in before if not each["payload"]["type"].startswith("signal.")]
    for each in spoken:
        each["payload"].pop("seal", None)
    assert [each for each in after if not each["payload"]["type"].startswith("signal.")] == spoken
    (origin,) = [each["payload"] for each in after if each["payload"]["type"] == "signal.thread.imported"]
    assert (origin["from"], origin["entries"]) == (world.thread, told["entries"])

    world.model.script([bash("ls"), text("Three.")])
    heard = world.told("Third.", "resume", new, "Third.")
    assert heard[:4] == ["First.", "One.", "Second.", "Two."]
    assert len(heard) == 5
    assert "on another machine" in heard[4]
    turns = json.loads(world.run("thread", "turns", new, "--json"))["turns"]
    assert [(each["turn"], each["agent"], each["status"]) for each in turns] == [
        (number, "pi", "completed") for number in (1, 2, 3)
    ]
    again = entries(world.run("export", new))
    assert len([each for each in again if each["payload"]["type"] == "signal.run.started"]) == 3
