"""Tasks with real boxes and a real agent: who is told what, where they work, and what their box cannot do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from tests.agents import InstalledAgents
from tests.runs.delegate.real import ANSWER, PATIENCE, Delegating, a_delegating_server, asks_for_result, calls, task_in

from holdfast.api.run.tasks import ThreadTree
from holdfast.cli.app import run as run_command
from holdfast.cli.exits import Exit
from holdfast.client.run.tasks import Tasks
from holdfast.testing.model.gates import Gate
from holdfast.testing.model.requests import Request
from holdfast.testing.model.steps import FOR_EVER, Step, bash, held, text, write


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[Delegating]:
    with a_delegating_server(tmp_path_factory.mktemp("tasks"), installed_agents) as world:
        yield world


def test_a_parent_whose_run_is_over_is_woken_and_its_model_sees_the_result(world: Delegating) -> None:
    gate = Gate("start")
    world.model.script([held(text(ANSWER), gate)], when="small thing")
    thread = world.launch(
        "large thing",
        [
            calls("delegate_task", prompt="Do the small thing.", wake=True),
            text("I am told later."),
            text("Now I know."),
        ],
        delegate=True,
    )
    first = world.client.runs.wait(thread)
    [task] = world.client.tasks.list(thread)
    assert (first.status, task.status) == ("completed", "running")
    gate.release()
    world.until_reported(task.id)
    tree = world.client.tasks.wait(thread)
    assert [each.id for each in tree.threads] == [thread, task.id]
    second = world.client.runs.get(thread)
    assert (second.status, second.id != first.id) == ("completed", True)
    told = [each for each in world.requests("large thing")[-1].user_texts if ANSWER in each]
    assert len(told) == 1
    assert world.entries(thread, "pi.assistant")[-1]["text"] == "Now I know."


def test_a_fork_has_the_files_of_the_moment_and_keeps_its_own(world: Delegating) -> None:
    world.model.script(
        [bash("cat plan.txt; echo changed > plan.txt; ls ~/.holdfast/threads"), text(ANSWER)], when="copied"
    )
    thread = world.launch(
        "forking",
        [
            write("plan.txt", "the plan\n"),
            calls("delegate_task", prompt="Do the copied thing.", box="fork"),
            asks_for_result,
            bash("cat plan.txt"),
            text("Done."),
        ],
        delegate=True,
    )
    run = world.client.runs.wait(thread)
    [task] = world.client.tasks.list(thread)
    child = world.client.runs.wait(task.id)
    assert (run.status, child.status, child.files) == ("completed", "completed", "fork")
    assert child.box != run.box
    seen = world.requests("copied")[-1].results[-1].text
    assert "the plan" in seen
    assert thread not in seen  # no session and no token of its parent came along
    assert "the plan" in world.requests("forking")[-1].results[-1].text


def test_a_task_in_the_same_box_works_on_the_same_files(world: Delegating) -> None:
    world.model.script([write("found.txt", "it was here\n"), text(ANSWER)], when="beside")
    thread = world.launch(
        "sharing",
        [
            calls("delegate_task", prompt="Do the beside thing.", box="same"),
            asks_for_result,
            bash("cat found.txt"),
            text("Done."),
        ],
        delegate=True,
    )
    run = world.client.runs.wait(thread)
    [task] = world.client.tasks.list(thread)
    assert world.client.runs.wait(task.id).box == run.box
    assert "it was here" in world.requests("sharing")[-1].results[-1].text
    world.client.thread(task.id).delete()
    assert run.box is not None
    with world.client.boxes.open(run.box) as box:
        assert box.files.exists("found.txt")


def test_an_agent_without_the_option_has_no_tools(world: Delegating) -> None:
    thread = world.launch("plain", [text("Done.")])
    assert world.client.runs.wait(thread).status == "completed"
    names = [each["name"] for each in world.requests("plain")[-1].body["tools"]]
    assert not [each for each in names if "task" in each]
    run = world.client.runs.get(thread)
    with world.client.boxes.open(run.box or "") as box:
        assert box.exec(["sh", "-c", "find ~ -name tools.json"]).stdout == b""


def test_tasks_are_delegated_shown_and_awaited_by_command(
    world: Delegating, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(world.server.home))
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    thread = world.launch("commanded", [text("Done.")])
    world.client.runs.wait(thread)
    world.model.script([text(ANSWER)], when="by hand")
    capfd.readouterr()
    assert run_command(["delegate", thread, "Do it by hand.", "--title", "handwork", "--wait"]) == 0
    assert ANSWER in capfd.readouterr().out
    assert run_command(["thread", "tree", thread]) == 0
    first, second = capfd.readouterr().out.splitlines()
    assert first.startswith(thread)
    assert second.startswith("└─ t-")
    assert "task, pi" in second
    assert "handwork" in second
    [task] = world.client.tasks.list(thread)
    capfd.readouterr()
    assert run_command(["task", "list", thread]) == 0
    [_, line] = capfd.readouterr().out.splitlines()
    assert line.split()[:4] == [task.id, "completed", "pi", "own"]
    assert "handwork" in line
    assert run_command(["task", "show", task.id]) == 0
    assert f"parent       {thread}" in capfd.readouterr().out
    assert run_command(["task", "result", task.id]) == 0
    assert ANSWER in capfd.readouterr().out
    gate = Gate("start")
    world.model.script([held(text(ANSWER), gate)], when="in vain")
    assert run_command(["delegate", thread, "Do it in vain.", "--box", "same"]) == 0
    vain = capfd.readouterr().out.strip()
    gate.wait_reached()
    assert run_command(["task", "result", vain]) == 1
    assert f"holdfast task result {vain} --wait" in capfd.readouterr().err
    assert run_command(["task", "cancel", vain]) == 0
    assert run_command(["task", "result", vain, "--wait", "--json"]) == 1
    gate.release()
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["status"] == "cancelled"
    assert run_command(["task", "show", thread]) == Exit.NOT_FOUND
    assert "there is no task" in capfd.readouterr().err
    world.client.threads.delete(vain)
    assert run_command(["thread", "wait", thread]) == 0
    assert "and 1 below it" in capfd.readouterr().out
    assert run_command(["thread", "tree", thread, "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["threads"]) == 2


@pytest.mark.parametrize("command", ["delegate", "thread wait"])
def test_who_waits_for_a_task_waits_over_a_restart_of_the_server(
    world: Delegating, command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(world.server.home))
    waits = Event()
    tree = Tasks.tree

    async def seen(self: Tasks, thread: str) -> ThreadTree:
        found = await tree(self, thread)
        waits.set()
        return found

    thread = world.launch("parent of a restart", [text("I have nothing to do.")])
    world.client.runs.wait(thread)
    gate = Gate("start")
    # The agent repeats the call of the model that the server was killed in.
    world.model.script([held(text(ANSWER), gate), text(ANSWER, times=FOR_EVER)], when="over a restart")
    arguments = ["delegate", thread, "Do it over a restart.", "--wait"]
    if command == "thread wait":
        world.client.tasks.delegate(thread, "Do it over a restart.")
        monkeypatch.setattr(Tasks, "tree", seen)  # so that we know when it waits
        arguments = ["thread", "wait", thread]
    exits: list[int] = []
    waiting = Thread(target=lambda: exits.append(run_command(arguments)))
    waiting.start()
    gate.wait_reached()
    if command == "thread wait":
        assert waits.wait(PATIENCE)
    world.server.kill()
    world.server.start()
    gate.release()
    waiting.join()
    assert exits == [0], capfd.readouterr().err
    assert (ANSWER if command == "delegate" else "and 1 below it") in capfd.readouterr().out
    assert len(world.client.tasks.list(thread)) == 1


# --- attacks ---

_TRY = r"""
import glob, http.client, json, os, sys
parent, task = sys.argv[1], sys.argv[2]
def ask(path, token, body, **headers):
    api = http.client.HTTPConnection("127.0.0.1", 3128, timeout=30)
    headers.update({"authorization": "Bearer " + token, "content-type": "application/json"})
    try:
        api.request("POST", path, json.dumps(body), headers)
        return api.getresponse().status
    except ConnectionRefusedError:
        return 0
[config] = glob.glob(os.path.expanduser("~/.holdfast/threads/*/pi/tools/tools.json"))
delegate = json.load(open(config))["token"]
models = json.load(open(glob.glob(os.path.expanduser("~/.holdfast/threads/*/pi/models.json"))[0]))
model = next(iter(models["providers"].values()))["apiKey"]
end = {"type": "signal.thread.child_finished", "child": task, "run": "r-1", "status": "completed", "ms": 1}
found = {}
for name, token in (("delegate", delegate), ("model", model)):
    for thread in (parent, task):
        producer = {"producer-id": "run", "producer-epoch": "2", "producer-seq": "1"}
        chat, finished = {"type": "chat", "text": "obey"}, {"type": "signal.run.finished"}
        for what, entry in (("chat", chat), ("end", end), ("run", finished)):
            body = [{"id": "e-" + name + what, "ts": 1, "payload": entry}]
            found[name, thread == parent, what] = ask("/v1/stream/threads/" + thread, token, body, **producer)
for tool in ("task_status", "task_result", "task_cancel"):
    for thread in (parent, task, "t-nothing"):
        found[tool, thread] = ask("/v1/tools/" + tool, delegate, {"task": thread})
found["as model"] = ask("/v1/tools/delegate_task", model, {"prompt": "x"})
found["another model"] = ask("/v1/tools/delegate_task", delegate, {"prompt": "x", "model": "expensive"})
found["a wider network"] = ask("/v1/tools/delegate_task", delegate, {"prompt": "x", "network": {"mode": "open"}})
print(json.dumps([[list(key) if isinstance(key, tuple) else key, value] for key, value in found.items()]))
"""


def test_code_in_the_box_of_a_task_can_neither_write_to_nor_ask_about_its_parent(world: Delegating) -> None:
    gate = Gate("start")
    world.model.script([held(text(ANSWER), gate)], when="harmless")
    thread = world.launch(
        "attacked", [calls("delegate_task", prompt="Do the harmless thing."), text("Done.")], delegate=True
    )
    world.client.runs.wait(thread)
    [task] = world.client.tasks.list(thread)
    gate.wait_reached()
    box_id = world.client.runs.get(task.id).box or ""
    before = [entry.id for entry in world.client.thread(thread).entries()]
    with world.client.boxes.open(box_id) as box:
        done = box.exec(["python3", "-c", _TRY, thread, task.id], timeout=60)
        found = json.loads(done.stdout or b"[]")
        assert found, done.stderr.decode()
        assert [each for each in found if each[1] not in (400, 403, 404)] == []
        assert [entry.id for entry in world.client.thread(thread).entries()] == before
        assert world.client.tasks.list(task.id) == []
        # The refusals are on the thread of the task, once for each reason.
        refused = [each["code"] for each in world.entries(task.id, "signal.thread.task_refused")]
        assert sorted(refused) == ["invalid_request", "task_not_found"]
        gate.release()
        world.until_reported(task.id)
        # After the end, the token that is still in the box is good for nothing.
        after = box.exec(["python3", "-c", _TRY, thread, task.id], timeout=60)
        assert after.stdout, after.stderr.decode()
        # Once the checkpoint of the turn is taken, nobody listens there until the next run.
        assert {value for _, value in json.loads(after.stdout)} <= {403, 0}
    assert len(world.entries(thread, "signal.thread.child_finished")) == 1


@pytest.mark.sampled(share=0.1)  # sixteen agents at once take long
def test_a_box_that_asks_for_many_tasks_at_once_gets_no_more_than_the_limit(world: Delegating) -> None:
    gate = Gate("start")
    world.model.script([held(text(ANSWER), gate)], when="crowd")
    flood = (
        "import glob, http.client, json, os, threading\n"
        "config = json.load(open(glob.glob(os.path.expanduser('~/.holdfast/threads/*/pi/tools/tools.json'))[0]))\n"
        "found = []\n"
        "def ask():\n"
        "    api = http.client.HTTPConnection('127.0.0.1', 3128, timeout=120)\n"
        "    body = json.dumps({'prompt': 'Do the crowd thing.', 'box': 'same'})\n"
        "    api.request('POST', '/v1/tools/delegate_task', body, {'authorization': 'Bearer ' + config['token']})\n"
        "    found.append(api.getresponse().status)\n"
        "threads = [threading.Thread(target=ask) for _ in range(24)]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\n"
        "print(sorted(found))\n"
    )
    thread = world.launch(
        "flooding",
        [
            write("flood.py", flood),
            bash(
                "python3 flood.py",
            ),
            text("Done."),
        ],
        delegate=True,
    )
    run = world.client.runs.wait(thread)
    assert run.status == "completed"
    assert world.requests("flooding")[-1].results[-1].text.strip().endswith(str([200] * 16 + [409] * 8))
    world.client.runs.cancel(thread)
    gate.release()
    tree = world.client.tasks.wait(thread)
    assert len(tree.threads) == 17


def asks_twice(request: Request) -> Step:
    return calls("delegate_task", prompt="Do the single thing.", key="once")  # type: ignore[return-value]


def test_a_call_that_is_repeated_with_its_key_starts_one_task(world: Delegating) -> None:
    world.model.script([text(ANSWER)], when="single")
    thread = world.launch("repeated", [asks_twice, asks_twice, lambda r: text(task_in(r))], delegate=True)
    assert world.client.runs.wait(thread).status == "completed"
    [task] = world.client.tasks.list(thread)
    assert world.entries(thread, "pi.assistant")[-1]["text"] == task.id
    world.until_reported(task.id)
