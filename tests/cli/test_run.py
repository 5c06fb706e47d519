"""`holdfast run` and its kin, as people and scripts use them: a real agent, in a real box, with a scripted model."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.cli.conftest import Cli
from tests.runs.faulting import marked

from holdfast.api.model.models import Api
from holdfast.cli.demo.sample import FILES
from holdfast.client import SyncClient
from holdfast.testing.model import Gate, ScriptedModel, bash, edit, error, held, text
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.xdist_group("runs of the command line")

RUN = ("run", "--agent", "pi", "--model", "scripted")
OLD, NEW = "discount(reduced, percent)", "discount(total, percent)"


@dataclass(frozen=True)
class World:
    """A server with an agent and a scripted model, and a project to work on."""

    home: Path
    server: ServerProcess
    model: ScriptedModel
    project: Path

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast", *arguments],
            env={**os.environ, "HOLDFAST_HOME": str(self.home), "COLUMNS": "100"},
            **{
                "cwd": self.project,
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                **options,
            },
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def begin(self, prompt: str = "Repair it.", *more: str) -> tuple[int, str, str]:
        return self.run("run", prompt, "--agent", "pi", "--model", "scripted", *more)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("runs")
    home, project = folder / "home", folder / "prices"
    installed_agents.install("pi")
    installed_agents.share_with(home)
    project.mkdir()
    for name, content in FILES.items():
        (project / name).write_text(content)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "1"]):
        subprocess.run(["git", *command], cwd=project, check=True)
    with ScriptedModel() as model, ServerProcess(home) as server:
        with SyncClient(server.url, api_key=server.api_key) as client:
            client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted")
        yield World(home, server, model, project)
        with SyncClient(server.url, api_key=server.api_key) as client:
            for box in client.boxes.list():
                client.boxes.delete(box.id)


def thread_in(output: str) -> str:
    found = re.search(r"t-[a-z0-9]+", output)
    assert found is not None, output
    return found[0]


def test_a_folder_without_git_goes_as_it_is_and_an_agent_can_commit(world: World, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    world.model.script(
        [bash("git init -q . && git add . && git commit -qm first && git log --format=%an:%s"), text("Committed.")]
    )
    with world.start(*RUN, "Commit it.", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert f"  workspace    folder {tmp_path}  1 file: the whole folder, because it is not in a git repository" in err
    assert "Holdfast agent:first" in out


def test_who_lacks_a_program_is_told_how_to_get_it(world: World, tmp_path: Path) -> None:
    world.model.script([bash("no-such-pytest -q"), text("I could not run the tests.")])
    code, out, err = world.begin("Test it.", "--empty")
    assert code == 0, out + err
    thread = thread_in(out)
    assert "  missing      no-such-pytest is not in the box" in err
    assert f"allow package registries with holdfast resume {thread} --allow default" in err

    world.model.script([bash("echo proxy=$HTTPS_PROXY"), text("Now I can.")])
    code, out, err = world.run("resume", thread, "Again.", "--allow", "default")
    assert code == 0, out + err
    assert "proxy=http" in out, "the box that it had, with a network"
    assert world.run("box", "network", "--json", json_of(world, thread)["box"])[1].count('"mode":"allow"') == 1


def json_of(world: World, thread: str) -> Any:
    with SyncClient(world.server.url, api_key=world.server.api_key) as client:
        return client.runs.get(thread).to_json()


def test_a_model_that_is_not_said_is_refused_before_files_are_packed(world: World, tmp_path: Path) -> None:
    with SyncClient(world.server.url, api_key=world.server.api_key) as client:
        client.models.add("undecided", apis=[Api.OPENAI_CHAT], base_url=world.model.openai_url)
    try:
        code, out, err = world.run("run", "x", "--agent", "pi", "--model", "undecided")
        assert (code, "undecided has no default model" in err) == (2, True), err
        assert "workspace " not in err, "nothing was packed"
        assert "holdfast model add undecided --model MODEL" in err
        listed = world.run("model", "list")[1]
        assert re.search(r"^undecided +no default ", listed, re.M), listed
        code, out, err = world.run("model", "add", "undecided", "--context", "32000")
        assert "undecided has no default model, so each run needs" in err
        assert "holdfast model test" not in out
    finally:
        world.run("model", "remove", "undecided", "--yes")


HOSTILE = r"""
printf '\0\377' > 'b i n'; ln -s /etc/passwd link; : > empty; printf 'no end' > "$(printf 'a\nb')"
printf '#!/bin/sh\n' > run; chmod 755 run; printf 'caf\351\n' > latin; mkdir -p __pycache__; : > __pycache__/x
head -c 3000000 /dev/zero | tr '\0' x > large; rm README.md; mkdir README.md; : > README.md/in
"""


def test_the_patch_of_a_thread_makes_the_files_of_its_box(world: World, tmp_path: Path) -> None:
    world.model.script([bash(HOSTILE), text("Done.")])
    code, out, err = world.begin("Make files.")
    assert code == 0, out + err
    thread = thread_in(out)
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", str(world.project), str(copy)], check=True)
    patch = tmp_path / "patch"
    with patch.open("wb") as output, world.start("diff", thread, stdout=output) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "  ignored      1 new file, excluded by a .gitignore or as caches" in said
    applied = subprocess.run(["git", "apply", str(patch)], cwd=copy, capture_output=True, check=False)
    assert applied.returncode == 0, applied.stderr
    assert (copy / "b i n").read_bytes() == b"\0\xff"
    assert str((copy / "link").readlink()) == "/etc/passwd"
    assert (copy / "empty").read_bytes() == b""
    assert (copy / "a\nb").read_bytes() == b"no end"
    assert (copy / "run").stat().st_mode & 0o100
    assert (copy / "latin").read_bytes() == b"caf\xe9\n"
    assert (copy / "large").stat().st_size == 3_000_000
    assert (copy / "README.md" / "in").exists()
    assert not (copy / "__pycache__").exists()


def test_a_run_is_followed_to_its_end_and_can_be_looked_at_afterwards(world: World) -> None:
    world.model.script(
        [
            bash("python3 -m unittest 2>&1", text="I'll run the tests.\x1b[2J"),
            edit("price.py", OLD, NEW, text="Twice!"),
            text("Fixed."),
        ]
    )
    code, out, err = world.begin("Repair the \x1b[31mtests\x1b[0m.")
    assert code == 0, out + err
    assert f"  workspace    git repository {world.project}  " in err
    lines = out.splitlines()
    thread = thread_in(lines[0])
    assert "local (bubblewrap, seccomp, no network)" in out
    assert "  > Repair the tests." in lines
    assert any(re.match(r"  ● pi \S+ · scripted/scripted", line) for line in lines)
    assert any(re.match(r"    \$ python3 -m unittest 2>&1 +✗ FAILED \(failures=1\) +\d", line) for line in lines)
    assert "    ✎ price.py  +1 −1" in lines
    assert "    Fixed." in lines
    assert re.match(r"  ✓ completed in [\d.]+ (?:ms|s|min \d+ s) · 1 box · \d+ entries", lines[-1])
    assert "\x1b" not in out + err

    code, again, _ = world.run("attach", thread)
    assert code == 0
    assert "    Fixed." in again.splitlines()

    code, patch, _ = world.run("diff", thread)
    assert code == 0
    applied = subprocess.run(["git", "apply", "--check"], cwd=world.project, input=patch, text=True, check=False)
    assert applied.returncode == 0, patch
    assert "✎ price.py  +1 −1" in world.run("diff", thread, "--stat")[1]

    code, told, _ = world.run("thread", "diagnose", thread)
    assert code == 0
    assert "✓ claim" in told

    world.model.script([text("Yes, still here.")])
    code, out, err = world.begin("Are you there?", "--thread", thread)
    assert code == 0, err
    assert "session continued" in out
    assert "    Yes, still here." in out.splitlines()

    world.model.script([text("There was nothing left to do.")])
    code, out, err = world.run("resume", thread, "Anything else?", "--json")
    assert code == 0, err
    *entries, last = map(json.loads, out.splitlines())
    assert (last["thread"], last["status"]) == (thread, "completed")
    assert last["run"].startswith("r-")
    assert entries[0]["payload"]["text"] == "Anything else?"
    assert not any(entry["payload"]["type"].endswith(".delta") for entry in entries)


def test_a_run_that_fails_says_why_and_is_no_success(world: World) -> None:
    world.model.script([error(401, "no such key", times=-1)])
    code, out, _ = world.begin("Fail.", "--empty")
    assert code == 1
    assert re.search(r"^  ✗ failed after ", out, re.M)
    assert "no such key" in out
    world.model.script([error(401, "no such key", times=-1)])
    code, out, _ = world.begin("Fail.", "--empty", "--json")
    assert code == 1
    assert json.loads(out.splitlines()[-1])["status"] == "failed"


def test_one_that_is_left_to_itself_can_be_steered_and_cancelled(world: World) -> None:
    gate = Gate()
    world.model.script([held(text("Thinking."), gate), text("Heard.")])
    code, out, _ = world.begin("Work.", "--empty", "--detach")
    assert code == 0
    thread = out.strip()
    gate.wait_reached()
    code, out, _ = world.run("steer", thread, "And this.", "--json")
    assert code == 0
    assert json.loads(out)["how"] == "queued"
    following = world.start("attach", thread)
    gate.release()
    out, err = following.communicate(timeout=120)
    assert following.returncode == 0, err
    assert [line for line in out.splitlines() if line.startswith("    ")] == ["    Thinking.", "    Heard."]
    assert "  > And this.  (queued)" in out.splitlines()

    gate = Gate()
    world.model.script([held(text("Never."), gate)])
    assert world.run("resume", thread, "Go.", "--detach")[0] == 0
    gate.wait_reached()
    code, out, err = world.run("cancel", thread)
    gate.release()
    assert (code, out.split()[0]) == (0, "cancelled"), err
    code, _, err = world.run("cancel", thread)
    assert code == 0
    assert "had already ended (cancelled)" in err
    code, out, _ = world.run("attach", thread)
    assert code == 1
    assert "  ■ cancelled after " in out


def test_an_interruption_is_followed_into_the_next_run(world: World) -> None:
    gate = Gate()
    world.model.script([held(text("Never."), gate), text("Something else, then.")])
    with world.start("run", "One thing.", "--agent", "pi", "--model", "scripted", "--empty") as following:
        gate.wait_reached()
        assert following.stdout is not None
        thread = thread_in(following.stdout.readline())
        code, out, err = world.run("steer", thread, "Another thing.", "--interrupt")
        assert (code, out.split()[0]) == (0, "interrupting"), err
        out, err = following.communicate(timeout=120)
        gate.release()
    assert following.returncode == 0, out + err
    lines = out.splitlines()
    assert "  > Another thing.  (interrupts)" in lines
    assert any(line.startswith("  ■ interrupted after ") for line in lines)
    assert "    Something else, then." in lines
    assert lines[-1].startswith("  ✓ completed in ")


def test_one_that_is_followed_is_followed_through_a_restart_of_the_server(world: World) -> None:
    gate = Gate()
    # The answer that was on its way is lost with the server's connections: the agent asks again.
    world.model.script([held(text("Before."), gate), text("After.")])
    with world.start("run", "Hold fast.", "--agent", "pi", "--model", "scripted", "--empty") as following:
        gate.wait_reached()
        world.server.restart()
        gate.release()
        out, err = following.communicate(timeout=120)
    assert following.returncode == 0, out + err
    assert "    After." in out.splitlines()


def test_who_watches_loses_and_repeats_nothing_when_the_server_is_restarted(world: World) -> None:
    gate = Gate()
    # The answer that is on its way is lost with the server's connections: the agent asks again.
    world.model.script([bash("echo before-it"), held(text("Never."), gate), text("Afterwards.")])
    code, out, err = world.begin("Hold on tight.", "--empty", "--detach")
    assert code == 0, err
    thread = thread_in(out)
    gate.wait_reached()
    leader, follower = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    with (
        world.start("attach", thread, "--json") as in_a_pipe,
        world.start("attach", thread, **streams, start_new_session=True, text=False) as in_a_terminal,
    ):
        os.close(follower)
        try:
            assert in_a_pipe.stdout is not None
            lines = [in_a_pipe.stdout.readline()]
            while '"pi.tool"' not in lines[-1]:
                assert lines[-1], lines
                lines.append(in_a_pipe.stdout.readline())
            shown = read_until(leader, b"before-it")
            world.server.restart()
            gate.release()
            shown += read_until(leader, None, 120)
            assert in_a_terminal.wait(timeout=240) == 0, shown
            more = in_a_pipe.stdout.read()  # `communicate` would lose what the reading of lines has buffered
            assert in_a_pipe.wait(timeout=240) == 0, more
        finally:
            in_a_pipe.kill()
            in_a_terminal.kill()
            os.close(leader)
    told = [json.loads(line) for line in "".join(lines).splitlines() + more.splitlines()[:-1]]
    assert len({each["id"] for each in told}) == len(told)
    with SyncClient(world.server.url, api_key=world.server.api_key) as client:
        entries = [each.id for each in client.thread(thread).entries() if each.type != "signal.thread.checkpoint"]
    assert [each["id"] for each in told if each["id"] in set(entries)] == entries  # its files are saved after its end
    # What is live is drawn over and over; these lines are not.
    plainly = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert [plainly.count(words) for words in ("> Hold on tight.", "✓ completed in")] == [1, 1], plainly
    assert "Afterwards." in plainly


def test_ctrl_c_leaves_the_run_going_and_says_how_to_come_back(world: World) -> None:
    gate = Gate(at=2)
    world.model.script([held(text("Some words that come live."), gate)])
    arguments = ["run", "Go slow.", "--agent", "pi", "--model", "scripted", "--empty"]
    leader, follower = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    with world.start(*arguments, **streams, start_new_session=True, text=False) as process:
        os.close(follower)
        try:
            shown = read_until(leader, b"Some words that come")
            assert b"Ctrl-C leaves it running" in shown
            assert b"#key=" in shown
            os.kill(process.pid, signal.SIGINT)
            os.kill(process.pid, signal.SIGINT)
            shown += read_until(leader, None)
            assert process.wait(timeout=240) == 130
        finally:
            process.kill()
            os.close(leader)
    thread = thread_in(shown.decode())
    assert f"the run continues on thread {thread}".encode() in shown
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).splitlines()
    assert f"  next         holdfast attach {thread}" in said, "a line of its own, to be copied"
    assert f"               holdfast cancel {thread}" in said
    gate.release()
    code, out, err = world.run("attach", thread)
    assert code == 0, err
    assert "    Some words that come live." in out.splitlines()


def read_until(descriptor: int, words: bytes | None, seconds: float = 60.0) -> bytes:
    """What a terminal gets, until these words or its end."""
    deadline = time.monotonic() + seconds
    heard = b""
    while words is None or words not in heard:
        readable, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
        assert readable, heard
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            piece = b""
        if not piece:
            assert words is None, heard
            break
        heard += piece
    return heard


@pytest.mark.parametrize(
    ("arguments", "exit", "said"),
    [
        (("run", "x", "--agent", "nobody", "--empty"), 2, "nobody"),
        (("run", "x", "--agent", "pi", "--model", "none", "--empty"), 3, "none"),
        (("run", " ", "--agent", "pi"), 2, "the prompt is empty"),
        (("run", "x", "--agent", "pi", "--dir", "/none"), 3, "/none is not a folder"),
        (("run", "x", "--agent", "pi", "--dir", ".", "--empty"), 2, "--empty"),
        (("run", "x", "--agent", "pi", "--provider", "cloud", "--empty"), 2, "cloud"),
        (("resume", "t-none"), 3, "t-none"),
        (("attach", "t-none"), 3, "t-none"),
        (("diff", "t-none"), 3, "t-none"),
        (("steer", "t-none", "x"), 3, "t-none"),
        (("cancel", "t-none"), 3, "t-none"),
        (("thread", "diagnose", "t-none"), 3, "t-none"),
    ],
)
def test_mistakes_are_explained(world: World, bare_cli: Cli, arguments: tuple[str, ...], exit: int, said: str) -> None:
    outcome = bare_cli(*arguments, "--home", str(world.home))
    assert (outcome.exit, outcome.out) == (exit, ""), outcome.err
    assert said in outcome.err
    assert "  next  " in outcome.err


def test_a_runner_that_is_frozen_is_not_simply_running(world: World) -> None:
    gate = Gate()
    world.model.script([held(text("At last."), gate)])
    code, out, err = world.begin("Wait.", "--detach")
    assert code == 0, err
    thread = thread_in(out)
    gate.wait_reached()
    with SyncClient(world.server.url, api_key=world.server.api_key) as client:
        agents = set(marked(f"HOLDFAST_RUN={client.runs.get(thread).id}".encode()))
    [runner] = {parent_of(pid) for pid in agents} - agents
    with world.start("attach", thread) as attached:
        try:
            with frozen(runner):
                assert attached.stderr is not None
                silence = (
                    read_until(attached.stderr.fileno(), f"diagnose {thread}\n".encode()).decode().splitlines()[-1]
                )
                assert silence.startswith("  silent       no heartbeat for")
                assert silence.endswith(f"find out why with holdfast thread diagnose {thread}")
                silent = r"running, no heartbeat for \d+ s "
                assert re.search(rf"^  status +{silent.strip()}$", world.run("thread", "show", thread)[1], re.M)
                assert re.search(rf"^{thread} +{silent}", world.run("thread", "list")[1], re.M)
                assert re.search(rf"^{thread} +{silent}", world.run("runs")[1], re.M)
            gate.release()
            assert attached.wait(240) == 0
        finally:
            gate.release()
            attached.kill()


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process that is stopped, and goes on afterwards, whatever happens."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
