"""The facade, on a real server, in real boxes: what a user gets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.interpreter.places import ALL, Place
from tests.interpreter.workspaces import Repository

from holdfast import Client, Interpreter, SyncInterpreter
from holdfast.api.box.records import Preview
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.boxes import BoxGone
from holdfast.api.errors.interpreters import BudgetExceeded, InvalidInterpreter, ManifestConflict, TooManyChildren
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.replay import replay
from holdfast.interpreter.workspace.volumes import volume_name
from holdfast.interpreter.workspace.workspace import Kind
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
async def py(host: ClientHost, spec: BoxSpec) -> AsyncIterator[Interpreter]:
    async with Interpreter(host=host, spec=spec) as py:
        yield py


@pytest.mark.places(*ALL)
async def test_state_lives_from_call_to_call_and_submit_gives_the_answer(py: Interpreter) -> None:
    py.output_fields = [{"name": "total", "type": "int"}]
    assert (await py.execute("numbers = [1, 2, 3]")).ok
    assert (await py.execute("sum(numbers) + more", {"more": 4})).value == 10
    wrong = await py.execute("SUBMIT(total='many')")
    assert wrong.error is not None
    assert "total must be int" in wrong.error.message
    answer = await py.execute("SUBMIT(total=sum(numbers))")
    assert answer.submitted == {"total": 6}


async def test_a_submission_is_as_large_as_a_call_may_be_and_only_what_was_checked(py: Interpreter) -> None:
    py.output_fields = {"day": date, "text": str}
    answer = await py.execute("SUBMIT(day='2026-02-03', text='x' * 3_000_000)")
    assert answer.submitted == {"day": date(2026, 2, 3), "text": "x" * 3_000_000}
    kernel = "[cell.cell_contents for cell in SUBMIT.__closure__ if hasattr(cell.cell_contents, 'line')][0]"
    forged = await py.execute(f"{kernel}.submitted = ({{'day': 'never'}},)")
    assert forged.submitted is None


@pytest.mark.places(*ALL)
async def test_tools_are_functions_of_this_process_and_may_change(py: Interpreter) -> None:
    seen: list[int] = []

    def keep(number: int) -> int:
        """Keep a number."""
        seen.append(number)
        return len(seen)

    async def doubled(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    py.tools["keep"] = keep
    assert (await py.execute("keep(5) + keep(number=6)")).value == 3
    assert seen == [5, 6]
    assert (await py.execute("keep.__doc__")).value.count("Keep a number.") == 1
    del py.tools["keep"]
    py.tools["doubled"] = doubled
    assert (await py.execute("doubled(21)")).value == 42
    assert (await py.execute("keep(7)")).error is not None
    assert seen == [5, 6]


@pytest.mark.places(*ALL)
async def test_starting_and_shutting_down_twice_is_fine_and_nothing_is_left(host: ClientHost, place: Place) -> None:
    py = Interpreter(host=host, provider=place.name)
    await asyncio.gather(py.start(), py.start(), py.start())
    box = py.box.id
    assert (await py.execute("1 + 1")).value == 2
    await py.start()
    await asyncio.gather(py.shutdown(), py.shutdown())
    await py.shutdown()
    with pytest.raises(BoxGone):
        await host.client.boxes.open(box)
    with pytest.raises(InvalidInterpreter, match="shut down"):
        await py.execute("1")


@pytest.mark.places(*ALL)
async def test_one_with_an_id_goes_on_where_it_was_also_after_the_server_was_killed(
    place: Place, spec: BoxSpec, tmp_path: Path
) -> None:
    with place.serving(tmp_path / "home") as server:
        host = await ClientHost.of_home(server.home)
        async with Interpreter(id="i-mine", host=host, spec=spec) as py:
            await py.execute("kept = {'a': 1}")
            work = asyncio.create_task(py.execute("import time\nkept['b'] = 2\ntime.sleep(0.2)\nkept"))
            server.kill()
            if place.is_local:  # the server is not on the way
                assert (await work).value == {"a": 1, "b": 2}
            server.start()
            assert (await work).value == {"a": 1, "b": 2}
            await py.flush()
        await host.close()
        host = await ClientHost.of_home(server.home)
        async with Interpreter(id="i-mine", host=host, spec=spec) as py:
            assert (await py.execute("kept")).value == {"a": 1, "b": 2}
            assert py.runtime_metadata()["transition"]["kind"] == "resumed"
            told = replay([entry async for entry in py.history()])
            assert [each.ok for each in told.executions] == [True, True, True]
            assert told.starts == 2
            await py.shutdown(delete=True)
        await host.close()


async def test_the_box_of_a_killed_script_does_not_stay(py: Interpreter, host: ClientHost, spec: BoxSpec) -> None:
    assert py.box.spec.lifetime is Lifetime.EPHEMERAL
    async with Interpreter(id="i-kept", host=host, spec=spec) as kept:
        assert kept.box.spec.lifetime is Lifetime.SHARED
        await kept.shutdown(delete=True)


@pytest.mark.places(*ALL)
async def test_a_killed_kernel_is_reported_and_a_new_one_is_there(py: Interpreter) -> None:
    await py.execute("x = 1")
    done = await py.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert done.error is not None
    assert (done.error.kind, done.state_lost) == ("KernelKilled", True)
    assert "lost" in done.text
    gone = await py.execute("x")
    assert gone.error is not None
    assert gone.error.kind == "NameError"
    states = [dict(each["payload"]) async for each in py.history() if each["payload"]["type"] == "interpreter.state"]
    assert [each["what"] for each in states] == ["lost"]


SERVE = """
import socket, threading
def serve():
    while True:
        taken, _ = listener.accept()
        with taken, taken.makefile('rb') as lines:
            path = lines.readline().split()[1].decode()
            while lines.readline().strip(): pass
            body = f'{path.partition("?")[0]} has {len(numbers)} numbers'.encode()
            head = b'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n'
            taken.sendall(head % len(body) + body)
numbers = [1, 2]
listener = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=serve, daemon=True).start()
listener.getsockname()[1]
"""
# By hand, because the Python in Docker's image may be a minimal one, which has no http.server.


def visit(preview: Preview, path: str, *, token: bool = True) -> httpx.Response:
    """What a browser gets. Not every resolver knows that all names below localhost are this machine."""
    url = httpx.URL(preview.url)
    place = url.copy_with(host="127.0.0.1", path=path, query=url.query if token else None)
    headers = {**preview.headers, "host": f"{url.host}:{url.port}"}
    return httpx.get(place, headers=headers, timeout=240, follow_redirects=False)


@pytest.mark.places(*ALL)
async def test_what_its_code_serves_on_a_port_is_at_a_url_with_a_token_for_it(
    py: Interpreter, host: ClientHost
) -> None:
    served = await py.execute(SERVE)
    assert served.ok, served.text
    port = served.value
    preview = await py.preview(port)
    answer = await asyncio.to_thread(visit, preview, "/there")
    assert (answer.status_code, answer.text) == (200, "/there has 2 numbers")
    await py.flush()  # its thread is there, so that others find the interpreter
    found = await host.client.interpreters.preview(py.id, port)
    assert (await asyncio.to_thread(visit, found, "/others")).text == "/others has 2 numbers"
    await py.execute("numbers.append(3)")
    assert (await asyncio.to_thread(visit, preview, "/there")).text == "/there has 3 numbers"
    assert (await asyncio.to_thread(visit, preview, "/", token=False)).status_code == 401
    other = await py.preview(1)
    wrong = Preview(preview.url.partition("?")[0] + "?" + other.url.partition("?")[2])
    assert (await asyncio.to_thread(visit, wrong, "/")).status_code == 401, "a token is for one port"
    assert (await asyncio.to_thread(visit, other, "/")).status_code == 502, "nothing listens there"


@pytest.mark.places("local", "docker")
async def test_more_memory_than_the_box_has_kills_the_kernel_and_the_reason_is_told(
    host: ClientHost, spec: BoxSpec
) -> None:
    async with Interpreter(host=host, spec=replace(spec, memory=256 << 20)) as py:
        done = await py.execute("data = [bytearray(1 << 20) for _ in range(2000)]\nlen(data)")
        assert done.error is not None
        assert done.state_lost or done.error.kind == "MemoryError"
        if done.state_lost:
            assert "ran out of memory" in done.error.message
        assert (await py.execute("1 + 1")).value == 2


@pytest.mark.places(*ALL)
async def test_a_box_that_was_deleted_under_it_is_replaced_and_the_loss_is_said(
    host: ClientHost, py: Interpreter
) -> None:
    await py.execute("x = 1")
    first = py.box.id
    await host.client.boxes.delete(first)
    done = await py.execute("x")
    assert done.error is not None
    assert (done.error.kind, done.state_lost) == ("KernelKilled", True)
    assert (await py.execute("1 + 1")).value == 2
    assert py.box.id != first
    assert py.runtime_metadata()["transition"]["kind"] == "recreated"


@pytest.mark.places(*ALL)
async def test_a_workspace_changes_in_place_and_memory_stays(py: Interpreter, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo")
    first = repository.commit(a_txt="one")
    repository.commit(a_txt="two")
    sales = tmp_path / "sales.csv"
    sales.write_text("amount\n1\n2\n")
    await py.execute("kept = 5")
    done = await py.configure_workspace(repository.folder, context_paths=[sales])
    assert done.kind is Kind.REUSED
    assert (await py.execute("(kept, open('a.txt').read(), open('context/sales.csv').read())")).value == (
        5, "two", "amount\n1\n2\n",
    )  # fmt: skip
    await py.configure_workspace(ref=first)
    assert (await py.execute("(kept, open('a.txt').read())")).value == (5, "one")
    fresh = await py.configure_workspace(force_new=True)
    assert fresh.kind is Kind.RECREATED
    lost = await py.execute("kept")
    assert lost.error is not None
    assert (await py.execute("open('a.txt').read()")).value == "one"


@pytest.mark.places(*ALL)
async def test_branches_begin_with_all_there_is_and_go_their_own_ways(py: Interpreter) -> None:
    await py.execute("data = list(range(100000))\nn = 0")
    branches = await py.fork(3)
    done = await asyncio.gather(*(each.execute(f"n = {k}\nlen(data) + n") for k, each in enumerate(branches)))
    assert [each.value for each in done] == [100000, 100001, 100002]
    assert (await py.execute("n")).value == 0
    await branches[0].shutdown()
    assert (await branches[1].execute("n")).value == 1
    for each in branches[1:]:
        await each.shutdown()


@pytest.mark.places(*ALL)
async def test_a_child_has_a_box_of_its_own_the_same_budget_and_what_it_submits_is_kept(
    host: ClientHost, py: Interpreter
) -> None:
    await py.execute("open('given', 'w').write('from the parent')\nx = 1")
    async with await py.build_child() as child:
        assert child.box.id != py.box.id
        assert child.budget is py.budget
        assert (await child.execute("open('given').read()")).value == "from the parent"
        unknown = await child.execute("x")
        assert unknown.error is not None
        async with await child.build_child() as grandchild:
            boxes = {child.box.id, grandchild.box.id}
            assert (await grandchild.execute("1 + 1")).value == 2
            with pytest.raises(TooManyChildren):
                await grandchild.build_child()
        await child.execute("SUBMIT(answer=42)")
    left = {each.id async for each in host.client.boxes.list()}
    assert not boxes & left
    kept = [dict(each["payload"]) async for each in py.history() if each["payload"]["type"] == "interpreter.child"]
    assert [(each["id"], each["result"], each["status"]) for each in kept] == [(child.id, {"answer": 42}, "ok")]


async def test_a_session_is_saved_on_the_volume_and_goes_on_in_another_box(host: ClientHost, spec: BoxSpec) -> None:
    async with Interpreter(host=host, spec=spec, workspace="shop", user="ada") as py:
        await py.execute("prices = {'tea': 2}\ndef price(n): return prices[n]\nlock = __import__('threading').Lock()")
        saved = await py.save_session("s-1")
        assert "lock" in saved.unsaved
        await py.execute("prices['tea'] = 3")
        await py.save_session("s-1")
        assert py.runtime_metadata()["session_revision"] == 2
        state_files = await py.execute("import os\nlen(os.listdir('/home/box/memory/buffers'))")
        assert state_files.value == 1
    async with Interpreter(host=host, spec=spec, workspace="shop", user="ada") as later:
        await later.execute("mine = 1")
        assert "price" in (await later.load_session("s-1")).names
        assert (await later.execute("price('tea')")).value == 3
        replaced = await later.execute("mine")
        assert replaced.error is not None
        async with Interpreter(host=host, spec=spec, workspace="shop", user="ada") as other:
            await other.load_session("s-1")
            await other.save_session("s-1")
        with pytest.raises(ManifestConflict):
            await later.save_session("s-1")
        path = "meta/workspaces/shop/users/ada/session-s-1.json"
        assert await later.box.files.exists(f"/home/box/memory/{path}")
    async with Interpreter(host=host, spec=spec, workspace="shop", user="grace") as stranger:
        with pytest.raises(InvalidInterpreter, match="no session"):
            await stranger.load_session("s-1")
        forged = (
            '{"format": 1, "session": "s-1", "revision": 1, "savedAt": 1, "content": {"state": {"path": "/etc/x"}}}'
        )
        await stranger.box.files.write(
            "/home/box/memory/meta/workspaces/shop/users/grace/session-s-1.json", forged.encode()
        )
        with pytest.raises((InvalidInterpreter, ManifestConflict)):
            await stranger.load_session("s-1")
    async with Interpreter(host=host, spec=spec) as bare:
        with pytest.raises(InvalidInterpreter, match="volume"):
            await bare.save_session()


async def test_who_looks_on_sees_output_and_entries(py: Interpreter) -> None:
    seen: list[dict[str, Any]] = []
    looking = asyncio.Event()

    async def look() -> None:
        async for event in py.events.follow():
            seen.append(dict(event))
            looking.set()
            if event["type"] == "interpreter.execution" and "ok" in event:
                return

    watching = asyncio.create_task(look())
    await asyncio.sleep(0)  # it has to be there before something happens
    done = await py.execute("print('hello')\n1")
    await watching
    kinds = [each["type"] for each in seen]
    assert kinds == ["interpreter.execution", "interpreter.output", "interpreter.execution"]
    assert (seen[1]["text"], seen[2]["id"]) == ("hello\n", done.id)


async def test_the_thread_replays_what_happened(py: Interpreter) -> None:
    py.tools["ask"] = lambda question: f"answer to {question}"
    await py.execute("x = ask('why')")
    await py.execute("1 / 0")
    await py.execute("SUBMIT(x)")
    told = replay([entry async for entry in py.history()])
    assert [(each.code, each.ok, len(each.calls)) for each in told.executions] == [
        ("x = ask('why')", True, 1),
        ("1 / 0", False, 0),
        ("SUBMIT(x)", True, 1),
    ]
    assert told.executions[0].calls[0].name == "ask"
    assert told.submitted == {"output": "answer to why"}


async def test_a_child_has_only_so_many_iterations(host: ClientHost, spec: BoxSpec) -> None:
    async with Interpreter(host=host, spec=spec, iterations=2) as py:
        await py.execute("1")
        await py.execute("2")
        with pytest.raises(BudgetExceeded, match="iterations"):
            await py.execute("3")


async def test_tenant_and_user_are_those_of_the_key_unless_they_are_given(server: ServerProcess, spec: BoxSpec) -> None:
    async with Client(server.url, api_key=server.api_key) as client:
        key = await client.keys.create("ada")
    host = ClientHost.of_url(server.url, api_key=key.secret)
    async with Interpreter(host=host, spec=spec, workspace="caller") as py:
        assert py.runtime_metadata()["volume"] == volume_name("default", "caller")
        await py.execute("kept = 1")
        await py.save_session("s-1")
        assert py.runtime_metadata()["user"] == "ada"
        assert await py.box.files.exists("/home/box/memory/meta/workspaces/caller/users/ada/session-s-1.json")
    async with Interpreter(host=host, spec=spec, workspace="caller", user="grace", tenant="other") as py:
        assert py.runtime_metadata()["volume"] == volume_name("other", "caller")
        with pytest.raises(InvalidInterpreter, match="no session s-1 of user grace"):
            await py.load_session("s-1")
    await host.close()


async def test_the_sync_twin_works_inside_a_running_loop(
    server: ServerProcess, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(server.home))
    with SyncInterpreter(provider=place.name, tools={"twice": lambda n: 2 * n}) as py:
        assert py.execute("twice(4)").value == 8
        heard: list[bytes] = []
        py.execute("print('x' * 3)", on_output=lambda stream, data: heard.append(data))
        assert b"".join(heard) == b"xxx\n"
        [branch] = py.fork(1)
        assert branch.execute("1 + 1").value == 2
        branch.shutdown()
        with py.build_child(tools={"thrice": lambda n: 3 * n}) as child:
            assert child.execute("thrice(4)").value == 12
        assert len(list(py.history())) > 3
    py.shutdown()


def test_the_twins_have_the_same_surface() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert surface(Interpreter) == surface(SyncInterpreter)
