"""Fork, rewind and compare over HTTP: a real server, real boxes, the real agents. Only the model is scripted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import pytest
from tests.agents import InstalledAgents
from tests.harnesses.test_rebuilt_twice import conversation, without_ids
from tests.serving import add_models, serving_agents

from holdfast.api.thread.entries import Entry
from holdfast.client import Conflict, HoldfastError, NotFound, SyncClient
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.model.gates import Gate
from holdfast.testing.model.requests import Said
from holdfast.testing.model.steps import held
from holdfast.testing.server import ServerProcess

KEY = "sk-of-the-model"
MODELS = {"pi": "chat", "claude": "anthropic", "codex": "responses", "opencode": "chat"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[ServerProcess]:
    with serving_agents(tmp_path_factory.mktemp("forks") / "home", installed_agents, *MODELS) as server:
        yield server


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=KEY) as model:
        yield model


@pytest.fixture
def client(running: ServerProcess, model: ScriptedModel) -> Iterator[SyncClient]:
    with SyncClient(running.url, api_key=running.api_key) as client:
        add_models(client, model, KEY)
        yield client


def turn(client: SyncClient, model: ScriptedModel, number: int, thread: str | None = None, agent: str = "pi") -> str:
    """A turn that changes files by shell only, as no agent's own rewind notices."""
    # Not by `rm -f`, which codex refuses to run.
    gone = f"test ! -e gone-{number} || unlink gone-{number}"
    command = f"echo {number} > state; echo {number} >> log; {gone}; echo x > gone-{number + 1}"
    model.script([bash(command, text=f"Working on {number}."), text(f"Done with {number}.")])
    prompt = f"do {number}"
    if thread is None:
        launched = client.runs.launch(prompt, agent=agent, model=MODELS[agent])
    else:
        launched = client.runs.resume(thread, prompt)
    run = client.runs.wait(launched.run)
    assert run.status == "completed", run.error
    return launched.thread


def turns(client: SyncClient, model: ScriptedModel, count: int, agent: str = "pi") -> str:
    thread = turn(client, model, 1, agent=agent)
    for number in range(2, count + 1):
        turn(client, model, number, thread, agent)
    return thread


def files(client: SyncClient, thread: str) -> dict[str, str]:
    with client.boxes.open(box_of(client, thread)) as box:
        return {each.name: box.files.read(each.name).decode() for each in box.files.list()}


def box_of(client: SyncClient, thread: str) -> str:
    return next(box.id for box in client.boxes.list() if box.key == f"thread/{thread}")


def at(number: int) -> dict[str, str]:
    """The files after a turn."""
    log = "".join(f"{each}\n" for each in range(1, number + 1))
    return {"state": f"{number}\n", "log": log, f"gone-{number + 1}": "x\n"}


@pytest.mark.parametrize("agent", MODELS)
def test_a_fork_sends_the_model_the_turns_up_to_there_once_and_in_order(
    client: SyncClient, model: ScriptedModel, agent: str
) -> None:
    thread = turns(client, model, 3, agent)
    requests = [conversation(each) for each in model.main_requests]
    assert len(requests) == 6
    third = requests[4]
    """What the model was sent for turn 3: the two turns before, and its prompt."""
    model.script([text("Otherwise.")])
    forked = client.forks.fork(thread, 2, prompt="do 3")
    assert forked.run is not None
    run = client.runs.wait(forked.run)
    assert (run.status, run.files, run.session) == ("completed", "checkpoint", "rebuilt"), run.error
    sent = conversation(model.main_requests[-1])
    assert len(model.main_requests) == 7
    assert without_ids(sent) == without_ids(third)
    assert [each.text for each in sent if isinstance(each, Said)] == [
        *("do 1", "Working on 1.", "Done with 1."),
        *("do 2", "Working on 2.", "Done with 2."),
        "do 3",
    ]
    assert files(client, thread) == at(3)
    assert files(client, forked.thread) == at(2)
    assert client.thread(forked.thread).info().fork_of is not None


def test_a_rewind_brings_back_files_and_conversation_and_can_be_undone(
    client: SyncClient, model: ScriptedModel
) -> None:
    thread = turns(client, model, 3)
    done = client.forks.rewind(thread, 1)
    assert (done.turn, done.can_undo) == (1, True)
    assert files(client, thread) == at(1)
    assert [each.rewound for each in client.forks.turns(thread)] == [False, True, True]
    assert client.forks.undo(thread).turn == 3
    assert files(client, thread) == at(3)
    client.forks.rewind(thread, 2)
    model.script([text("Otherwise.")])
    run = client.runs.wait(client.runs.resume(thread, "do it otherwise").run)
    assert run.turn == 4
    said = [each.text for each in conversation(model.main_requests[-1]) if isinstance(each, Said)]
    assert said == [
        *("do 1", "Working on 1.", "Done with 1."),
        *("do 2", "Working on 2.", "Done with 2."),
        "do it otherwise",
    ]
    changes = {each.path for each in client.runs.changes(thread).files}
    assert changes == set(at(2))


def test_a_thread_with_a_run_in_progress_is_not_rewound(client: SyncClient, model: ScriptedModel) -> None:
    thread = turn(client, model, 1)
    gate = Gate("start")
    model.script([held(text("Slowly."), gate)])
    launched = client.runs.resume(thread, "slowly")
    gate.wait_reached()
    with pytest.raises(Conflict) as busy:
        client.forks.rewind(thread, 1)
    assert busy.value.code == "thread_busy"
    forked = client.forks.fork(thread, 1)
    assert files(client, forked.thread) == at(1), "the turns before it can be forked meanwhile"
    gate.release()
    client.runs.wait(launched.run)


def test_two_branches_are_compared_where_they_part(client: SyncClient, model: ScriptedModel) -> None:
    thread = turns(client, model, 2)
    model.script([bash("echo other > state"), text("Otherwise.")])
    forked = client.forks.fork(thread, 1, prompt="otherwise")
    client.runs.wait(forked.run or "")
    compared = client.forks.compare(thread, forked.thread, test="cat state; touch by-the-test; test -e gone-3")
    assert (compared.parted.thread, compared.parted.turn) == (thread, 1)
    assert compared.test == "cat state; touch by-the-test; test -e gone-3"
    ours, theirs = compared.branches
    assert {each.path for each in ours.files} == {"state", "log", "gone-2", "gone-3"}
    assert {each.path for each in theirs.files} == {"state"}
    assert (ours.turns, theirs.turns) == (1, 1)
    assert ours.test is not None
    assert theirs.test is not None
    assert (ours.test.exit_code, ours.test.output) == (0, "2\n")
    assert (theirs.test.exit_code, theirs.test.output) == (1, "other\n")
    assert "by-the-test" not in files(client, thread), "tests run in a copy"
    tree = client.tasks.tree(forked.thread)
    assert [(each.id, each.fork_of) for each in tree.threads] == [(thread, None), (forked.thread, thread)]
    alone = turn(client, model, 1)
    with pytest.raises(Conflict) as refused:
        client.forks.compare(thread, alone)
    assert refused.value.code == "not_related"


def test_programs_that_run_on_do_not_keep_a_turn_from_being_saved(client: SyncClient, model: ScriptedModel) -> None:
    thread = turn(client, model, 1)
    with client.boxes.open(box_of(client, thread)) as box:
        box.spawn(["sleep", "300"])
        turn(client, model, 2, thread)
        forked = client.forks.fork(thread)
        assert files(client, forked.thread) == at(2)
        assert "sleep 300" in box.exec(["ps", "-eo", "args"]).text, "the program is still there"


def test_what_cannot_be_forked_is_refused_by_name(client: SyncClient, model: ScriptedModel) -> None:
    model.script([text("Done.")])
    thread = client.runs.launch("do it", agent="pi", model="chat", checkpoints="off").thread
    client.runs.wait(thread)
    with pytest.raises(Conflict) as refused:
        client.forks.fork(thread)
    assert refused.value.code == "no_checkpoint"
    assert "checkpoints were off" in refused.value.message
    with pytest.raises(NotFound) as missing:
        client.forks.fork(thread, 7)
    assert missing.value.code == "turn_not_found"
    with pytest.raises(HoldfastError, match="invalid checkpoint policy"):
        client.runs.launch("do it", agent="pi", model="chat", checkpoints="sometimes")


def test_a_forged_checkpoint_restores_nothing(client: SyncClient, model: ScriptedModel) -> None:
    """A key writes the entry of a checkpoint that names the snapshot of another thread."""
    victim = turn(client, model, 1)
    theirs = client.forks.turns(victim)[0].snapshot
    model.script([text("Done.")])
    thread = client.runs.launch("do it", agent="pi", model="chat", checkpoints="off").thread
    run = client.runs.wait(thread)
    forged = {"type": "signal.thread.checkpoint", "run": run.id, "turn": 1, "offset": 1, "snapshot": theirs}
    forged |= {"provider": "local", "image": None, "size": 1, "ms": 1}
    with pytest.raises(HoldfastError, match="reserved"):
        client.thread(thread).append(Entry(f"checkpoint-{run.id}", 1, forged))
    copied = next(iter(client.thread(victim).entries(types="signal.thread.checkpoint"))).payload
    client.thread(thread).append({**copied, "run": run.id})
    client.thread(thread).append(forged)
    with pytest.raises(Conflict) as refused:
        client.forks.fork(thread)
    assert refused.value.code == "no_checkpoint"


# --- killed servers ---


def wait_for(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def begin(running: ServerProcess, model: ScriptedModel, thread: str, operation: str) -> Thread:
    """Start an operation with a client of its own, which may see the server die."""

    def work() -> None:
        with (
            suppress(HoldfastError, AssertionError),
            SyncClient(running.url, api_key=running.api_key, retry_seconds=0.1) as client,
        ):
            match operation:
                case "checkpoint":
                    turn(client, model, 3, thread)
                case "fork":
                    client.forks.fork(thread, 2)
                case "rewind":
                    client.forks.rewind(thread, 1)

    working = Thread(target=work)
    working.start()
    return working


def test_a_rewind_that_is_repeated_after_its_server_was_killed_is_done_once(
    client: SyncClient, model: ScriptedModel, running: ServerProcess
) -> None:
    thread = turns(client, model, 2)

    def rewind() -> None:
        with suppress(HoldfastError), SyncClient(running.url, api_key=running.api_key, retry_seconds=0.1) as mortal:
            mortal.forks.rewind(thread, 1, key="mine")

    def rewinds(client: SyncClient) -> int:
        return len(list(client.thread(thread).entries(types="signal.thread.rewound")))

    working = Thread(target=rewind)
    working.start()
    wait_for(lambda: rewinds(client) == 1, "the rewind never came to the thread")
    running.kill()
    running.start()
    working.join()
    with SyncClient(running.url, api_key=running.api_key) as again:
        assert again.forks.rewind(thread, 1, key="mine").turn == 1
        assert rewinds(again) == 1
        assert files(again, thread) == at(1)
        assert again.forks.undo(thread).turn == 2, "the undo is that of the whole work"
        assert files(again, thread) == at(2)


@pytest.mark.sampled(share=0.25)
@pytest.mark.parametrize("delay", [0, 0.02, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("operation", ["checkpoint", "fork", "rewind"])
def test_a_server_killed_at_any_moment_loses_and_doubles_nothing(
    client: SyncClient, model: ScriptedModel, running: ServerProcess, operation: str, delay: float
) -> None:
    thread = turns(client, model, 2)
    working = begin(running, model, thread, operation)
    if operation == "checkpoint":
        wait_for(lambda: client.runs.get(thread).turn == 3, "the turn never began")
        wait_for(lambda: not client.runs.get(thread).live, "the turn never ended")
    time.sleep(delay)
    running.kill()
    running.start()
    working.join()
    with SyncClient(running.url, api_key=running.api_key) as again:
        wait_for(lambda: not again.runs.get(thread).live, "the run never ended")
        latest = again.runs.get(thread)
        assert latest.turn in {"checkpoint": (3,), "fork": (2,), "rewind": (1, 2)}[operation]
        forked = again.forks.fork(thread)  # settles what the killed server left
        assert files(again, forked.thread) == at(latest.turn)
        entries = list(again.thread(thread).entries())
        assert len({each.id for each in entries}) == len(entries)
        saved = [each.payload["run"] for each in entries if each.type == "signal.thread.checkpoint"]
        assert len(saved) == len(set(saved)) == max(2, latest.turn)
        model.script([text("Gone on.")])
        run = again.runs.wait(again.runs.resume(thread, "go on").run)
        assert run.status == "completed", run.error
        assert files(again, thread) == at(latest.turn)
        assert [box.key for box in again.boxes.list()].count(f"thread/{thread}") == 1
