"""The fault matrix of prompts over the hub: who is killed, and when. Each prompt ends once, and the session goes on.

A server (with its hub and its gateway), a runner, OpenCode or a box is killed, or the connection of the runner is held
up or cut: at each step of a prompt, between two prompts, and while the session falls asleep or wakes.
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
from tests.sessions.hub.sockets import shut_connections
from tests.sessions.hub.world import PATIENCE, HubWorld, a_hub_world, processes, until

from holdfast.api.errors import HoldfastError
from holdfast.api.session.sessions import PromptInfo, SessionInfo
from holdfast.testing.model.gates import Gate, Point
from holdfast.testing.model.steps import Step, bash, held, text

pytestmark = [pytest.mark.xdist_group("hub"), pytest.mark.agent, pytest.mark.box, pytest.mark.slow]
WORDS = "I have looked into every corner of it, twice, and that is all there is."
GUEST_API_PORT = 3128
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


def cut_runner(world: HubWorld, session: str) -> None:
    """The connection of the runner to the hub is gone at once, for both. It connects again after a second."""
    for pid in processes(session, b"session_runner"):
        shut_connections(pid, lambda port: port == GUEST_API_PORT)


def cut_events(world: HubWorld, session: str) -> None:
    """The connections of the runner to OpenCode are gone: it has to ask what has happened meanwhile."""
    for pid in processes(session, b"session_runner"):
        shut_connections(pid, lambda port: port != GUEST_API_PORT)


FAULTS: dict[str, Callable[[HubWorld, str], None]] = {
    "server": kill_server,
    "runner": kill_runner,
    "opencode": kill_opencode,
    "box": kill_box,
    "network": stop_runner,
    "cut": cut_runner,
    "events": cut_events,
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


class Work:
    """A prompt that is about to be struck: what the model says to it, and when that is held up."""

    def __init__(self, world: HubWorld, marker: str) -> None:
        self.world = world
        self.marker = marker
        self.gate: Gate | None = None
        self.session = world.session()
        self.prompt: PromptInfo | None = None

    def begin(self, first: Step) -> PromptInfo:
        more = (text(f"More {each}.") for each in range(6))
        self.prompt = self.world.prompt(self.session.id, self.marker, [first, *more])
        return self.prompt

    def held(self, where: Point) -> Gate:
        self.gate = Gate(where)
        self.begin(held(text(WORDS), self.gate))
        return self.gate

    def entry(self, kind: str) -> None:
        until(lambda: self.world.entries(self.session.id, kind), self.world.server.read_log)


def queued(work: Work) -> None:
    """It is on disk, and nothing else has happened."""
    work.begin(text(WORDS))


def claimed(work: Work) -> None:
    """Its run has begun, and the runner does not know of it."""
    work.begin(text(WORDS))
    work.entry("signal.run.started")


def created(work: Work) -> None:
    """OpenCode has a session for it."""
    work.held("start")
    work.entry("opencode.session")


def asked(work: Work) -> None:
    work.held("start").wait_reached(PATIENCE)


def speaking(work: Work) -> None:
    work.held(4).wait_reached(PATIENCE)


def tool(work: Work) -> None:
    work.begin(bash("echo here; sleep 1.5; echo there"))
    work.entry("opencode.call")


def finalizing(work: Work) -> None:
    """All was said, and its end is on its way."""
    work.held("end").wait_reached(PATIENCE)


def checkpointing(work: Work) -> None:
    """It has ended, and its files are being saved."""
    work.begin(text(WORDS))
    work.entry("signal.run.finished")


def between(work: Work) -> None:
    assert work.world.ended(work.session.id, work.begin(text(WORDS))) == "completed"
    work.entry("signal.thread.checkpoint")


MOMENTS = {
    each.__name__: each
    for each in (queued, claimed, created, asked, speaking, tool, finalizing, checkpointing, between)
}


@pytest.mark.parametrize("moment", list(MOMENTS))
@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.sampled(share=0.07)
def test_whoever_is_killed_each_prompt_ends_once_and_the_next_one_is_answered(
    world: HubWorld, fault: str, moment: str
) -> None:
    work = Work(world, f"faulty work {next(markers)}")
    session = work.session
    MOMENTS[moment](work)
    assert work.prompt is not None
    FAULTS[fault](world, session.id)
    if work.gate is not None:
        work.gate.release()
    ended = world.ended(session.id, work.prompt)
    # An agent that ends by itself has failed, and is not asked again. Before and after its turn it is only restarted.
    expected = {"failed"} if (fault, moment) in AGENT_FAILED else {"completed"}
    if (fault, moment) in AGENT_MAY_FAIL:
        expected = {"completed", "failed"}
    assert ended in expected, [each.get("error") for each in world.entries(session.id, "signal.run.finished")]
    second = world.client.sessions.prompt(session.id, f"Once more: {work.marker}.")
    assert world.ended(session.id, second) == "completed", world.entries(session.id, "signal.run.finished")
    check(world, session, 2)
    world.client.sessions.terminate(session.id)


AGENT_FAILED = {("opencode", moment) for moment in ("created", "asked", "speaking", "tool")}
AGENT_MAY_FAIL = {
    *(("opencode", moment) for moment in ("claimed", "finalizing")),
    # The request with which OpenCode gets the prompt may be cut, too. It may have arrived, so it is not repeated.
    *(("events", moment) for moment in ("queued", "claimed", "created")),
    # A launch whose box dies under it has failed.
    *(("box", moment) for moment in ("queued", "claimed")),
}


@pytest.mark.parametrize("step", ["hibernate", "restore"])
@pytest.mark.parametrize("fault", ["server", "runner", "opencode", "box", "cut"])
@pytest.mark.sampled(share=0.1)
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
