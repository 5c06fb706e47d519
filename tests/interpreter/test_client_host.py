"""What an interpreter gets of a server by its client: boxes by key, volumes, its thread, a model. On a real server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interpreter.workspaces import Repository
from tests.serving import serving

from holdfast import Client, Interpreter
from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.errors.boxes import BoxConflict, BoxDiffers
from holdfast.api.errors.interpreters import CompletionFailed, RecordUnwritten, WorkspaceConflict
from holdfast.api.model.models import Api
from holdfast.boxes.service.acquire_rules import How
from holdfast.client import RemoteBox, Unreachable
from holdfast.client.local_server import HomeAddress, is_alive, read_running
from holdfast.interpreter import record
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.direct_box import DirectBox
from holdfast.interpreter.host import Host, Record
from holdfast.interpreter.workspace.workspace import FORCED
from holdfast.testing.model import ScriptedModel, error
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio

SPEC = BoxSpec()


@pytest.fixture(scope="module")
def host_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("host") / "home") as server:
        yield server


@pytest.fixture
async def host(host_server: ServerProcess) -> AsyncIterator[ClientHost]:
    host = await ClientHost.of_home(host_server.home)
    yield host
    await host.close()


async def payloads(record: Record, types: tuple[str, ...] = ("interpreter.*",)) -> list[dict[str, Any]]:
    return [dict(each["payload"]) async for each in record.entries(types)]


async def test_the_box_of_a_key_is_made_resumed_and_made_anew(host: ClientHost) -> None:
    seam: Host = host
    made = await seam.acquire("one", SPEC)
    again = await seam.acquire("one", SPEC)
    assert (made.how, again.how, again.box.id) == (How.CREATED, How.RESUMED, made.box.id)
    assert isinstance(made.box, DirectBox)
    await made.box.files.write("kept", b"1")
    fork = await seam.fork(made.box, "one-child")
    assert await fork.files.read("kept") == b"1"
    assert (await seam.acquire("one-child", SPEC)).box.id == fork.id
    with pytest.raises(BoxConflict):
        await seam.fork(made.box, "one")
    fresh = await seam.acquire("one", SPEC, fresh=True)
    assert (fresh.how, fresh.box.id != made.box.id) == (How.CREATED, True)
    for each in (fork, fresh.box):
        await seam.delete(each)


async def test_a_box_of_another_spec_is_told_of_and_stays(host: ClientHost) -> None:
    seam: Host = host
    made = (await seam.acquire("other", SPEC)).box
    with pytest.raises(BoxDiffers, match="memory"):
        await seam.acquire("other", BoxSpec(memory=512 << 20))
    found = await seam.find("other")
    assert found is not None
    assert (found.id, found.spec, await seam.find("nobody")) == (made.id, made.spec, None)
    await seam.delete(made)
    assert await seam.find("other") is None


async def test_an_interpreter_of_another_process_does_not_lose_what_is_in_its_box(
    host: ClientHost, tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "repository")
    repository.commit("first", a_txt="one\n")
    async with Interpreter(id="i-lasting", host=host, repo_url=repository.folder, volume="one") as first:
        await first.execute("open('a.txt', 'w').write('mine')")
    another = Interpreter(id="i-lasting", host=host, repo_url=repository.folder, volume="two")
    with pytest.raises(WorkspaceConflict, match=r"one → two.*a\.txt") as raised:
        await another.start()
    assert "force_new" in (raised.value.hint or "")
    done = await another.configure_workspace(force_new=True)
    assert (done.kind, done.reason) == ("recreated", FORCED)
    assert (await another.execute("open('a.txt').read()")).value == "one\n"
    await another.shutdown(delete=True)


async def test_a_box_knows_the_environment_that_it_was_asked_for_with(host: ClientHost) -> None:
    spec = BoxSpec(env={"SECRET": "s3cret"})
    box = (await host.acquire("env", spec)).box
    fork = await host.fork(box, "env-child")
    assert box.spec.env == fork.spec.env == {"SECRET": "s3cret"}
    assert (await host.acquire("env-child", fork.spec)).box.id == fork.id
    for each in (box, fork):
        await host.delete(each)


async def test_a_server_elsewhere_is_asked_for_everything(host_server: ServerProcess) -> None:
    async with Client(host_server.url, api_key=host_server.api_key) as client:
        host = ClientHost(client)
        box = (await host.acquire("far", SPEC)).box
        assert type(box) is RemoteBox
        assert await box.python()
        await host.delete(box)
        await host.close()
        await client.health()  # which is the caller's, and still open


async def test_a_volume_is_there_after_it_was_asked_for_twice(host: ClientHost) -> None:
    await host.ensure_volume("kept", "local")
    await host.ensure_volume("kept", "local")
    mounted = BoxSpec(volumes=(VolumeMount("kept", "/home/box/memory"),))
    box = (await host.acquire("with-volume", mounted)).box
    await box.files.write("/home/box/memory/a", b"1")
    box = (await host.acquire("with-volume", mounted, fresh=True)).box
    assert await box.files.read("/home/box/memory/a") == b"1"
    await host.delete(box)


async def test_a_thread_is_made_once_and_opened_again(host: ClientHost) -> None:
    made = await host.record(None, title="interpreter", labels={"kind": "interpreter"})
    made.note({"type": "interpreter.started"})
    await made.flush()
    again = await host.record(made.thread, title="other", labels={})
    again.note({"type": "interpreter.ended"})
    await again.flush()
    assert [each["type"] for each in await payloads(again)] == ["interpreter.started", "interpreter.ended"]
    assert (await host.client.threads.get(made.thread)).title == "interpreter"
    named = await host.record("t-chosen", title="mine", labels={})
    assert [each async for each in named.entries(["interpreter.*"])] == []
    assert (named.thread, (await host.client.threads.get("t-chosen")).title) == ("t-chosen", "mine")


async def test_a_thread_that_was_deleted_takes_no_more(host: ClientHost) -> None:
    record = await host.record(None, title="short", labels={})
    record.note({"type": "interpreter.started"})
    await record.flush()
    await host.client.threads.delete(record.thread)
    record.note({"type": "interpreter.ended"})
    with pytest.raises(RecordUnwritten, match=record.thread):
        await record.flush()


async def test_all_of_it_goes_on_after_a_restart_of_the_server(host: ClientHost, host_server: ServerProcess) -> None:
    """A server that was started again has another key."""
    record = await host.record(None, title="restart", labels={})
    box = (await host.acquire("restart", SPEC)).box
    host_server.kill()
    for number in range(20):
        record.note({"type": "interpreter.call", "number": number})
    await box.files.write("meanwhile", b"1")
    host_server.start()
    await record.flush()
    assert [each["number"] for each in await payloads(record)] == list(range(20))
    assert (await box.exec(["cat", "meanwhile"])).stdout == b"1"
    process = await box.spawn(["sh", "-c", "echo spawned"])
    assert await process.wait() == 0
    again = await host.acquire("restart", SPEC)
    assert (again.box.id, again.how) == (box.id, How.RESUMED)
    await host.delete(box)


async def test_a_box_that_a_failed_shutdown_leaves_is_collected(
    host_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_PATIENCE", 0.5)
    client = Client(
        host_server.url, api_key=host_server.api_key, retry_seconds=0.2, find_again=HomeAddress(host_server.home)
    )
    async with client:
        host = ClientHost(client, home=host_server.home)
        interpreter = Interpreter(host=host, spec=BoxSpec(memory=512 << 20, idle_seconds=1))
        await interpreter.start()
        box = interpreter.box.id
        host_server.kill()
        with pytest.raises((Unreachable, RecordUnwritten)):
            await interpreter.shutdown()
        await host.close()
        host_server.start()
        async with await client.boxes.open(box) as left:
            # Its Python ends by itself when nobody was there for a quarter of an hour. That is not waited for here.
            await left.exec(["sh", "-c", "kill -9 -1"])
        async with asyncio.timeout(240):
            while (await client.boxes.get(box)).ended_at is None:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.1)


async def test_a_model_is_asked_through_the_server(host: ClientHost) -> None:
    with ScriptedModel() as model:
        await host.client.models.add("main", apis=[Api.OPENAI_CHAT], base_url=model.url, model="scripted")
        model.answer_sides("forty-two")
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is it?"}]
        said = await host.complete(None, messages, timeout=30)
        assert (said.text, said.model, said.output_tokens > 0) == ("forty-two", "main/scripted", True)
        model.answer_sides(error(400, "no such thing"))
        with pytest.raises(CompletionFailed, match="no such thing"):
            await host.complete("main/other", messages, timeout=30)
        with pytest.raises(CompletionFailed, match="there is no model"):
            await host.complete("nobody", messages, timeout=30)
        await host.client.models.remove("main")


async def test_a_server_is_started_where_none_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    host, other = await asyncio.gather(ClientHost.default(), ClientHost.default())
    running = read_running(tmp_path / "home")
    assert running is not None
    try:
        assert host.client.url == other.client.url == running.url
        record = await host.record(None, title="here", labels={})
        record.note({"type": "interpreter.started"})
        await record.flush()
    finally:
        await host.close()
        await other.close()
        os.kill(running.pid, signal.SIGTERM)
        async with asyncio.timeout(240):
            while is_alive(running.pid):  # noqa: ASYNC110 - it is nobody's child here
                await asyncio.sleep(0.02)


async def test_a_url_of_the_environment_is_used_as_it_is(
    host_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", host_server.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", host_server.api_key or "")
    host = await ClientHost.default()
    assert (host.home, host.client.url) == (None, host_server.url)
    record = await host.record(None, title="by url", labels={})
    assert [each async for each in record.entries(["interpreter.*"])] == []
    await host.close()
