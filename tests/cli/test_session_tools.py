"""`holdfast session tools` and `call`, `holdfast inbox` and `holdfast workflow`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.cli.test_sessions import model

__all__ = ["model"]
pytestmark = pytest.mark.box


@pytest.fixture
def session(cli: Cli, model: str) -> Iterator[str]:
    made = cli("session", "new", "--agent", "pi", "--model", model, "--empty", "--tools", "memory,mailbox", "--json")
    assert made.exit == 0, made.err
    id = str(made.json()["id"])
    yield id
    cli("session", "terminate", id, "--yes")


def test_tools_are_listed_and_called(cli: Cli, session: str) -> None:
    listed = cli("session", "tools", "memory", "--json").json()["tools"]
    assert [each["name"] for each in listed] == ["memory_read", "memory_write", "memory_delete"]
    assert "memory_read" in cli("session", "tools").out
    cli("session", "call", session, "memory_write", "content=the build needs node 24", "category=fact")
    found = cli("session", "call", session, "memory_read", "query=build", "limit=5").json()["memories"]
    assert [each["content"] for each in found] == ["the build needs node 24"]
    assert cli("session", "call", session, "memory_read", "query").exit != 0
    assert "no tool" in cli("session", "call", session, "nothing").err
    assert "no group of tools" in cli("session", "new", "--agent", "pi", "--tools", "odd").err


def test_a_message_of_a_session_is_shown_and_answered(cli: Cli, session: str) -> None:
    assert "no messages" in cli("inbox", "list", "--to", "grace").out
    given = json.dumps({"toHandle": "@grace", "content": "Which \x1b[31mport?", "messageType": "question"})
    # In the name of the session, as a person: such a message has nobody to answer to.
    sent = cli("session", "call", session, "send_notification", "--input", given).json()["messageId"]
    assert sent in cli("inbox", "list", "--to", "grace").out
    shown = cli("inbox", "show", sent)
    assert "port?" in shown.out
    assert "\x1b[31mport" not in shown.out
    assert "nobody waits" in cli("inbox", "reply", sent, "8080").err
    assert cli("inbox", "list", "--to", "grace", "--json").json()["messages"] == []
    assert cli("inbox", "delete", sent).exit == 0
    assert cli("inbox", "show", sent).exit != 0


def test_a_workflow_is_made_run_and_approved(cli: Cli, session: str, tmp_path: Path) -> None:
    file = tmp_path / "flow.json"
    steps = [{"id": "gate", "type": "approval", "prompt": "Go on with {{variables.what}}?", "notify": "@flo"}]
    file.write_text(json.dumps({"name": "A flow", "variables": {"what": "x"}, "steps": steps}))
    assert "a-flow" in cli("workflow", "sync", session, str(file)).out
    started = cli("workflow", "run", session, "a-flow", "what=it", "--wait", "--json").json()
    assert (started["status"], started["requiresApproval"]["prompt"]) == ("needs_approval", "Go on with it?")
    assert "resumeToken" not in json.dumps(started)
    assert "Go on with it?" in cli("workflow", "show", started["id"]).out
    (asked,) = cli("inbox", "list", "--to", "flo", "--json").json()["messages"]
    shown = cli("inbox", "show", asked["id"])
    assert f"holdfast workflow approve {started['id']}" in shown.err
    assert "inbox reply" not in shown.err
    assert started["id"] in cli("workflow", "list", session).out
    assert cli("workflow", "approve", started["id"], "--reason", "fine").exit == 0
    assert "waits for no approval" in cli("workflow", "approve", started["id"]).err
    other = cli("workflow", "run", session, "a-flow", "--json").json()
    assert "cancelled" in cli("workflow", "cancel", other["id"], "--reason", "enough").out
    for command in (("show", "e-nope"), ("run", session, "nope")):
        assert "list them: holdfast workflow list SESSION" in cli("workflow", *command).err
    for text, why in (("[]", "it is not an object"), ("{}", "it has no name"), ("{", "it is not JSON")):
        file.write_text(text)
        assert f"cannot read a workflow from {file}: {why}" in " ".join(
            cli("workflow", "sync", session, str(file)).err.split()
        )
    file.unlink()
    missing = cli("workflow", "sync", session, str(file)).err
    assert "no such file" in missing.lower()
    assert "Errno" not in missing
