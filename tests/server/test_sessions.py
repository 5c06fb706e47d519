"""Sessions over HTTP: a real server, real local boxes and the real pi. Only the model is scripted."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.runs.delegate.real import Delegating, a_delegating_server
from tests.runs.faulting import marked

from holdfast.api.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.api.errors.sessions import IsSession, SessionBusy, SessionConflict, SessionLimit, SessionNotFound
from holdfast.api.session.sessions import Attachment, PromptInfo, SessionInfo
from holdfast.testing.model.gates import Gate
from holdfast.testing.model.steps import bash, held, text, write

PATIENCE = 240.0
pytestmark = pytest.mark.xdist_group("sessions")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[Delegating]:
    with a_delegating_server(tmp_path_factory.mktemp("sessions"), installed_agents, max_sessions=4) as world:
        yield world


@pytest.fixture(autouse=True)
def ended(world: Delegating) -> Iterator[None]:
    """No test leaves a session behind for the next."""
    yield
    for each in world.client.sessions.list():
        if each.state != "terminated":
            world.client.sessions.terminate(each.id)
    until(lambda: all(each.released for each in world.client.sessions.list()))


def until(holds: Callable[[], bool], what: object = "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def a_session(world: Delegating, **more: Any) -> SessionInfo:
    made = world.client.sessions.create(agent="pi", model="scripted", **more)
    assert made.state in ("initializing", "running")
    running = world.client.sessions.wait(made.id)
    assert running.state == "running", running
    return running


def prompted(world: Delegating, id: str, marker: str, steps: list[Any], **more: Any) -> PromptInfo:
    """The first prompt of a session. Its steps are those of the whole conversation."""
    world.model.script(steps, when=marker)
    return world.client.sessions.prompt(id, f"Please do the {marker}.", **more)


def ends_of(world: Delegating, id: str) -> list[str]:
    return [each["status"] for each in world.entries(id, "signal.run.finished")]


def test_a_session_works_sleeps_wakes_by_a_prompt_and_ends(world: Delegating, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    session = a_session(world, title="mine", workspace=world.client.runs.upload(tmp_path), labels={"team": "a"})
    assert (session.title, session.labels, session.joint_state) == ("mine", {"team": "a"}, "standby")
    assert session.box is not None
    steps = [write("b.txt", "two\n"), text("Done."), bash("cat a.txt b.txt"), text("Read.")]
    first = prompted(world, session.id, "work and sleep", steps)
    assert world.client.sessions.wait_for_prompt(session.id, first.id).status == "completed"
    asleep = world.client.sessions.hibernate(session.id, by="ann")
    assert (asleep.state, asleep.sandbox_state, asleep.agent_state) == ("hibernated", "hibernated", "sleeping")
    assert world.client.boxes.get(session.box).state == "hibernated"
    second = world.client.sessions.prompt(session.id, "And now?")
    assert world.client.sessions.wait_for_prompt(session.id, second.id).status == "completed"
    results = [each.get("result", "") for each in world.entries(session.id, "pi.tool")]
    assert "one\ntwo\n" in results[-1]
    # The agent goes on with its own session, and knows what was said before.
    runs = list(world.client.runs.list(thread=session.id))
    assert [each.session for each in runs] == ["continued", "new"]
    signals = [entry.type for entry in world.client.thread(session.id).entries(types="signal.session.*")]
    assert [each.removeprefix("signal.session.") for each in signals] == [
        "created", "running", "hibernating", "hibernated", "restoring", "running",
    ]  # fmt: skip
    over = world.client.sessions.terminate(session.id)
    assert (over.state, over.joint_state) == ("terminated", "stopped")
    until(lambda: world.client.sessions.get(session.id).released)
    assert world.client.boxes.get(session.box).state == "stopped"
    assert world.client.sessions.delete_workspace(session.id) >= 0
    gone = world.client.sessions.get(session.id)
    assert (gone.workspace, gone.box) == (False, None)
    assert ends_of(world, session.id) == ["completed", "completed"]
    assert marked(f"HOLDFAST_RUN={runs[0].id}".encode()) == []


def test_files_of_a_prompt_are_in_the_box_of_an_agent_without_a_server(world: Delegating) -> None:
    session = a_session(world)
    notes, image = b64encode(b"the secret word is turnip").decode(), b64encode(b"\x89PNG\r\n").decode()
    attachments = [
        Attachment(mime="text/plain", data=notes, filename="my notes;.txt"),
        Attachment(mime="image/png", data=image),
        Attachment(mime="text/plain", data=notes, filename=".."),
    ]
    steps = [bash("cd ~/.holdfast/attachments/*; ls; cat 1-*"), text("I see.")]
    prompt = prompted(world, session.id, "seeing work", steps, attachments=attachments)
    assert world.client.sessions.wait_for_prompt(session.id, prompt.id).status == "completed"
    [tool] = world.entries(session.id, "pi.tool")
    assert tool["result"] == "1-my_notes_.txt\n2-file.png\n3-..\nthe secret word is turnip"
    asked = world.requests("seeing work")[0].user_texts[-1]
    assert asked.startswith("Please do the seeing work.\n\n[These files belong to this message.")
    assert "/2-file.png (image/png)" in asked
    assert world.client.runs.changes(prompt_run(world, session.id)).files == ()
    with pytest.raises(InvalidRequest, match="speech cannot be attached"):
        world.client.sessions.prompt(session.id, "hear", attachments=[Attachment(mime="audio/ogg", data=notes)])
    with pytest.raises(InvalidRequest, match="attachment 1 is not in base64"):
        world.client.sessions.prompt(session.id, "see", attachments=[Attachment(mime="a/b", data="AAAAA")])


def prompt_run(world: Delegating, id: str) -> str:
    return str(world.entries(id, "signal.run.started")[-1]["run"])


def test_a_prompt_that_steers_interrupts_the_agent(world: Delegating) -> None:
    session = a_session(world)
    gate = Gate("start")
    slow = prompted(world, session.id, "slow work", [held(text("never said"), gate), text("Better.")])
    gate.wait_reached()
    busy = world.client.sessions.get(session.id)
    assert (busy.joint_state, busy.processing) == ("running_busy", 1)
    with pytest.raises(SessionBusy):
        world.client.sessions.hibernate(session.id)
    steering = world.client.sessions.prompt(session.id, "Stop, this is better.", mode="steer")
    assert world.client.sessions.wait_for_prompt(session.id, steering.id).status == "completed"
    gate.release()
    prompts = {each.id: each.status for each in world.client.sessions.prompts(session.id)}
    assert prompts == {slow.id: "cancelled", steering.id: "completed"}


@pytest.mark.sampled(share=0.34)
def test_collected_prompts_are_one_question(world: Delegating) -> None:
    session = a_session(world)
    one = prompted(world, session.id, "collected work", [text("Both.")], mode="collect")
    two = world.client.sessions.prompt(session.id, "And the other one.", mode="collect")
    ends = [world.client.sessions.wait_for_prompt(session.id, each.id) for each in (one, two)]
    assert [each.status for each in ends] == ["completed", "completed"]
    assert ends[0].run == ends[1].run
    asked = world.requests("collected work")[-1].user_texts[-1]
    assert "collected work" in asked
    assert "And the other one." in asked


@pytest.mark.sampled(share=0.34)
def test_terminating_ends_the_work_and_what_belongs_to_it(world: Delegating) -> None:
    session = a_session(world)
    child = a_session(world, parent=session.id)
    gate = Gate("start")
    at_work = prompted(world, session.id, "endless work", [held(text("never said"), gate)])
    gate.wait_reached()
    run = world.client.sessions.get(session.id).run
    waiting = world.client.sessions.prompt(session.id, "more")
    world.client.sessions.terminate(session.id, by="ann")
    until(lambda: world.client.sessions.get(session.id).released)
    gate.release()
    prompts = {each.id: each.status for each in world.client.sessions.prompts(session.id)}
    assert prompts == {at_work.id: "cancelled", waiting.id: "cancelled"}
    until(lambda: world.client.sessions.get(child.id).released)
    assert world.client.sessions.get(child.id).why == f"session {session.id}, to which it belongs, was terminated"
    assert ends_of(world, session.id) == ["cancelled"]
    assert marked(f"HOLDFAST_RUN={run}".encode()) == []
    assert [each.id for each in world.client.sessions.list(parent=session.id)] == [child.id]


def test_what_a_session_does_not_allow_is_said_with_what_to_do(world: Delegating) -> None:
    session = a_session(world)
    with pytest.raises(IsSession) as refused:
        world.client.runs.resume(session.id, "behind its back")
    assert refused.value.hint == f'send the prompt to it: holdfast session prompt {session.id} "…"'
    with pytest.raises(SessionConflict, match="its files are kept"):
        world.client.sessions.delete_workspace(session.id)
    with pytest.raises(SessionNotFound):
        world.client.sessions.get(world.client.threads.create(title="no session").id)
    with pytest.raises(SessionNotFound):
        world.client.sessions.prompt("t-nowhere", "x")
    with pytest.raises(NotFound, match="no environment nowhere"):
        world.client.sessions.create(agent="pi", model="scripted", environment="nowhere")
    for _ in range(3):
        a_session(world)
    with pytest.raises(SessionLimit, match="4 sessions are awake"):
        world.client.sessions.create(agent="pi", model="scripted")


@pytest.mark.sampled(share=0.34)
def test_deleting_the_thread_of_a_session_leaves_nothing_behind(world: Delegating) -> None:
    session = a_session(world)
    child = a_session(world, parent=session.id)
    world.client.threads.delete(session.id)
    with pytest.raises(HoldfastError):
        world.client.sessions.get(session.id)
    until(lambda: world.client.boxes.get(session.box or "").state == "deleted")
    until(lambda: world.client.sessions.get(child.id).state == "terminated")


def test_the_documents_of_sessions_say_nothing_of_secrets(world: Delegating) -> None:
    session = a_session(world)
    told = json.dumps([entry.to_json() for entry in world.client.thread(session.id).entries()])
    assert "sk-x" not in told


KILLED_AT = (
    ("create", "signal.session.created"),
    ("create", "signal.session.running"),
    ("prompt", "chat"),
    ("prompt", "signal.run.started"),
    ("prompt", "signal.run.box"),
    ("prompt", "signal.run.runner"),
    ("prompt", "pi.user"),
    ("prompt", "signal.run.finished"),
    ("hibernate", "signal.session.hibernating"),
    ("hibernate", "signal.session.hibernated"),
    ("restore", "signal.session.restoring"),
    ("terminate", "signal.session.terminated"),
)


@pytest.mark.sampled(share=0.25)
@pytest.mark.parametrize(("step", "kind"), KILLED_AT)
def test_a_server_that_is_killed_at_a_step_of_a_session(world: Delegating, step: str, kind: str) -> None:
    """SIGKILL as soon as the entry is there. The prompt ends once, and the session comes to where it was to be."""
    number = KILLED_AT.index((step, kind))
    marker = f"work number {number} of all"
    world.model.script([text("Done."), text("Done again.")], when=marker)
    client = world.client
    id = "" if step == "create" else a_session(world).id
    if step == "restore":
        client.sessions.hibernate(id)
    asked: list[object] = []

    def ask() -> None:
        try:
            match step:
                case "create":
                    asked.append(client.sessions.create(agent="pi", model="scripted", title=marker))
                case "prompt":
                    asked.append(client.sessions.prompt(id, f"Please do the {marker}."))
                case "hibernate":
                    asked.append(client.sessions.hibernate(id))
                case "restore":
                    asked.append(client.sessions.restore(id))
                case _:
                    asked.append(client.sessions.terminate(id))
        except HoldfastError as error:
            asked.append(error)

    def is_there() -> bool:
        thread = id or next((each.id for each in client.sessions.list() if each.title == marker), "")
        return bool(thread) and kind in [entry.type for entry in client.thread(thread).entries()]

    asking = threading.Thread(target=ask)
    asking.start()
    until(is_there)
    world.server.kill()
    world.server.start()
    asking.join(PATIENCE)  # the client asks again until the server is back
    [answer] = asked
    assert not isinstance(answer, HoldfastError), answer
    id = id or next(each.id for each in client.sessions.list() if each.title == marker)
    expected = {"hibernate": "hibernated", "terminate": "terminated"}.get(step, "running")
    until(lambda: client.sessions.get(id).state == expected)
    if step == "prompt":
        assert isinstance(answer, PromptInfo)
        assert client.sessions.wait_for_prompt(id, answer.id).status == "completed"
        assert len(world.entries(id, "chat")) == 1
        assert ends_of(world, id).count("completed") == 1
        assert len(world.entries(id, "signal.run.started")) == len(ends_of(world, id)) <= 2
    states = [entry.type for entry in client.thread(id).entries(types="signal.session.*")]
    assert len(states) == len(set(states)) or step == "restore"
    assert len([box for box in client.boxes.list() if (box.key or "").endswith(id)]) == 1
