"""Runs over HTTP. Nothing is simulated but the model: a real server, real local boxes, the real runner, the real pi."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.runs.faulting import guest_of, marked
from tests.server.conftest import api_of
from tests.serving import serving_agents

from holdfast.api.model.models import Api
from holdfast.client import Client, Conflict, HoldfastError, InvalidRequest, NotFound, SyncClient
from holdfast.testing.model import ScriptedModel
from holdfast.testing.model.gates import Gate
from holdfast.testing.model.steps import Scripted, bash, held, text, write
from holdfast.testing.server import ServerProcess

SECRET = "sk-the-real-key"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "home"


@pytest.fixture(scope="module")
def running(home: Path, installed_agents: InstalledAgents) -> Iterator[ServerProcess]:
    with serving_agents(home, installed_agents, "pi") as server:
        yield server


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=SECRET) as model:
        yield model


@pytest.fixture
def client(running: ServerProcess, model: ScriptedModel) -> Iterator[SyncClient]:
    with SyncClient(running.url, api_key=running.api_key) as client:
        client.models.add("scripted", apis=[Api.ANTHROPIC], base_url=model.url, model="scripted", key=SECRET)
        yield client


def launch(client: SyncClient, model: ScriptedModel, steps: list[Scripted], **more: Any) -> str:
    model.script(steps)
    return client.runs.launch("do it", agent="pi", model="scripted", **more).thread


def types(client: SyncClient, thread: str) -> list[str]:
    return [entry.type for entry in client.thread(thread).entries()]


def ends(client: SyncClient, thread: str) -> list[dict[str, Any]]:
    return [entry.payload for entry in client.thread(thread).entries(types="signal.run.finished")]


def said(model: ScriptedModel) -> str:
    """Everything that the model was last sent."""
    return json.dumps(model.main_requests[-1].body["messages"])


def test_a_real_agent_works_in_a_box_and_its_thread_tells_all_of_it(
    client: SyncClient, model: ScriptedModel, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    workspace = client.runs.upload(tmp_path)
    thread = launch(client, model, [write("b.txt", "two\n"), text("It is done.")], workspace=workspace)
    run = client.runs.wait(thread)
    assert (run.status, run.agent, run.model) == ("completed", "pi", "scripted/scripted")
    assert types(client, thread)[:6] == [
        "signal.thread.created",
        "chat",
        "signal.run.started",
        "signal.run.box",
        "signal.run.provisioned",
        "signal.run.runner",
    ]
    assert [entry.payload["text"] for entry in client.thread(thread).entries(types="pi.assistant")][-1] == "It is done."
    assert "pi.delta" not in types(client, thread)
    assert "pi.delta" in [entry.type for entry in client.thread(thread).entries(live=True)]
    assert len(ends(client, thread)) == 1
    changes = client.runs.changes(thread)
    assert [(each.path, each.how) for each in changes.files] == [("b.txt", "added")]
    assert "+two" in changes.patch
    assert all(each.ok is not False for each in client.runs.diagnose(thread).findings)
    info = client.thread(thread).info()
    assert info.status == "completed"
    assert info.run is not None
    assert info.run.id == run.id
    assert [each.id for each in client.runs.list(thread=thread)] == [run.id]
    # The key is nowhere in the box, nor on the thread.
    assert run.box is not None
    with client.boxes.open(run.box) as box:
        found = box.exec(["grep", "-rlF", SECRET, "/home", "/workspace", "/tmp", "/etc"])
        assert found.stdout == b""
    assert SECRET not in json.dumps([entry.to_json() for entry in client.thread(thread).entries(live=True)])


def test_a_follow_up_goes_on_in_the_same_box(client: SyncClient, model: ScriptedModel) -> None:
    thread = launch(client, model, [text("First.")])
    first = client.runs.wait(thread)
    model.script([text("Second.")])
    second = client.runs.wait(client.runs.resume(thread, "and more").run)
    assert (second.status, second.box) == ("completed", first.box)
    assert (second.session, second.files) == ("continued", "kept")
    assert "do it" in said(model)
    assert "First." in said(model)
    assert "and more" in said(model)


def test_a_box_that_is_killed_under_its_run_is_named_and_started_again(
    client: SyncClient, model: ScriptedModel
) -> None:
    gate = Gate("start")
    thread = launch(client, model, [write("b.txt", "two\n"), held(text("never said"), gate)])
    gate.wait_reached()
    first = client.runs.get(thread)
    assert first.box is not None
    os.kill(guest_of(marked(f"HOLDFAST_RUN={first.id}".encode())[0]), signal.SIGKILL)
    model.script([bash("cat b.txt"), text("On it.")])
    second = client.runs.wait(client.runs.resume(thread, "go on").run)
    gate.release()
    lost, completed = ends(client, thread)
    assert (lost["status"], lost["error"]["code"]) == ("orphaned", "box_stopped")
    assert f"box {first.box} was stopped or killed" in lost["error"]["message"]
    assert (completed["status"], second.box) == ("completed", first.box)
    assert "two" in said(model)


def test_a_dead_box_is_no_end_of_the_work(client: SyncClient, model: ScriptedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    gate = Gate("start")
    steps: list[Scripted] = [write("b.txt", "two\n"), held(text("never said"), gate)]
    thread = launch(client, model, steps, workspace=client.runs.upload(tmp_path))
    gate.wait_reached()
    first = client.runs.get(thread)
    assert first.box is not None
    client.boxes.delete(first.box)
    model.script([text("On it.")])
    second = client.runs.wait(client.runs.resume(thread, "go on").run)
    gate.release()
    assert [each["status"] for each in ends(client, thread)] == ["orphaned", "completed"]
    assert second.box != first.box
    assert (second.session, second.files) == ("rebuilt", "workspace")
    sent = said(model)
    assert "do it" in sent
    assert "b.txt" in sent  # the call, and what came of it
    assert "are lost" in sent
    with client.boxes.open(second.box or "") as box:
        assert box.files.exists("a.txt")
        assert not box.files.exists("b.txt")


def test_a_fresh_box_has_the_files_of_the_old_one(client: SyncClient, model: ScriptedModel) -> None:
    thread = launch(client, model, [write("b.txt", "two\n"), text("Done.")])
    first = client.runs.wait(thread)
    model.script([text("On it.")])
    second = client.runs.wait(client.runs.resume(thread, "go on", fresh=True).run)
    assert second.status == "completed"
    assert second.box != first.box
    assert (second.session, second.files) == ("rebuilt", "snapshot")
    with client.boxes.open(second.box or "") as box:
        assert box.files.read("b.txt") == b"two\n"
    assert "b.txt" in said(model)


def test_a_run_is_cancelled_in_the_middle_of_a_tool(client: SyncClient, model: ScriptedModel) -> None:
    thread = launch(client, model, [bash("touch started; sleep 600"), text("never said")])
    with client.thread(thread).tail() as tail:
        next(entry for entry in tail if entry.type == "pi.call")
        client.runs.cancel(thread)
        end = next(entry for entry in tail if entry.type == "signal.run.finished")
    assert (end.payload["status"], end.payload["by"]) == ("cancelled", "runner")
    run = client.runs.cancel(thread)  # once more changes nothing
    assert run.status == "cancelled"
    assert len(ends(client, thread)) == 1
    with client.boxes.open(run.box or "") as box:
        assert "sleep 600" not in box.exec(["ps", "-eo", "args"]).text


def test_a_prompt_interrupts_and_another_waits(client: SyncClient, model: ScriptedModel) -> None:
    thread = launch(client, model, [bash("sleep 600"), text("Of the interruption.")])
    with client.thread(thread).tail() as tail:
        next(entry for entry in tail if entry.type == "pi.call")
        assert client.runs.steer(thread, "stop that, say hello", interrupt=True).how == "interrupting"
        finished = [next(entry for entry in tail if entry.type == "signal.run.finished") for _ in range(2)]
    assert [entry.payload["status"] for entry in finished] == ["cancelled", "completed"]
    assert "stop that, say hello" in said(model)
    gate = Gate("start")
    model.script([held(text("Slowly."), gate), text("Of what waited.")])
    client.runs.resume(thread, "slowly")
    with pytest.raises(Conflict) as busy:
        client.runs.launch("me too", agent="pi", thread=thread)
    assert busy.value.code == "thread_busy"
    assert f"holdfast cancel {thread}" in str(busy.value.hint)
    assert client.runs.steer(thread, "and then this").how == "queued"
    gate.release()
    with client.thread(thread).tail() as tail:
        finished = [next(entry for entry in tail if entry.type == "signal.run.finished") for _ in range(4)]
    assert finished[-1].payload["status"] == "completed"
    assert "and then this" in said(model)


def test_a_run_outlives_its_server(client: SyncClient, model: ScriptedModel, running: ServerProcess) -> None:
    gate = Gate("start")
    # The answer that the server's end cuts off is asked for again by the agent, when the server is back.
    thread = launch(client, model, [bash("echo hi"), held(text("Lost."), gate), text("After it all.")])
    gate.wait_reached()
    running.kill()
    gate.release()
    running.start()
    with SyncClient(running.url, api_key=running.api_key) as again:
        run = again.runs.wait(thread)
        assert run.status == "completed"
        assert len(ends(again, thread)) == 1
        texts = [entry.payload["text"] for entry in again.thread(thread).entries(types="pi.assistant")]
        assert texts[-1] == "After it all."


def test_a_model_that_refuses_fails_the_run_and_says_why(client: SyncClient, model: ScriptedModel) -> None:
    model.script([{"error": 401, "message": "bad key", "times": -1}])
    run = client.runs.wait(client.runs.launch("do it", agent="pi", model="scripted").thread)
    assert run.status == "failed"
    assert run.error is not None
    assert client.thread(run.thread).info().status == "failed"
    found = client.runs.diagnose(run.id)
    assert found.wrong is not None
    assert found.next_step is not None


def test_what_cannot_be_is_refused_before_anything_is_made(client: SyncClient) -> None:
    client.models.add("chatty", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:9/v1", model="x")
    before = len(list(client.threads.list()))
    refusals: list[tuple[type[HoldfastError], str, dict[str, Any]]] = [
        (InvalidRequest, "unknown_agent", {"agent": "nobody"}),
        (NotFound, "model_not_found", {"agent": "pi", "model": "nobody"}),
        (InvalidRequest, "model_not_spoken", {"agent": "claude", "model": "chatty"}),
        (NotFound, "workspace_not_found", {"agent": "pi", "model": "scripted", "workspace": "0" * 64}),
        (NotFound, "not_found", {"agent": "pi", "model": "scripted", "thread": "t-nobody"}),
    ]
    for kind, code, wanted in refusals:
        with pytest.raises(kind) as refused:
            client.runs.launch("x", **wanted)
        assert refused.value.code == code
    assert len(list(client.threads.list())) == before
    client.models.remove("chatty")


def test_only_who_may_read_a_thread_may_look_at_its_runs(
    client: SyncClient, model: ScriptedModel, running: ServerProcess
) -> None:
    thread = launch(client, model, [text("Done.")])
    run = client.runs.wait(thread)
    other = client.threads.create().id
    mine = client.threads.token(thread).token
    theirs = client.threads.token(other).token
    with api_of(running) as api:
        assert api.get(f"/v1/runs/{run.id}", headers={"Authorization": f"Bearer {mine}"}).status_code == 200
        for path in (f"/v1/runs/{run.id}", f"/v1/runs/{thread}"):
            assert api.get(path, headers={"Authorization": f"Bearer {theirs}"}).status_code == 403
        for path in (f"/v1/runs/{run.id}/diff", "/v1/runs"):
            assert api.get(path, headers={"Authorization": f"Bearer {mine}"}).status_code == 403


def test_a_workspace_that_is_no_archive_fails_the_run_by_name(
    client: SyncClient, model: ScriptedModel, running: ServerProcess
) -> None:
    with api_of(running) as api:
        digest = api.post("/v1/workspaces", content=b"no archive at all" * 100).json()["digest"]
        link = io.BytesIO()
        with tarfile.open(fileobj=link, mode="w") as archive:
            member = tarfile.TarInfo("../../outside")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
        hostile = api.post("/v1/workspaces", content=link.getvalue()).json()["digest"]
    for each in (digest, hostile):
        run = client.runs.wait(launch(client, model, [], workspace=each))
        assert run.status == "failed"
        assert run.error is not None
        assert run.ended_by == "launch"


@pytest.mark.anyio
async def test_the_async_client_does_the_same(client: SyncClient, model: ScriptedModel, running: ServerProcess) -> None:
    model.script([text("Done.")])
    async with Client(running.url, api_key=running.api_key) as aclient:
        launched = await aclient.runs.launch("do it", agent="pi", model="scripted", labels={"a": "b"}, title="Mine")
        assert (await aclient.runs.wait(launched.run)).status == "completed"
        info = await aclient.threads.get(launched.thread)
        assert (info.title, info.labels) == ("Mine", {"a": "b"})
        found = [each.id async for each in aclient.runs.list(agent="pi", status="completed", limit=1)]
        assert len(found) == 1


def test_a_refused_field_is_told_in_plain_words(client: SyncClient) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.runs.launch("a\0b", agent="pi", model="scripted")
    assert str(refused.value).startswith("prompt: must not contain a NUL")


def test_a_run_ends_when_its_time_is_over_and_goes_on_when_asked(client: SyncClient, model: ScriptedModel) -> None:
    thread = launch(client, model, [bash("exec sleep 600", text="I wait."), text("Never said.")], timeout=3)
    run = client.runs.wait(thread)
    assert (run.status, run.error and run.error.code) == ("failed", "timed_out")
    assert run.error is not None
    assert run.error.message == "the run took longer than its timeout of 3 s"
    assert (run.error.hint or "").startswith(f"continue with holdfast resume {thread};")
    assert len(ends(client, thread)) == 1
    assert run.box is not None
    with client.boxes.open(run.box) as box:
        assert b"sleep 600" not in box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    # The next one has the same time, unless told otherwise.
    model.script([bash("exec sleep 600"), text("Never said.")])
    client.runs.resume(thread, "go on")
    assert getattr(client.runs.wait(thread).error, "code", None) == "timed_out"
    model.script([bash("sleep 4"), text("Done at last.")])
    client.runs.resume(thread, "go on", timeout=0)
    assert client.runs.wait(thread).status == "completed"
