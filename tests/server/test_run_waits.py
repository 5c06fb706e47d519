"""What a live run waits for is in its diagnosis, with the command that ends it. A real server, box and OpenCode."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.serving import serving

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.model import ScriptedModel, bash, text


def test_a_run_that_waits_for_a_pipe_that_is_held_open_says_so(
    tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents
) -> None:
    home: Path = tmp_path_factory.mktemp("waits") / "home"
    installed_agents.install("opencode")
    installed_agents.share_with(home)
    with serving(home) as server, ScriptedModel() as model, SyncClient(server.url, api_key=server.api_key) as client:
        client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted")
        model.script([bash("sleep 1000 & echo begun"), text("Done.")])
        thread = client.runs.launch("begin", agent="opencode", model="scripted").thread
        with client.thread(thread).tail() as tail:
            types = iter(entry.type for entry in tail)
            assert next(each for each in types if each in ("opencode.notice", "signal.run.finished")) != (
                "signal.run.finished"
            )
        found = client.runs.diagnose(thread)
        [notice] = [each for each in found.findings if each.stage == "notice"]
        assert re.search(r"waits for its output, which is held open by process \d+ \(sleep 1000\)", notice.detail)
        assert (notice.ok, found.wrong, found.next_step) == (None, None, notice.next_step)
        # What to do next can be done.
        told = re.fullmatch(r"to end it: holdfast box exec (\S+) -- (kill \d+)", str(found.next_step))
        assert told is not None, found.next_step
        with client.boxes.open(told[1]) as box:
            box.exec(told[2].split())
        assert client.runs.wait(thread).status == "completed"
        assert [each for each in client.runs.diagnose(thread).findings if each.stage == "notice"] == []
