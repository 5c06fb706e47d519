"""Services of an environment: real processes in real boxes, beside the real pi."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.environments.conftest import Scene
from tests.environments.test_runs import entries, run

from holdfast.api.box.process import ProcessInfo, ProcessState
from holdfast.api.box.records import BoxState
from holdfast.api.box.sync import SyncBox
from holdfast.api.environments import Service
from holdfast.boxes.marked_processes import name_in, unwanted
from holdfast.runs.launch.services import MARK, argv_of
from holdfast.testing.model.steps import text

PAGE = """\
setup = ["echo served > /workspace/page"]

[services.web]
command = "echo begins as $WHO; exec python3 -u -m http.server 8123 --bind 127.0.0.1"
ready = 8123
environment = { WHO = "somebody" }
"""
ASK = (
    'python3 -c \'import http.client as h; c = h.HTTPConnection("127.0.0.1", 8123); c.request("GET", "/page");'
    " print(c.getresponse().read())'"
)


def services_of(scene: Scene, thread: str) -> list[dict[str, Any]]:
    return [each["services"] for each in entries(scene, thread, "signal.run.services")]


def running_in(box: SyncBox) -> list[str]:
    return [each.id for each in box.processes() if each.state is ProcessState.RUNNING]


def again(scene: Scene, thread: str) -> None:
    scene.model.script([text("More.")])
    done = scene.client.runs.wait(scene.client.runs.resume(thread, "go on").run)
    assert done.status == "completed", done.error


def test_a_service_is_ready_before_the_agent_and_is_started_again_only_in_a_fresh_box(scene: Scene) -> None:
    scene.client.environments.save("served", PAGE)
    thread, printed = run(scene, ASK, environment="served")
    assert "served" in printed
    [first] = services_of(scene, thread)
    box = scene.client.runs.get(thread).box or ""
    with scene.client.boxes.open(box) as handle:
        output = handle.process(first["web"]).read()
    assert output.startswith(b"begins as somebody\n")
    assert b"GET /page" in output, "errors are in the output too"
    again(scene, thread)
    assert services_of(scene, thread) == [first, first], "it was running"
    scene.client.boxes.stop(box)
    again(scene, thread)
    assert scene.client.runs.get(thread).box == box
    last = services_of(scene, thread)[-1]
    assert last["web"] != first["web"]
    until = time.monotonic() + 240
    with scene.client.boxes.open(box) as handle:
        while (running := running_in(handle)) != [last["web"]]:
            assert time.monotonic() < until, running  # the runner ends a moment after its run
            time.sleep(0.05)


def test_a_port_that_a_service_listens_on_does_not_keep_its_box_awake(scene: Scene) -> None:
    file = "\n".join(PAGE.splitlines()[2:])
    thread, _ = run(scene, "true", environment_file=file, box={"idleSeconds": 1})
    box, [first] = scene.client.runs.get(thread).box or "", services_of(scene, thread)
    until = time.monotonic() + 240
    while (state := scene.client.boxes.get(box).state) is not BoxState.HIBERNATED:
        assert time.monotonic() < until, state
        time.sleep(0.1)
    again(scene, thread)
    assert scene.client.runs.get(thread).box == box
    assert services_of(scene, thread)[-1] != first


@pytest.mark.parametrize(
    ("service", "told"),
    [
        ('command = "echo the reason >&2; exit 4"', "service db ended with 4 before it was ready\nthe reason"),
        ('command = "echo away; sleep 900 &"', "service db ended with 0 before it was ready\naway"),
        (
            'command = "echo waiting; sleep 900"\nready = 8199\ntimeout = 1',
            "service db was not ready within 1 s: nothing listens on port 8199\nwaiting",
        ),
        (
            'command = "sleep 900"\nready = "echo no; false"\ntimeout = 1',
            "service db was not ready within 1 s: its check does not end with 0",
        ),
    ],
)
def test_a_service_that_is_not_ready_ends_the_launch_with_its_last_lines(scene: Scene, service: str, told: str) -> None:
    file = f'[services]\nother = "exec sleep 900"\n[services.db]\n{service}\n'
    launched = scene.client.runs.launch("x", agent="pi", model="scripted", environment_file=file)
    done = scene.client.runs.wait(launched.run)
    assert done.status == "failed"
    assert done.error is not None
    assert (done.error.code, done.error.message) == ("service_failed", told)
    box = done.box or ""
    assert f"holdfast box logs {box} p-" in (done.error.hint or "")
    with scene.client.boxes.open(box) as handle:
        assert [each for each in handle.processes() if each.state is ProcessState.RUNNING] == []


def test_a_service_with_another_command_replaces_the_one_that_runs(scene: Scene) -> None:
    thread, _ = run(scene, "true", environment_file='[services]\na = "exec sleep 900"\nb = "exec sleep 901"\n')
    [first] = services_of(scene, thread)
    scene.model.script([text("More.")])
    other = '[services]\na = "exec sleep 900"\nb = "exec sleep 902"\n'
    launched = scene.client.runs.launch("go on", agent="pi", model="scripted", environment_file=other, thread=thread)
    assert scene.client.runs.wait(launched.run).status == "completed"
    last = services_of(scene, thread)[-1]
    assert (first["a"] == last["a"], first["b"] == last["b"]) == (True, False)
    with scene.client.boxes.open(scene.client.runs.get(thread).box or "") as handle:
        states = {each.id: each.state for each in handle.processes()}
    assert states[first["b"]] is ProcessState.EXITED


def test_branches_are_tested_with_their_services(scene: Scene) -> None:
    scene.client.environments.save("tested-served", f"test = '''{ASK}'''\n{PAGE}")
    thread, _ = run(scene, "true", environment="tested-served")
    scene.model.script([text("Done.")])
    forked = scene.client.forks.fork(thread, 1, prompt="otherwise")
    scene.client.runs.wait(forked.run or "")
    compared = scene.client.forks.compare(thread, forked.thread)
    assert [(each.test.exit_code, each.test.output) for each in compared.branches if each.test] == [
        (0, "b'served\\n'\n"),
        (0, "b'served\\n'\n"),
    ]


# --- decisions ---


def process(argv: tuple[str, ...], state: ProcessState = ProcessState.RUNNING) -> ProcessInfo:
    return ProcessInfo(f"p-{len(argv[-1])}", argv, False, state, None, 0, None)


def test_a_service_is_known_by_its_name_command_and_variables() -> None:
    service = Service(name="db", command="run")
    assert name_in(argv_of(service), MARK) == "db"
    others = (
        Service(name="db", command="walk"),
        Service(name="db", command="run", environment={"A": "a"}),
        Service(name="dc", command="run"),
    )
    assert len({argv_of(service), *map(argv_of, others)}) == 4
    assert argv_of(service) == argv_of(Service(name="db", command="run", port=1, seconds=5))
    running = process(argv_of(service))
    wanted = {argv_of(each) for each in others}
    assert unwanted([running], MARK, {argv_of(service)}) == []
    assert unwanted([running], MARK, wanted) == [running.id]
    assert unwanted([running], "another-kind", wanted) == []
    assert unwanted([process(argv_of(service), ProcessState.EXITED)], MARK, wanted) == []
    assert unwanted([process(("sh", "-c", MARK, "other")), process(("sleep", "1"))], MARK, ()) == []
