"""Prompts of a session over the hub: one OpenCode server for all of them, and runs on the thread as ever."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.agents import InstalledAgents
from tests.sessions.hub.world import HubWorld, a_hub_world, processes, until

from holdfast.api.errors import Forbidden, InvalidRequest, NotFound
from holdfast.api.errors.sessions import AgentAway, AgentRefused, SessionBusy
from holdfast.api.session.sessions import AgentFile, AgentSettings, Attachment
from holdfast.client import SyncClient
from holdfast.testing.model.gates import Gate
from holdfast.testing.model.requests import Said
from holdfast.testing.model.steps import bash, held, text, tool, write

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


@pytest.mark.sampled(share=0.34)
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


def test_each_channel_has_a_conversation_of_its_own_that_survives_sleep_and_server(world: HubWorld) -> None:
    session = world.session()
    prompt = world.client.sessions.prompt
    world.model.script([text("Web one."), text("Web two."), text("Web three.")], when="web work")
    world.model.script([text("Chat one."), text("Chat two."), text("Chat three.")], when="chat work")
    chat = "slack:C1"

    def ask(words: str, channel: str | None = None) -> None:
        sent = prompt(session.id, words, channel=channel)
        assert sent.channel == (channel or "web:default")
        assert world.ended(session.id, sent) == "completed", world.server.read_log()[-4000:]

    ask("Please do the web work.")
    ask("Please do the chat work.", chat)
    ask("And now, web?")
    ask("And now, chat?", chat)
    world.client.sessions.hibernate(session.id)
    world.server.kill()
    world.server.start()
    ask("Once more, chat.", chat)
    ask("Once more, web.")
    said = [each["text"] for each in world.entries(session.id, "opencode.assistant")]
    assert said == ["Web one.", "Chat one.", "Web two.", "Chat two.", "Chat three.", "Web three."]
    conversations: dict[str | None, set[str]] = {None: set(), chat: set()}
    channel = None
    for entry in world.client.thread(session.id).entries():
        if entry.type == "signal.run.started":
            channel = entry.payload.get("channel")
        elif entry.type == "opencode.session":
            conversations[channel].add(entry.payload["session"])
    [here], [there] = conversations[None], conversations[chat]
    assert here != there
    how = [each["session"] for each in world.entries(session.id, "signal.run.provisioned")]
    assert (how[:2], set(how[2:])) == (["new", "new"], {"continued"})
    last = json.dumps(world.model.main_requests[-1].body)
    assert "chat" not in last.replace("chat.completion", "")
    # A box that is lost: both conversations are rebuilt, each from its own entries.
    found = world.client.sessions.get(session.id)
    assert found.box is not None
    world.client.boxes.delete(found.box)
    world.model.script([text("Web four.")], when="Even now, web?")
    world.model.script([text("Chat four.")], when="Even now, chat?")
    ask("Even now, chat?", chat)
    ask("Even now, web?")
    in_chat, on_web = (json.dumps(each.body) for each in world.model.main_requests[-2:])
    assert "Chat three." in in_chat
    assert "Web three." not in in_chat
    assert "Web three." in on_web
    assert "Chat three." not in on_web


@pytest.mark.sampled(share=0.34)
def test_a_runner_that_outlives_its_server_gets_the_next_prompt_too(world: HubWorld) -> None:
    session = world.session()
    first = world.prompt(session.id, "lasting work", [text("One."), text("Two.")])
    assert world.ended(session.id, first) == "completed"
    world.server.kill()
    world.server.start()

    def is_back() -> bool:
        with contextlib.suppress(AgentAway):
            world.client.sessions.models(session.id)
            return True
        return False

    until(is_back)
    second = world.client.sessions.prompt(session.id, "Go on.")
    assert world.ended(session.id, second) == "completed"
    assert len({each["process"] for each in world.entries(session.id, "signal.run.runner")}) == 1
    assert [each["session"] for each in world.entries(session.id, "signal.run.provisioned")] == ["new", "continued"]


def test_a_question_of_the_agent_waits_for_somebody_and_gets_the_answer(world: HubWorld) -> None:
    session = world.session()
    asked = {
        "questions": [
            {
                "question": "Which database?",
                "header": "Database",
                "options": [
                    {"label": "SQLite", "description": "A file"},
                    {"label": "PostgreSQL", "description": "A server"},
                ],
            }
        ]
    }
    prompt = world.prompt(session.id, "asking work", [tool("question", asked), text("As you say.")])
    [question] = until(lambda: world.client.sessions.questions(session.id), world.server.read_log)
    assert (question.kind, question.text, question.options) == ("question", "Which database?", ("SQLite", "PostgreSQL"))
    with pytest.raises(NotFound):
        world.client.sessions.answer(session.id, "que_other", "SQLite")
    [waiting] = [each for each in world.client.inbox.waiting() if each.thread == session.id]
    assert (waiting.kind, waiting.id, waiting.options) == ("question", question.id, question.options)
    world.client.sessions.answer(session.id, question.id, "PostgreSQL")
    assert world.ended(session.id, prompt) == "completed"
    assert world.client.sessions.questions(session.id) == []
    assert "PostgreSQL" in world.entries(session.id, "opencode.tool")[-1]["result"]
    [told] = world.entries(session.id, "opencode.question")
    assert (told["question"], told["text"]) == (question.id, "Which database?")
    assert world.entries(session.id, "opencode.answer") == [
        {"type": "opencode.answer", "question": question.id, "answer": "PostgreSQL"}
    ]


def test_an_agent_that_has_to_ask_does_what_is_permitted_and_nothing_else(world: HubWorld) -> None:
    with pytest.raises(InvalidRequest, match="pi cannot ask"):
        world.client.sessions.create(agent="pi", model="scripted", ask=["bash"])
    session = world.session(ask=["bash"])
    commands = ("touch once", "touch always", "touch always-2", "date > rejected")
    steps = [write("free.txt", "not asked\n"), *map(bash, commands), text("Never said.")]
    prompt = world.prompt(session.id, "careful work", steps)
    viewer = world.client.keys.create("a viewer", role="viewer").secret
    asked = []
    for answer in ("once", "always", "no, thanks"):
        # The hub forgets a question as soon as it is answered.
        [question] = until(lambda: world.client.sessions.questions(session.id), world.server.read_log)
        asked.append((question.kind, question.text, question.options))
        with SyncClient(world.server.url, api_key=viewer) as looking:
            assert [each.id for each in looking.sessions.questions(session.id)] == [question.id]
            with pytest.raises(Forbidden):
                looking.sessions.answer(session.id, question.id, "always")
        world.client.sessions.answer(session.id, question.id, answer)
    options = ("once", "always", "reject")
    used = ("touch once", "touch always", "date > rejected")
    assert asked == [("permission", f"May it use bash: {each}?", options) for each in used]
    world.ended(session.id, prompt)
    assert [each["answer"] for each in world.entries(session.id, "opencode.answer")] == ["once", "always", "no, thanks"]
    assert [each["text"] for each in world.entries(session.id, "opencode.question")] == [text for _, text, _ in asked]
    found = world.client.sessions.get(session.id)
    assert found.box is not None
    with world.client.boxes.open(found.box) as box:
        files = {each.name for each in box.files.list("/workspace")}
    assert {"free.txt", "once", "always", "always-2"} <= files
    assert "rejected" not in files


@pytest.mark.sampled(share=0.34)
def test_a_permission_that_nobody_gives_in_time_is_refused(tmp_path: Path, installed_agents: InstalledAgents) -> None:
    with a_hub_world(tmp_path, installed_agents, question_timeout=1) as world:
        session = world.session(ask=["all"])
        prompt = world.prompt(session.id, "lonely work", [bash("touch done"), text("Never said.")])
        world.ended(session.id, prompt)
        assert [each["answer"] for each in world.entries(session.id, "opencode.answer")] == ["__expired__"]
        assert world.client.sessions.questions(session.id) == []
        [refused] = world.entries(session.id, "opencode.tool")
        assert refused["status"] == "error"


@pytest.mark.sampled(share=0.34)
def test_an_agent_gets_skills_and_tools_between_prompts_and_its_server_is_restarted_only_for_a_change(
    world: HubWorld,
) -> None:
    session = world.session()
    gate = Gate("start")
    steps = [held(text("Before."), gate), tool("number", {}), text("After."), text("Same."), text("Awake.")]
    first = world.prompt(session.id, "gifted work", steps)
    gate.wait_reached()
    code = 'export default { description: "The number", args: {}, async execute() { return "it is 42" } }\n'
    settings = AgentSettings(
        tools={"webfetch": False},
        skills=(AgentFile(name="release-notes", text="# How to write release notes\n\nBriefly."),),
        custom_tools=(AgentFile(name="number", text=code),),
    )
    assert world.client.sessions.configure(session.id, settings) == settings
    servers = processes(session.id, b"serve\0--hostname")
    gate.release()
    assert world.ended(session.id, first) == "completed", "a change waits for the end of the turn"

    def ask(words: str) -> list[int]:
        asked = world.client.sessions.prompt(session.id, words)
        assert world.ended(session.id, asked) == "completed", world.server.read_log()[-4000:]
        return processes(session.id, b"serve\0--hostname")

    restarted = ask("Use it.")
    assert restarted != servers
    assert [each["result"] for each in world.entries(session.id, "opencode.tool")] == ["it is 42"]
    sent = world.model.main_requests[-1].body
    assert "release-notes" in json.dumps(sent)
    names = [each["function"]["name"] for each in sent["tools"]]
    assert "number" in names
    assert "webfetch" not in names
    world.client.sessions.configure(session.id, settings)
    assert ask("The same.") == restarted
    world.client.sessions.hibernate(session.id)
    ask("And after sleep.")
    assert "number" in [each["function"]["name"] for each in world.model.main_requests[-1].body["tools"]]
    assert world.client.sessions.settings(session.id) == settings
    for wrong in ({"skills": [{"name": "../x", "text": "x"}]}, {"skills": [{"name": "x", "text": "x" * 16_001}]}):
        with httpx.Client(base_url=world.server.url, headers={"authorization": f"Bearer {world.key}"}) as http:
            assert http.put(f"/v1/sessions/{session.id}/agent", json=wrong).status_code == 422


@pytest.mark.sampled(share=0.34)
def test_people_see_models_run_commands_abort_and_revert(world: HubWorld, tmp_path: Path) -> None:
    (tmp_path / ".opencode" / "command").mkdir(parents=True)
    (tmp_path / ".opencode" / "command" / "greet.md").write_text("Please do the greeting work for $ARGUMENTS.")
    session = world.session(workspace=world.client.runs.upload(tmp_path))
    gate = Gate("start")
    steps = [text("Hello Ann."), write("b.txt", "two\n"), text("Written."), held(text("never"), gate), text("Back.")]
    world.model.script(steps, when="greeting work")
    first = world.client.sessions.command(session.id, "greet", "Ann")
    assert world.ended(session.id, first) == "completed", world.server.read_log()[-4000:]
    assert world.entries(session.id, "opencode.user")[0]["text"] == "Please do the greeting work for Ann."
    assert "scripted" in [each.id for each in world.client.sessions.models(session.id)]
    second = world.client.sessions.prompt(session.id, "Write it.")
    assert world.ended(session.id, second) == "completed"
    third = world.client.sessions.prompt(session.id, "Take long.")
    gate.wait_reached()
    with pytest.raises(SessionBusy):
        world.client.sessions.revert(session.id, second.id)
    world.client.sessions.abort(session.id)
    assert world.ended(session.id, third) == "cancelled"
    gate.release()
    world.client.sessions.revert(session.id, second.id)
    fourth = world.client.sessions.prompt(session.id, "Go on.")
    assert world.ended(session.id, fourth) == "completed", world.entries(session.id, "signal.run.finished")
    said = [each.text for each in world.model.main_requests[-1].turns if isinstance(each, Said)]
    assert not any("Write it." in each for each in said)
    found = world.client.sessions.get(session.id)
    assert found.box is not None
    with world.client.boxes.open(found.box) as box:
        assert not box.files.exists("/workspace/b.txt")
    statuses = {each.id: each.status for each in world.client.sessions.prompts(session.id)}
    assert [statuses[each.id] for each in (first, second, third, fourth)] == [
        "completed", "reverted", "reverted", "completed",
    ]  # fmt: skip
    back = world.client.sessions.undo_revert(session.id)
    assert back.box is not None
    with world.client.boxes.open(back.box) as box:
        assert box.files.read("/workspace/b.txt") == b"two\n"
    world.model.script([text("Again.")], when="After the undo")
    fifth = world.client.sessions.prompt(session.id, "After the undo.")
    assert world.ended(session.id, fifth) == "completed", world.entries(session.id, "signal.run.finished")
    said = [each.text for each in world.model.main_requests[-1].turns if isinstance(each, Said)]
    assert any("Write it." in each for each in said)
    assert not any("Go on." in each for each in said)
    statuses = {each.id: each.status for each in world.client.sessions.prompts(session.id)}
    assert [statuses[each.id] for each in (second, third, fourth)] == ["completed", "cancelled", "reverted"]


@pytest.mark.sampled(share=0.34)
def test_files_and_images_of_a_prompt_reach_the_model(world: HubWorld) -> None:
    session = world.session()
    image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    notes = base64.b64encode(b"the secret word is turnip").decode()
    attachments = [
        Attachment(mime="image/png", data=image, filename="dot.png"),
        Attachment(mime="text/plain", data=notes, filename="notes.txt"),
    ]
    prompt = world.prompt(session.id, "seeing work", [text("I see.")], attachments=attachments)
    assert world.ended(session.id, prompt) == "completed"
    sent = json.dumps(world.model.main_requests[-1].body)
    assert f"data:image/png;base64,{image}" in sent
    assert "the secret word is turnip" in sent
    with pytest.raises(InvalidRequest, match="speech cannot be attached"):
        world.client.sessions.prompt(session.id, "hear", attachments=[Attachment(mime="audio/wav", data=notes)])
    for wrong in (
        {"mime": "nonsense", "data": "AA"},
        {"mime": "a/b", "data": "!"},
        {"mime": "a/b", "data": "AA", "filename": "../x"},
    ):
        with pytest.raises(InvalidRequest):
            world.client.sessions.prompt(session.id, "see", attachments=[Attachment(**wrong)])


@pytest.mark.sampled(share=0.34)
def test_a_review_has_findings_and_an_answer_that_is_none_is_said_to_be(world: HubWorld) -> None:
    session = world.session()
    finding = {
        "id": "1", "file": "a.py", "lineStart": 3, "lineEnd": 4, "severity": "critical", "category": "bug",
        "title": "Off by one", "description": "The last item is left out.",
    }  # fmt: skip
    file = {"path": "a.py", "summary": "a loop", "reviewOrder": 1, "linesAdded": 2, "linesDeleted": 0}
    answer = {"files": [{**file, "findings": [finding]}], "overallSummary": "One bug.", "stats": {}}
    world.model.script([text(f"```json\n{json.dumps(answer)}\n```"), text("Looks good!")], when="Review the changes")
    first = world.client.sessions.review(session.id, "main")
    assert world.ended(session.id, first) == "completed"
    found = world.client.sessions.review_of(session.id, first.id)
    assert found.overall_summary == "One bug."
    [only] = found.files[0].findings
    assert (only.severity, only.line_start, only.suggested_fix) == ("critical", 3, None)
    second = world.client.sessions.review(session.id)
    assert world.ended(session.id, second) == "completed"
    with pytest.raises(AgentRefused):
        world.client.sessions.review_of(session.id, second.id)
    with pytest.raises(InvalidRequest):
        world.client.sessions.review(session.id, "--output=/etc/passwd")


def running(words: bytes) -> list[int]:
    """The processes of this machine with these arguments."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                if (each / "cmdline").read_bytes() == words:
                    found.append(int(each.name))
    return found
