"""The host of OpenCode in a session, without its server: what it tells the hub meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.guest.session_runner.mailbox import Mailbox
from holdfast.harnesses.opencode.host import Host

PROMPT = {
    "messageId": "r-1",
    "content": "do it",
    "turn": {"run": "r-1", "epoch": 2, "thread": "t", "agent": "opencode"},
}
Said = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def said() -> Said:
    return []


@pytest.fixture
def host(tmp_path: Path, said: Said) -> Host:
    """Its server never starts."""
    config = {"folder": str(tmp_path), "file": str(tmp_path / "opencode.json"), "configuration": {}, "program": "-"}
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    return Host(Mailbox(), lambda type, fields: said.append((type, fields)), {**config, "env": env})


def test_a_prompt_that_waits_for_the_server_is_told_so_that_its_run_counts_as_alive(host: Host, said: Said) -> None:
    host.take("prompt", PROMPT)
    [(type, status)] = said
    assert (type, status["status"], status["turns"]) == ("agentStatus", "thinking", ["r-1"])
    host.take("prompt", PROMPT)
    assert [each["turns"] for _, each in said] == [["r-1"]] * 2, "it came twice, and waits once"


def test_an_aborted_prompt_that_waited_ends_once(host: Host, said: Said) -> None:
    host.take("prompt", PROMPT)
    host.take("abort", {})
    ends = [fields for type, fields in said if type == "message.finalize"]
    assert [(each["turnId"], each["reason"]) for each in ends] == [("r-1", "canceled")]
    host.take("prompt", PROMPT)
    assert [type for type, _ in said].count("message.finalize") == 1
