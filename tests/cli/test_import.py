"""`holdfast import`: a session goes onto a thread, and the next run tells it to the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.cli.conftest import Cli

from holdfast.api.limits import MOST_BYTES
from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.server import ServerProcess

SESSION = "\n".join(
    json.dumps(line)
    for line in (
        {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/project"},
        {"type": "message", "id": "1", "parentId": None, "timestamp": "2026-01-01T00:00:00.000Z",
         "message": {"role": "user", "content": "What is in here?", "timestamp": 1}},
        {"type": "message", "id": "2", "parentId": "1", "timestamp": "2026-01-01T00:00:01.000Z",
         "message": {"role": "assistant", "content": [{"type": "text", "text": "A parser."}], "usage": {}, "api": "x",
                     "provider": "x", "model": "x", "stopReason": "stop", "timestamp": 2}},
    )
)  # fmt: skip


def test_a_session_is_imported_whole_or_not_at_all(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text(SESSION)
    outcome = cli("import", str(file), "--empty", "--json")
    told = outcome.json()
    assert told["agent"] == "pi"
    shown = cli("thread", "entries", told["thread"], "--json").lines()
    kinds = [entry["payload"]["type"] for entry in shown]
    assert kinds[-4:] == ["signal.run.started", "pi.user", "pi.assistant", "signal.run.finished"]
    assert cli("thread", "show", told["thread"], "--json").json()["title"] == "What is in here?"
    file.write_text("no session\n")
    outcome = cli("import", str(file), "--empty")
    assert outcome.exit == 2
    assert "is not a session file" in outcome.err
    outcome = cli("import", str(file), "--from", "pi", "--empty")
    assert "this is not a session file of pi: line 1 is not JSON" in outcome.err
    assert cli("import", "--from", "emacs").exit == 2


def test_a_session_that_is_too_large_for_one_request_is_uploaded_first(cli: Cli, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in SESSION.splitlines()]
    message = lines[-1]
    for number in range(3, 20):
        words = f'{number}: "quoted" ' + "x" * 1_000_000
        content = [{"type": "text", "text": words}]
        more = {"id": str(number), "parentId": str(number - 1), "message": {**message["message"], "content": content}}
        lines.append({**message, **more})
    file = tmp_path / "large.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert file.stat().st_size > MOST_BYTES, "more than one request may have"
    thread = cli("import", str(file), "--empty", "--json").json()["thread"]
    shown = cli("thread", "entries", thread, "--json").lines()
    said = [entry["payload"] for entry in shown if entry["payload"]["type"] == "pi.assistant"]
    assert len(said) == 18
    assert said[-1]["text"].startswith('19: "quoted" xxx')
    assert len(said[-1]["text"]) > 1_000_000


def test_the_latest_session_of_this_folder_is_found(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, home = tmp_path / "project", tmp_path / "me"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(home))
    outcome = cli("import", "--from", "pi", "--empty")
    assert outcome.exit == 3
    assert f"pi has no session of {project}" in outcome.err
    folder = home / ".pi" / "agent" / "sessions" / f"--{str(project).strip('/').replace('/', '-')}--"
    folder.mkdir(parents=True)
    for name, age in (("old.jsonl", 1000), ("new.jsonl", 2000)):
        (folder / name).write_text(SESSION)
        os.utime(folder / name, (age, age))
    assert cli("import", "--from", "pi", "--empty", "--json").json()["file"].endswith("new.jsonl")
    assert "opencode export" in cli("import", "--from", "opencode", "--empty").err


@pytest.mark.box
@pytest.mark.agent
def test_an_imported_session_goes_on_in_a_box_with_the_files(tmp_path: Path, installed_agents: InstalledAgents) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    installed_agents.install("pi")
    installed_agents.share_with(home)
    project.mkdir()
    (project / "parser.py").write_text("pass\n")
    (tmp_path / "session.jsonl").write_text(SESSION)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "holdfast", *arguments],
            env={**os.environ, "HOLDFAST_HOME": str(home)},
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with (
        ScriptedModel() as model,
        ServerProcess(home) as server,
        SyncClient(server.url, api_key=server.api_key) as client,
    ):
        client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted")
        model.script([bash("echo changed > parser.py"), text("Gone on.")])
        thread = run("import", str(tmp_path / "session.jsonl")).strip()
        run("resume", thread, "Go on.")
        request, _ = model.main_requests
        said = [getattr(turn, "text", "") for turn in request.turns if getattr(turn, "role", "") != "system"]
        assert said[:2] == ["What is in here?", "A parser."]
        assert len(said) == 3
        assert said[2].endswith("Go on.")
        assert "on another machine" in said[2]
        (box,) = client.boxes.list()
        with client.boxes.open(box.id) as opened:
            assert opened.files.read(f"{box.spec.workdir}/parser.py") == b"changed\n"
        run("apply", thread)  # to a folder without git
        assert (project / "parser.py").read_text() == "changed\n"
        client.boxes.delete(box.id)
