"""The program that runs inside a box for each session of the Daytona API, by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
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
        return self._process.wait(30)

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


def test_a_session_with_something_running_does_not_retire(program: Program) -> None:
    program.run("a", "sleep 60 & echo $!")
    program.frames_until("exit")
    program.ask({"op": "retire"})
    program.frames_until("busy")
    program.run("b", "kill %1; wait")
    program.frames_until("exit")
    program.ask({"op": "retire"})
    assert program.wait() == 0
