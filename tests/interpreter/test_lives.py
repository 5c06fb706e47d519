"""How interpreters begin and end: what is refused early, who ends with whom, and what a reset keeps."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Interpreter, SyncInterpreter
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.interpreter.client_host import ClientHost
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


async def boxes_of(host: ClientHost) -> set[str]:
    return {each.id async for each in host.client.boxes.list()}


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"id": "a/b"}, "a/b"),
        ({"id": "a b"}, "a b"),
        ({"id": ""}, "''"),
        ({"id": ".."}, ".."),
        ({"id": "é"}, "é"),
        ({"id": "x" * 200}, "xxx"),
        ({"memory": -1}, "-1"),
        ({"memory": 0}, "0"),
        ({"memory": 4096}, "4096"),
        ({"timeout": -1}, "-1"),
        ({"timeout": 0}, "0"),
        ({"timeout": float("nan")}, "nan"),
        ({"output_limit": -5}, "-5"),
        ({"iterations": -1}, "-1"),
        ({"depth": -1}, "-1"),
        ({"restore": "spoon"}, "spoon"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInterpreter) as refused:
        Interpreter(**options)
    assert named in refused.value.message
    assert refused.value.hint


async def test_ids_as_the_server_takes_them_are_found_again(host: ClientHost, spec: BoxSpec) -> None:
    for id in ("a-b_C9", "x" * 100):
        async with Interpreter(id=id, host=host, spec=spec) as py:
            await py.execute("kept = 1")
        async with Interpreter(id=id, host=host, spec=spec, keep=False) as py:
            assert (await py.execute("kept")).value == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"timeout": -1}, "-1"),
        ({"timeout": float("nan")}, "nan"),
        ({"id": "a/b"}, "a/b"),
        ({"id": ""}, "''"),
        ({"variables": {"__builtins__": {}}}, "__builtins__"),
        ({"variables": {"SUBMIT": 1}}, "SUBMIT"),
        ({"variables": {"price": 1}}, "price"),
        ({"variables": {"class": 1}}, "class"),
        ({"variables": {"a b": 1}}, "a b"),
        ({"variables": {3: 1}}, "3"),
        ({"variables": {"lock": threading.Lock()}}, "lock"),
    ],
)
@pytest.mark.places("local")
async def test_an_execution_that_cannot_be_is_refused_before_it_begins(
    host: ClientHost, given: dict[str, Any], named: str
) -> None:
    py = Interpreter(host=host, tools={"price": len})
    with pytest.raises(InvalidInterpreter) as refused:
        await py.execute("1", **given)
    assert named in refused.value.message
    assert py.runtime_metadata()["started"] is False


@pytest.mark.places("local")
async def test_a_model_that_there_is_not_is_refused_when_it_starts(host: ClientHost) -> None:
    before = await boxes_of(host)
    py = Interpreter(host=host, model="nope")
    with pytest.raises(InvalidInterpreter, match="nope") as refused:
        await py.start()
    assert refused.value.hint
    assert await boxes_of(host) == before, "no box was made for it"
    await py.shutdown()


TWO_LOOPS = """\
import asyncio
from holdfast import Interpreter
from holdfast.api.errors.interpreters import InvalidInterpreter
py = Interpreter()
async def within(work):
    return await asyncio.wait_for(work, 30)
asyncio.run(within(py.execute("x = 1")))
for work in (lambda: py.execute("x"), py.fork, py.reset, py.interrupt, py.export_state, py.shutdown):
    try:
        asyncio.run(within(work()))
    except InvalidInterpreter as error:
        print(error.message)
"""


def run_script(server: ServerProcess, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOLDFAST_HOME": str(server.home)}
    environment.pop("HOLDFAST_URL", None)
    argv = [sys.executable, "-c", script, *arguments]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.places("local")
def test_one_that_is_used_over_two_event_loops_says_so(server: ServerProcess) -> None:
    done = run_script(server, TWO_LOOPS)
    assert done.stdout.count("belongs to another event loop") == 6, done.stderr


# --- who ends with whom ---


async def test_children_and_branches_end_with_their_parent(host: ClientHost, spec: BoxSpec) -> None:
    before = await boxes_of(host)
    async with Interpreter(host=host, spec=spec, id="parent-of-some") as py:
        child = await py.build_child()
        grandchild = await child.build_child()
        [branch] = await py.fork()
        assert len(await boxes_of(host) - before) == 3
        for each in (child, grandchild, branch):
            assert (await each.execute("1 + 1")).value == 2
    assert len(await boxes_of(host) - before) == 1, "its own is kept, for it has an id"
    for each in (child, grandchild, branch):
        with pytest.raises(InvalidInterpreter, match="shut down"):
            await each.execute("1")
    async with Interpreter(host=host, spec=spec, id="parent-of-some", keep=False) as again:
        assert again._runtime.kernel is not None
        assert [each.id for each in await again._runtime.kernel.contexts() if each.pid is not None] == ["main"]
    assert await boxes_of(host) == before


async def test_the_box_of_a_child_is_reaped_when_nobody_is_left_who_knows_of_it(
    host: ClientHost, spec: BoxSpec
) -> None:
    for each in (spec, replace(spec, lifetime=Lifetime.EPHEMERAL, idle_seconds=900)):
        async with Interpreter(host=host, id="a-kept-parent", keep=False, spec=each) as py:
            child = await py.build_child()
            record = await host.client.boxes.get(child.box.id)
            assert record.spec.lifetime is Lifetime.EPHEMERAL
            assert record.spec.idle_seconds is not None
            assert record.spec.idle_seconds <= 900


SCRIPT = """\
import sys
from holdfast import SyncInterpreter
py = SyncInterpreter()
py.execute("x = 1")
print(py.runtime_metadata()["box"], flush=True)
if sys.argv[1] == "dropped":
    import gc
    del py
    gc.collect()
elif sys.argv[1] == "raised":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["forgotten", "dropped", "raised"])
@pytest.mark.places("local")
def test_a_sync_one_without_with_takes_its_box_along(server: ServerProcess, how: str) -> None:
    done = run_script(server, SCRIPT, how)
    assert done.returncode == (3 if how == "raised" else 0), done.stderr
    box = done.stdout.strip()
    assert box.startswith("b-"), done.stderr

    async def there() -> set[str]:
        host = await ClientHost.of_home(server.home)
        try:
            return await boxes_of(host)
        finally:
            await host.close()

    assert box not in asyncio.run(there())


@pytest.mark.places("local")
def test_a_branch_of_a_sync_one_keeps_it(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(server.home))
    [branch] = SyncInterpreter().fork()
    try:
        assert branch.execute("1 + 1").value == 2
    finally:
        branch.shutdown()


@pytest.mark.places("local")
def test_a_sync_one_shows_its_box_and_its_events(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(server.home))
    with SyncInterpreter() as py, py.events.follow() as events:
        py.execute("open('left.txt', 'w').write('here')")
        assert py.box.files.read("left.txt") == b"here"
        first = threading.Thread(target=lambda: seen.append(next(events)))
        seen: list[Mapping[str, Any]] = []
        first.start()
        while first.is_alive():
            py.execute("print('hello')")  # it may have been printed before anybody listened
        assert seen[0]["type"].startswith("interpreter.")


# --- reset ---


async def test_a_reset_empties_the_memory_and_keeps_box_files_and_tools(host: ClientHost, spec: BoxSpec) -> None:
    async with Interpreter(host=host, spec=spec, tools={"double": lambda n: n * 2}) as py:
        await py.execute("x = 1; open('kept.txt', 'w').write('kept')")
        box = py.box.id
        await py.reset()
        assert py.box.id == box
        done = await py.execute("'x' in globals(), open('kept.txt').read(), double(4)")
        assert done.value == (False, "kept", 8)
        said = [each["payload"] async for each in py.history()]
        assert {"type": "interpreter.state", "what": "reset"} in said


async def test_a_reset_ends_code_that_runs(host: ClientHost, spec: BoxSpec) -> None:
    began = asyncio.Event()
    async with Interpreter(host=host, spec=spec, tools={"begun": _setter(began)}) as py:
        running = asyncio.create_task(py.execute("x = 1\nbegun()\nwhile True: pass"))
        await asyncio.wait_for(began.wait(), 60)
        await py.reset()
        done = await asyncio.wait_for(running, 60)
        assert done.error is not None
        assert done.state_lost
        assert "reset" in done.error.message
        assert (await py.execute("'x' in globals()")).value is False


@pytest.mark.places("local")
async def test_resetting_one_that_never_started_does_nothing(host: ClientHost) -> None:
    py = Interpreter(host=host)
    await py.reset()
    assert py.runtime_metadata()["started"] is False
    await py.shutdown()


def _setter(event: asyncio.Event) -> Any:
    async def begun() -> None:
        event.set()

    return begun
