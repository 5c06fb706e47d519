"""Prompts of a session over the hub: one OpenCode server for all of them, and runs on the thread as ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.agents import InstalledAgents
from tests.sessions.hub.world import HubWorld, a_hub_world

from holdfast.testing.model.steps import bash, text

pytestmark = [pytest.mark.xdist_group("hub"), pytest.mark.agent, pytest.mark.box, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[HubWorld]:
    with a_hub_world(tmp_path_factory.mktemp("hub"), installed_agents) as world:
        yield world


def test_two_prompts_are_answered_by_one_server_and_are_runs_on_the_thread(world: HubWorld) -> None:
    session = world.session()
    steps = [bash("echo hi > a.txt; cat a.txt", text="Writing."), text("Done."), text("Still here.")]
    first = world.prompt(session.id, "first work", steps)
    assert world.ended(session.id, first) == "completed", world.server.read_log()[-4000:]
    second = world.client.sessions.prompt(session.id, "And now?")
    assert world.ended(session.id, second) == "completed", world.server.read_log()[-4000:]
    processes = [each["process"] for each in world.entries(session.id, "signal.run.runner")]
    assert len(processes) == 2
    assert len(set(processes)) == 1
    assert [each["session"] for each in world.entries(session.id, "signal.run.provisioned")] == ["new", "continued"]
    assert [each["text"] for each in world.entries(session.id, "opencode.assistant")] == [
        "Writing.", "Done.", "Still here.",
    ]  # fmt: skip
    [tool] = world.entries(session.id, "opencode.tool")
    assert (tool["result"], tool["status"]) == ("hi\n", "ok")
    ends = world.entries(session.id, "signal.run.finished")
    assert [(each["status"], each["by"]) for each in ends] == [("completed", "runner")] * 2
    assert world.entries(session.id, "signal.session.message_refused") == []
