"""The fault matrix of prompts over the hub: who is killed, and when. Each prompt ends once, and the session goes on.

A server, a runner, OpenCode or a box is killed while the model is asked, while it speaks, while a tool runs, between
two prompts, or while the session falls asleep or wakes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest
from tests.agents import InstalledAgents
from tests.runs.faulting import guest_of
from tests.sessions.hub.world import HubWorld, a_hub_world, processes, until

from holdfast.api.errors import HoldfastError
from holdfast.api.session.sessions import SessionInfo
from holdfast.testing.model.gates import Gate
from holdfast.testing.model.steps import bash, held, text

pytestmark = [pytest.mark.xdist_group("hub"), pytest.mark.agent, pytest.mark.box, pytest.mark.slow]
WORDS = "I have looked into every corner of it, twice, and that is all there is."
markers = count(1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[HubWorld]:
    with a_hub_world(tmp_path_factory.mktemp("faults"), installed_agents) as world:
        yield world


def kill_server(world: HubWorld, session: str) -> None:
    world.server.kill()
    world.server.start()


def kill_runner(world: HubWorld, session: str) -> None:
    for pid in processes(session, b"session_runner"):
        os.kill(pid, signal.SIGKILL)


def kill_opencode(world: HubWorld, session: str) -> None:
    for pid in processes(session, b"serve\0--hostname"):
        os.kill(pid, signal.SIGKILL)


def kill_box(world: HubWorld, session: str) -> None:
    found = processes(session, b"session_runner")
    if found:
        os.kill(guest_of(found[0]), signal.SIGKILL)


def stop_runner(world: HubWorld, session: str) -> None:
    """Nothing goes through to the hub for a moment: a cut of the network."""
    os.kill(world.server.pid, signal.SIGSTOP)
    threading.Timer(1.0, lambda: os.kill(world.server.pid, signal.SIGCONT)).start()


FAULTS: dict[str, Callable[[HubWorld, str], None]] = {
    "server": kill_server,
    "runner": kill_runner,
    "opencode": kill_opencode,
    "box": kill_box,
    "network": stop_runner,
}


def check(world: HubWorld, session: SessionInfo, prompts: int) -> None:
    """Each prompt has one end, each run has one, and no entry is there twice."""
    found = world.client.sessions.prompts(session.id)
    assert len(found) == prompts
    assert all(each.status in ("completed", "failed", "cancelled") for each in found)
    runs = [each["run"] for each in world.entries(session.id, "signal.run.started")]
    ends = [each["run"] for each in world.entries(session.id, "signal.run.finished")]
    assert sorted(runs) == sorted(ends)
    entries = list(world.client.thread(session.id).entries(live=True))
    assert len({each.id for each in entries}) == len(entries)
    live: dict[str, str] = {}
    for each in entries:
        if each.type == "opencode.delta":
            live[each.payload["message"]] = live.get(each.payload["message"], "") + each.payload.get("text", "")
    for each in entries:
        if each.type == "opencode.assistant" and each.payload["message"] in live:
            assert live[each.payload["message"]] == each.payload["text"], "no word is lost or doubled"
    assert world.entries(session.id, "signal.session.message_refused") == []


@pytest.mark.parametrize("moment", ["asked", "speaking", "tool", "between"])
@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.sampled(share=0.1)
def test_whoever_is_killed_each_prompt_ends_once_and_the_next_one_is_answered(
    world: HubWorld, fault: str, moment: str
) -> None:
    session, marker = world.session(), f"faulty work {next(markers)}"
    gate = Gate("start" if moment == "asked" else 4)
    first = bash("echo here; sleep 1.5; echo there") if moment == "tool" else held(text(WORDS), gate)
    if moment == "between":
        first = text(WORDS)
    prompt = world.prompt(session.id, marker, [first, *(text(f"More {each}.") for each in range(6))])
    if moment == "tool":
        until(lambda: world.entries(session.id, "opencode.call"))
    elif moment == "between":
        assert world.ended(session.id, prompt) == "completed"
    else:
        gate.wait_reached()
    FAULTS[fault](world, session.id)
    gate.release()
    ended = world.ended(session.id, prompt)
    assert ended == ("failed" if (fault, moment) in AGENT_FAILED else "completed"), world.entries(
        session.id, "signal.run.finished"
    )
    second = world.client.sessions.prompt(session.id, f"Once more: {marker}.")
    assert world.ended(session.id, second) == "completed", world.entries(session.id, "signal.run.finished")
    check(world, session, 2)
    world.client.sessions.terminate(session.id)


AGENT_FAILED = {("opencode", moment) for moment in ("asked", "speaking", "tool")}
"""An agent that ends by itself has failed, and is not asked again."""


@pytest.mark.parametrize("step", ["hibernate", "restore"])
@pytest.mark.parametrize("fault", ["server", "runner", "box"])
@pytest.mark.sampled(share=0.17)
def test_a_session_that_is_struck_while_it_sleeps_or_wakes_answers_its_next_prompt(
    world: HubWorld, fault: str, step: str
) -> None:
    session, marker = world.session(), f"sleepy work {next(markers)}"
    prompt = world.prompt(session.id, marker, [text(WORDS), *(text(f"More {each}.") for each in range(4))])
    assert world.ended(session.id, prompt) == "completed"

    def change() -> None:
        with suppress(HoldfastError, OSError):  # whoever asked has no answer
            getattr(world.client.sessions, step)(session.id)

    if step == "restore":
        world.client.sessions.hibernate(session.id)
    asking = threading.Thread(target=change)
    asking.start()
    with suppress(ProcessLookupError):
        FAULTS[fault](world, session.id)
    asking.join()
    second = world.client.sessions.prompt(session.id, f"Once more: {marker}.")
    ended = world.ended(session.id, second)
    found = world.client.sessions.get(session.id)
    assert ended == "completed" or (found.state == "terminated" and fault == "box"), found
    check(world, session, 2)
    world.client.sessions.terminate(session.id)
