"""A server that is killed at a step of a checkpoint, a fork or a rewind loses, doubles and leaves nothing.

Real boxes and a real agent. Whoever asked repeats the request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from tests.agents import InstalledAgents
from tests.server.conftest import api_of
from tests.server.mortal_forks import REWOUND, STEPS, fate, outside_of_a_mortal
from tests.server.test_forks import KEY, at, box_of, files, turn, turns, wait_for
from tests.serving import add_models, serving_agents

from holdfast.client import HoldfastError, SyncClient
from holdfast.testing.model import FOR_EVER, ScriptedModel, text
from holdfast.testing.server import ServerFailed, ServerProcess

pytestmark = [pytest.mark.box, pytest.mark.agent]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("fork-kills") / "home"
    with serving_agents(home, installed_agents, "pi", outside=outside_of_a_mortal) as server:
        yield server


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=KEY) as model:
        yield model


def client_of(server: ServerProcess, *, retry_seconds: float = 60.0) -> SyncClient:
    return SyncClient(server.url, api_key=server.api_key, retry_seconds=retry_seconds)


def ask(server: ServerProcess, thread: str, operation: str) -> Any:
    """The same request each time. Raises if the server dies."""
    path, wanted = {
        "fork": ("forks", {"at": "1", "id": f"{thread}-fork"}),
        "rewind": ("rewind", {"at": "1", "key": "mine"}),
    }[operation]
    with api_of(server) as api:
        answer = api.post(f"/v1/threads/{thread}/{path}", json=wanted, timeout=600)
        return answer.raise_for_status().json()


def is_dead(server: ServerProcess) -> bool:
    try:
        with api_of(server) as api:
            api.get("/health")
    except httpx.TimeoutException:  # it is slow
        return False
    except httpx.TransportError:
        return True
    return False


def strike(server: ServerProcess, model: ScriptedModel, thread: str, operation: str, step: str) -> None:
    """Let the server die at a step, and start the next one."""
    fate(server.home).write_text(step)
    if operation == "checkpoint":
        with suppress(HoldfastError, AssertionError), client_of(server, retry_seconds=0) as mortal:
            turn(mortal, model, 3, thread)
    else:
        with suppress(httpx.TransportError):
            ask(server, thread, operation)
    wait_for(lambda: is_dead(server), "the server never came to that step")
    fate(server.home).unlink()
    with suppress(ServerFailed):  # it has killed itself
        server.kill()
    server.start()


@pytest.mark.sampled(share=0.2)
@pytest.mark.parametrize(("operation", "step"), [(each, step) for each, steps in STEPS.items() for step in steps])
def test_a_server_killed_at_a_step_loses_doubles_and_leaves_nothing(
    running: ServerProcess, model: ScriptedModel, operation: str, step: str
) -> None:
    with client_of(running) as client:
        add_models(client, model, KEY)
        thread = turns(client, model, 2)
        wait_for(lambda: all(each.snapshot for each in client.forks.turns(thread)), "the turns were never saved")
    strike(running, model, thread, operation, step)
    with client_of(running) as client:
        wait_for(lambda: not client.runs.get(thread).live, "the run never ended")
        turn_now, expected = 3 if operation == "checkpoint" else 2, {f"thread/{thread}"}
        if operation == "fork":
            assert ask(running, thread, "fork")["thread"] == f"{thread}-fork"
            expected.add(f"thread/{thread}-fork")
            assert files(client, f"{thread}-fork") == at(1)
        if operation == "rewind":
            entries = list(client.thread(thread).entries(types="signal.thread.rewound"))
            assert len(entries) == int(step in REWOUND), "before it is asked for again"
            done = ask(running, thread, "rewind")
            assert (done["turn"], done["box"]) == (1, box_of(client, thread))
            assert len(list(client.thread(thread).entries(types="signal.thread.rewound"))) == 1
            assert files(client, thread) == at(1)
            assert client.forks.undo(thread).turn == 2
        assert client.runs.get(thread).turn == turn_now
        assert files(client, thread) == at(turn_now)
        model.script([text("Gone on.", times=FOR_EVER)])
        run = client.runs.wait(client.runs.resume(thread, "go on").run)  # settles what the killed server left
        assert run.status == "completed", run.error
        assert files(client, thread) == at(turn_now)
        entries = list(client.thread(thread).entries())
        assert len({each.id for each in entries}) == len(entries)
        saved = [each.payload["run"] for each in entries if each.type == "signal.thread.checkpoint"]
        assert len(saved) == len(set(saved)) >= turn_now, "each turn has one checkpoint"
        mine = [box.key for box in client.boxes.list() if str(box.key).startswith(f"thread/{thread}")]
        assert sorted(map(str, mine)) == sorted(expected)
        taken = [each.labels.get("holdfast.checkpoint") for each in client.boxes.snapshots()]
        of_runs = [each for each in taken if each in saved]
        assert len(of_runs) == len(set(of_runs)), "and one snapshot"
        for each in mine:
            client.boxes.delete(next(box.id for box in client.boxes.list() if box.key == each))
    until_only_live_boxes_are_there(running)


def until_only_live_boxes_are_there(server: ServerProcess) -> None:
    """What the server does not know is removed. It knows the box of a rewind's trial until that has been idle."""
    deadline = time.monotonic() + 180
    while True:
        with client_of(server) as client:
            known = {box.id for box in client.boxes.list()}
        there = {each.name for each in (server.home / "local" / "boxes").iterdir()}
        if there <= known:
            return
        assert time.monotonic() < deadline, there - known
        time.sleep(0.05)
