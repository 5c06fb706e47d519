"""`holdfast session`, from its creation to its end: a real server and a real box. The agent and the model are real in
tests/server/test_sessions.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Outcome

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.box


@pytest.fixture
def model(server: ServerProcess) -> Iterator[str]:
    """A model that is never asked. Other tests of this server count on the models that they add."""
    with SyncClient(server.url, api_key=server.api_key) as client:
        client.models.add("idle", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:9", model="m")
        yield "idle"
        client.models.remove("idle")


def test_a_session_is_created_sleeps_wakes_and_ends(cli: Cli, model: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    new = cli("session", "new", "--agent", "pi", "--model", model, "--dir", str(tmp_path), "--title", "mine", "--json")
    assert new.exit == 0, new.err
    made = new.json()
    assert (made["state"], made["title"], made["jointState"]) == ("running", "mine", "standby")
    id = made["id"]
    assert cli("box", "exec", f"thread/{id}", "--", "cat", "a.txt").out == "one\n"
    assert id in cli("session", "list").out
    assert cli("session", "list", "--state", "running", "-q").out.split().count(id) == 1
    assert id not in cli("session", "list", "--state", "error", "-q").out
    assert id in cli("session", "list", "--state", "standby", "-q").out
    assert id not in cli("session", "list", "--state", "queued", "-q").out
    idle = cli("session", "abort", id)
    assert (idle.exit, "nothing to abort" in idle.out) == (0, True)
    for ending in ("terminate", "delete"):
        unasked = cli("session", ending, id)
        assert (unasked.exit, f"holdfast session {ending} {id} --yes" in unasked.err) == (2, True)
    slept = cli("session", "hibernate", id)
    assert slept.exit == 0, slept.err
    assert "hibernated" in slept.out
    assert cli("session", "restore", id[:-1], "--json").json()["state"] == "running"
    shown = cli("session", "status", id)
    assert "pi, idle/m" in shown.out
    assert "0 waiting, 0 at work, 0 ended" in shown.out
    refused = cli("session", "delete", id, "--yes")
    assert refused.exit == 6
    assert "terminate it first" in refused.err
    behind = cli("steer", id, "behind its back")
    assert behind.exit == 6
    assert f"holdfast session prompt {id}" in behind.err
    assert cli("session", "terminate", id, "--yes").exit == 0
    late = cli("session", "prompt", id, "too late")
    assert (late.exit, "cannot take prompts" in late.err) == (6, True)
    deleted = cli("session", "delete", id, "--yes")
    assert deleted.exit == 0, deleted.err
    assert "freed" in deleted.out
    assert cli("session", "status", id, "--json").json()["workspace"] is False


def test_what_is_missing_is_said_with_what_to_do(cli: Cli) -> None:
    nobody = cli("session", "new", "--empty")
    assert (nobody.exit, "holdfast session new --agent NAME" in nobody.err) == (2, True)
    nowhere = cli("session", "status", "t-nowhere")
    assert nowhere.exit == 3
    assert "there is no session t-nowhere" in nowhere.err
    assert "holdfast session list" in nowhere.err
    thread = cli("thread", "new", "no session", "--json").json()["id"]
    other = cli("session", "prompt", thread, "x")
    assert (other.exit, "there is no session" in other.err) == (3, True)
    assert cli("session", "prompt", thread, "x", "--mode", "loud").exit == 2


def until_shown(cli: Cli, text: str, *command: str) -> Outcome:
    """Programs take a moment to start. Returns what is shown when this is a part of it."""
    last = time.monotonic() + 240
    while text not in (shown := cli(*command)).out:
        assert time.monotonic() < last, shown.out + shown.err
    return shown


def test_a_session_is_diagnosed(cli: Cli, model: str, tmp_path: Path) -> None:
    (tmp_path / "10-reviewer.md").write_text("You review.\n")
    options = ("--agent", "pi", "--model", model, "--empty", "--context", str(tmp_path / "10-reviewer.md"))
    plain = cli("session", "new", *options).out.strip()
    shown = until_shown(cli, "context", "session", "diagnose", plain)
    assert [line.split()[:2] for line in shown.out.splitlines()[2:]] == [["box", "done"], ["context", "done"]]
    assert "next         holdfast session new --agent NAME --workstation" in shown.err
    models = cli("session", "models", plain)
    assert "only agents with a server have this: opencode" in models.err
    assert "a prompt starts it" not in models.err
    unknown = cli("session", "answer", plain, "q-nope", "yes")
    assert f"holdfast session questions {plain}" in unknown.err
    made = cli("session", "new", *options, "--workstation").out.strip()
    found = cli("session", "diagnose", made, "--json").json()
    assert found["workstation"] is True
    assert [each["name"] for each in found["steps"]][-1] == "editor"
    shown = until_shown(cli, "code-server is not in this box", "session", "diagnose", made, "--output")
    assert "holdfast image build workstation" in shown.err
    for id in (plain, made):
        assert cli("session", "terminate", id, "--yes").exit == 0
        assert "--workstation" not in cli("session", "diagnose", id).err
        cli("session", "delete", id, "--yes")
    unreadable = cli("session", "new", *options, "--context", str(tmp_path / "none.md"))
    assert (unreadable.exit, "cannot be read" in unreadable.err) == (2, True)
