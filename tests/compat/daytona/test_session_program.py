"""The program that runs inside a box for each session of the Daytona API, by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.compat.daytona import in_box

PROGRAM = Path(in_box.__file__).with_name("session.py")


class Program:
    def __init__(self) -> None:
        # As in a box, the parent of the program has no other children.
        parent = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {str(PROGRAM)!r}]))"
        self._process = subprocess.Popen(
            [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def run(self, id: str, command: str) -> None:
        self.ask({"op": "run", "id": id, "command": command, "echo": True})

    def ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def frames_until(self, kind: str) -> list[dict[str, Any]]:
        assert self._process.stdout is not None
        heads: list[dict[str, Any]] = []
        while not heads or heads[-1]["t"] != kind:
            heads.append(json.loads(self._process.stdout.readline()))
            self._process.stdout.read(heads[-1]["n"])
        return heads

    def wait(self) -> int:
        return self._process.wait(240)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def program() -> Iterator[Program]:
    with closing(Program()) as started:
        yield started


def test_the_exit_of_a_command_tells_whether_the_shell_ended_with_it(program: Program) -> None:
    """A client that has seen it may send the next command at once, before the end of the shell is told."""
    program.run("first", "false")
    assert program.frames_until("exit")[-1] == {"c": "first", "t": "exit", "n": 0, "code": 1, "last": False}
    program.run("second", "exit 3")
    assert program.frames_until("exit")[-1] == {"c": "second", "t": "exit", "n": 0, "code": 3, "last": True}


def test_a_command_for_a_shell_that_has_ended_ends_too(program: Program) -> None:
    program.run("first", "exit 3")
    program.frames_until("end")
    program.run("second", "true")
    assert [head["t"] for head in program.frames_until("exit")] == ["run", "exit"]


def test_an_idle_session_retires(program: Program) -> None:
    program.run("a", "echo done")
    program.frames_until("exit")
    program.ask({"op": "retire"})
    assert program.wait() == 0


def test_a_session_with_a_running_command_does_not_retire(program: Program) -> None:
    program.run("a", "read line")
    program.frames_until("run")
    program.ask({"op": "retire"})
    program.frames_until("busy")
    program.ask({"op": "input", "id": "a", "data": "go on"})
    program.frames_until("exit")
    program.ask({"op": "retire"})
    assert program.wait() == 0


@pytest.mark.parametrize("op", ["retire", "close"])
def test_what_a_command_left_in_the_background_outlives_its_session(program: Program, tmp_path: Path, op: str) -> None:
    """It may print, too, although nobody reads that any more."""
    later = (
        "until [ -e go ]; do sleep 0.05; done; head -c 200000 /dev/zero; head -c 200000 /dev/zero >&2; echo done > done"
    )
    program.run("a", f"cd {tmp_path}; ({later}) &")
    program.frames_until("exit")
    program.ask({"op": op})
    assert program.wait() == 0
    (tmp_path / "go").touch()
    eventually(lambda: (tmp_path / "done").exists() and (tmp_path / "done").read_text() == "done\n")


def test_closing_ends_the_running_command_and_nothing_else(program: Program, tmp_path: Path) -> None:
    """Wherever it has hidden: below another shell, orphaned, or deaf to being asked."""
    program.run("before", f"cd {tmp_path}; sleep 600 & echo $! > before")
    hidden = (
        "(sleep 600 & echo $! > orphan) ; sh -c 'sleep 600 & echo $! > below; wait' & (trap '' TERM; sleep 600) & wait"
    )
    program.run("now", f"{hidden}")
    program.run("next", "touch next")
    eventually(lambda: all((tmp_path / name).exists() and number(tmp_path / name) for name in ("orphan", "below")))
    program.ask({"op": "close"})
    assert program.wait() == 0
    try:
        assert is_running(number(tmp_path / "before"))
        eventually(lambda: not is_running(number(tmp_path / "orphan")) and not is_running(number(tmp_path / "below")))
        assert not (tmp_path / "next").exists()
    finally:
        os.kill(number(tmp_path / "before"), signal.SIGKILL)


def test_a_running_command_may_end_in_its_own_way_when_its_session_is_closed(program: Program, tmp_path: Path) -> None:
    program.run(
        "a", f"cd {tmp_path}; sh -c \"trap 'echo bye > bye; exit' TERM; touch up; while :; do sleep 0.05; done\""
    )
    eventually((tmp_path / "up").exists)
    program.ask({"op": "close"})
    assert program.wait() == 0
    assert (tmp_path / "bye").read_text() == "bye\n"


def number(path: Path) -> int:
    return int(path.read_text() or 0)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
