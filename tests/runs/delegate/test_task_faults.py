"""Whoever is killed at whichever step of delegation, the task starts once, ends once, and its parent is told once.

A real server is killed with SIGKILL when an entry appears, or the runner or the box of the task while its agent works.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents import InstalledAgents
from tests.runs.delegate.real import ANSWER, PATIENCE, Delegating, a_delegating_server
from tests.runs.faulting import guest_of, marked

from holdfast.api.errors import HoldfastError
from holdfast.runs.delegate.rules import task_id
from holdfast.testing.model.gates import Gate
from holdfast.testing.model.steps import held, text

pytestmark = pytest.mark.xdist_group("faults of tasks")

OF_THE_SERVER = (
    "signal.thread.delegated",
    "signal.run.started",
    "signal.run.box",
    "signal.run.provisioned",
    "signal.run.runner",
    "pi.user",
    "signal.run.finished",
    "signal.thread.reported",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[Delegating]:
    with a_delegating_server(tmp_path_factory.mktemp("faults"), installed_agents) as world:
        yield world


def a_parent(world: Delegating, marker: str) -> str:
    """A thread whose run is over, and which is woken by the results of its tasks."""
    thread = world.launch(marker, [text("First."), text("Told.")])
    assert world.client.runs.wait(thread).status == "completed"
    return thread


def until_entry(world: Delegating, thread: str, kind: str, number: int = 1) -> None:
    """Wait for the first entry of a kind, or for a later one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if len([entry for entry in world.client.thread(thread).entries() if entry.type == kind]) >= number:
                return
        except HoldfastError:  # not created yet
            pass
        time.sleep(0.01)
    raise TimeoutError(kind)


def check_told_once(world: Delegating, thread: str, task: str, marker: str) -> None:
    """The parent was told once, woken once, and its model saw the result once. Nothing is left to do or running."""
    assert len(world.entries(thread, "signal.thread.child_started")) == 1
    [finished] = world.entries(thread, "signal.thread.child_finished")
    assert len(world.results(thread, task)) == 1
    assert len(world.entries(task, "signal.run.started")) == 1
    [end] = world.entries(task, "signal.run.finished")
    assert (finished["run"], finished["status"]) == (end["run"], end["status"])
    assert len(world.entries(task, "signal.thread.reported")) == 1
    tree = world.client.tasks.wait(thread)
    assert [each.id for each in tree.threads] == [thread, task]
    # If the server was killed while it started the run that wakes the parent, it was started once more.
    lost = [each for each in world.entries(thread, "signal.run.finished") if each.get("again")]
    assert len(lost) <= 1
    assert len(world.entries(thread, "signal.run.started")) == 2 + len(lost)
    assert world.client.runs.get(thread).status == "completed"
    said = [each["text"] for each in world.entries(thread, "pi.assistant") if each.get("text")]
    assert said == ["First.", "Told."]
    told = [each for each in world.requests(marker)[-1].user_texts if f"Task {task}" in each]
    assert len(told) == 1
    assert (ANSWER in told[0]) == (end["status"] == "completed")
    assert marked(f"HOLDFAST_RUN={end['run']}".encode()) == []


@pytest.mark.sampled(share=0.3)
@pytest.mark.parametrize("kind", OF_THE_SERVER)
def test_a_server_that_is_killed_at_a_step_of_a_task(world: Delegating, kind: str) -> None:
    number = OF_THE_SERVER.index(kind)
    marker, small = f"parent number {number} of all", f"task number {number} of all"
    thread = a_parent(world, marker)
    task = task_id(thread, "k-1")
    world.model.script([text(ANSWER)], when=small)
    asked: list[object] = []

    def delegate() -> None:
        try:
            asked.append(world.client.tasks.delegate(thread, f"Do {small}.", key="k-1", wake=True))
        except HoldfastError as error:
            asked.append(error)

    asking = threading.Thread(target=delegate)
    asking.start()
    until_entry(world, task, kind)
    world.server.kill()
    world.server.start()
    asking.join(PATIENCE)  # the client asks again until the server is back
    assert asked
    world.until_reported(task)
    check_told_once(world, thread, task, marker)


OF_THE_WAKE = (
    ("signal.thread.child_finished", 1),
    ("signal.run.started", 2),
    ("signal.run.box", 2),
    ("signal.run.provisioned", 2),
    ("signal.run.runner", 2),
    ("pi.user", 2),
    ("signal.run.finished", 2),
)
"""What is written on the parent between the end of its task and the end of the run that this wakes."""


@pytest.mark.sampled(share=0.3)
@pytest.mark.parametrize(("kind", "number"), OF_THE_WAKE)
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_server_that_ends_while_it_wakes_a_parent(world: Delegating, kind: str, number: int, how: str) -> None:
    name = f"{how} at {kind.rpartition('.')[2]}"
    marker, small = f"parent {name} by a task", f"small thing {name}"
    thread = a_parent(world, marker)
    gate = Gate("start")
    world.model.script([held(text(ANSWER), gate)], when=small)
    task = world.client.tasks.delegate(thread, f"Do the {small}.", wake=True).id
    gate.wait_reached()
    gate.release()
    until_entry(world, thread, kind, number)
    if how == "killed":
        world.server.kill()
    else:
        world.server.stop()
    world.server.start()
    world.until_reported(task)
    check_told_once(world, thread, task, marker)


@pytest.mark.sampled(share=0.34)
@pytest.mark.parametrize("fault", ["kill runner", "kill box", "delete box"])
def test_a_task_whose_machine_dies_is_told_as_such(world: Delegating, fault: str) -> None:
    marker, small = f"parent with {fault}", f"task with {fault}"
    thread = a_parent(world, marker)
    gate = Gate("start")
    world.model.script([held(text("never said"), gate)], when=small)
    task = world.client.tasks.delegate(thread, f"Do {small}.", wake=True).id
    gate.wait_reached()
    run = world.client.runs.get(task)
    agents = marked(f"HOLDFAST_RUN={run.id}".encode())
    if fault == "delete box":
        world.client.boxes.delete(run.box or "")
    elif fault == "kill box":
        os.kill(guest_of(agents[0]), signal.SIGKILL)
    else:
        os.kill(parent_of(min(agents)), signal.SIGKILL)
    gate.release()
    world.until_reported(task)
    [finished] = world.entries(thread, "signal.thread.child_finished")
    assert finished["status"] in ("orphaned", "failed")
    check_told_once(world, thread, task, marker)


@pytest.mark.sampled(share=0.34)
def test_a_parent_whose_box_is_deleted_is_woken_in_a_new_one(world: Delegating) -> None:
    thread = a_parent(world, "homeless parent")
    gate = Gate("start")
    world.model.script([held(text(ANSWER), gate)], when="patient task")
    task = world.client.tasks.delegate(thread, "Do the patient task.", wake=True).id
    gate.wait_reached()
    world.client.boxes.delete(world.client.runs.get(thread).box or "")
    gate.release()
    world.until_reported(task)
    check_told_once(world, thread, task, "homeless parent")
    assert world.client.runs.get(thread).session == "rebuilt"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
