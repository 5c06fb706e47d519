"""Prompts of a session over the hub: one OpenCode server for all of them, and runs on the thread as ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.sessions.hub.world import HubWorld, a_hub_world, until

from holdfast.testing.model.gates import Gate
from holdfast.testing.model.steps import bash, held, text, write

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


def test_a_session_sleeps_with_its_server_and_wakes_with_what_was_said(world: HubWorld) -> None:
    session = world.session()
    first = world.prompt(
        session.id, "sleepy work", [write("b.txt", "two\n"), text("Done."), bash("cat b.txt"), text("Read.")]
    )
    assert world.ended(session.id, first) == "completed"
    assert world.client.sessions.hibernate(session.id).state == "hibernated"
    second = world.client.sessions.prompt(session.id, "And now?")
    assert world.ended(session.id, second) == "completed", world.server.read_log()[-4000:]
    assert "two" in world.entries(session.id, "opencode.tool")[-1]["result"]
    assert [each["session"] for each in world.entries(session.id, "signal.run.provisioned")] == ["new", "continued"]
    one, other = (each["process"] for each in world.entries(session.id, "signal.run.runner"))
    assert one != other


def test_a_prompt_that_steers_aborts_the_turn_and_not_the_server(world: HubWorld) -> None:
    session = world.session()
    gate = Gate("start")
    slow = world.prompt(session.id, "slow work", [held(text("never said"), gate), text("Better.")])
    gate.wait_reached()
    steering = world.client.sessions.prompt(session.id, "Stop, this is better.", mode="steer")
    assert world.ended(session.id, steering) == "completed", world.server.read_log()[-4000:]
    gate.release()
    prompts = {each.id: each.status for each in world.client.sessions.prompts(session.id)}
    assert prompts == {slow.id: "cancelled", steering.id: "completed"}
    assert len({each["process"] for each in world.entries(session.id, "signal.run.runner")}) == 1
    assert world.entries(session.id, "signal.session.runner_health") == []


def test_what_happens_while_the_server_is_dead_is_told_to_the_next_one_in_order_and_once(world: HubWorld) -> None:
    session = world.session()
    steps = [bash("echo before; sleep 3.1415; echo after"), text("All of these words, and each of them once.")]
    prompt = world.prompt(session.id, "long work", steps)
    until(lambda: running(b"sleep\x003.1415\x00"))
    world.server.kill()
    until(lambda: not running(b"sleep\x003.1415\x00"))
    world.server.start()
    assert world.ended(session.id, prompt) == "completed", world.server.read_log()[-4000:]
    [tool] = world.entries(session.id, "opencode.tool")
    assert tool["result"] == "before\nafter\n"
    said = world.entries(session.id, "opencode.assistant")[-1]
    assert said["text"] == "All of these words, and each of them once."
    live = world.client.thread(session.id).entries(types="opencode.delta", live=True)
    assert "".join(each.payload["text"] for each in live if each.payload["message"] == said["message"]) == said["text"]
    assert [each["status"] for each in world.entries(session.id, "signal.run.finished")] == ["completed"]
    ids = [each.id for each in world.client.thread(session.id).entries(live=True)]
    assert len(ids) == len(set(ids))


def running(words: bytes) -> list[int]:
    """The processes of this machine with these arguments."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                if (each / "cmdline").read_bytes() == words:
                    found.append(int(each.name))
    return found
