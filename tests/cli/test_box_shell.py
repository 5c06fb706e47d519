"""`holdfast box shell` as a person has it: on a real pseudo-terminal, typed at, resized, interrupted, left."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cli.conftest import BoxCli, Cli

from holdfast.cli.exits import Exit
from holdfast.testing.server import ServerProcess

PATIENCE = 240.0


class Person:
    """Sits at a terminal with one command on it."""

    def __init__(self, boxes: BoxCli, *arguments: str, rows: int = 24, columns: int = 80) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(rows, columns)
        self.found = termios.tcgetattr(self.theirs)
        self.seen = b""
        environment = {name: value for name, value in boxes.environment.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "box", *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, pattern: str) -> re.Match[bytes]:
        """Read until the screen shows this; what came before it is not looked at again."""
        deadline = time.monotonic() + PATIENCE
        while (match := re.search(pattern.encode(), self.seen)) is None:
            ready, _, _ = select.select([self.ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen!r}"
            self.seen += os.read(self.ours, 65536)
        self.seen = self.seen[match.end() :]
        return match

    def wait(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:  # somebody has to read, or it cannot finish writing
            assert time.monotonic() < deadline, f"it did not end: {self.seen!r}"
            ready, _, _ = select.select([self.ours], [], [], 0.05)
            if ready:
                self.seen += os.read(self.ours, 65536)
        while select.select([self.ours], [], [], 0)[0]:
            self.seen += os.read(self.ours, 65536)
        return self.process.returncode

    def terminal_is_as_found(self) -> bool:
        return termios.tcgetattr(self.theirs) == self.found

    def leave(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.ours)
        os.close(self.theirs)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


Sit = Callable[..., Any]


@pytest.fixture
def sit(boxes: BoxCli) -> Iterator[Callable[..., Person]]:
    people: list[Person] = []

    def begin(*arguments: str, **options: int) -> Person:
        people.append(Person(boxes, *arguments, **options))
        return people[-1]

    yield begin
    for person in people:
        person.leave()


@contextmanager
def noted(person: Person) -> Iterator[str]:
    """The process that the command says it leaves behind."""
    match = person.expect(r"shell (b-\w+) --attach ([\w-]+)")
    yield match.group(2).decode()


def test_a_shell_is_a_terminal_with_an_exit_code(sit: Sit, box: str) -> None:
    person = sit("shell", box)
    person.type("echo $((6 * 7)) $TERM; test -t 0 && echo tty-in; test -t 1 && echo tty-out\r")
    person.expect("42 xterm-256color\r\n")
    person.expect("tty-in\r\ntty-out")
    assert not person.terminal_is_as_found()
    person.type("exit 7\r")
    assert person.wait() == 7
    assert person.terminal_is_as_found()


def test_the_size_is_the_terminals_and_follows_it(sit: Sit, box: str) -> None:
    person = sit("shell", box, rows=31, columns=97)
    person.type("stty size\r")
    person.expect("31 97\r\n")
    person.resize(40, 120)
    person.type("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.05; done; echo resi''zed\r")
    person.expect("resized")


def test_ctrl_c_is_for_the_box(sit: Sit, box: str) -> None:
    person = sit("shell", box)
    person.type("sh -c \"echo wai''ting; exec sleep 600\"\r")  # what says so has the terminal, not the shell before it
    person.expect("waiting")
    person.type("\x03")
    person.type("echo code $?\r")
    person.expect("code 130\r\n")
    person.type("exit 0\r")
    assert person.wait() == 0


def test_a_command_can_stand_in_for_the_shell(sit: Sit, box: str) -> None:
    person = sit("shell", box, "--env", "A=b", "--", "sh", "-c", "echo a=$A; exit 3")
    person.expect("a=b")
    assert person.wait() == 3
    missing = sit("shell", box, "no-such-command")
    assert missing.wait() == Exit.NO_SUCH_COMMAND
    assert missing.terminal_is_as_found()


def test_a_shell_that_was_left_is_there_to_come_back_to(sit: Sit, box: str, box_cli: Cli) -> None:
    person = sit("shell", box)
    person.type("kept=still-here; echo rea''dy\r")
    person.expect("ready")
    person.type("~.")
    with noted(person) as process:
        assert person.wait() == 0
        assert person.terminal_is_as_found()
        back = sit("shell", box, "--attach", process)
        back.expect("ready")
        back.type("echo $kept\r")
        back.expect("still-here")
        back.type("exit 4\r")
        assert back.wait() == 4
        [listed] = [each for each in box_cli("box", "logs", box, "--json").json()["processes"] if each["id"] == process]
        assert (listed["pty"], listed["exitCode"]) == (True, 4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_given_back_when_we_are_told_to_end(sit: Sit, box: str, number: signal.Signals) -> None:
    person = sit("shell", box)
    person.type("printf '\\033[?1049h'; echo in-a''pp\r")
    person.expect("in-app")
    person.process.send_signal(number)
    person.expect(r"\x1b\[\?1049l")
    with noted(person):
        assert person.wait() == 128 + signal.SIGTERM
    assert person.terminal_is_as_found()


def test_a_shell_outlives_the_server(sit: Sit, box: str, box_server: ServerProcess) -> None:
    person = sit("shell", box)
    person.type("kept=still-here; echo rea''dy\r")
    person.expect("ready")
    box_server.kill()
    try:
        person.expect("waiting")
    finally:
        box_server.start()
    person.expect(r"back .*\r\n.*\$ ")  # and the prompt that it was at
    person.type("echo $kept\r")
    person.expect("still-here\r\n")
    person.type("exit 5\r")
    assert person.wait() == 5
    assert person.terminal_is_as_found()


def test_ctrl_c_while_the_server_is_away_says_how_to_come_back(sit: Sit, box: str, box_server: ServerProcess) -> None:
    person = sit("shell", box)
    person.type("echo rea''dy\r")
    person.expect("ready")
    box_server.kill()
    try:
        person.expect("waiting")
        person.type("\x03")
        with noted(person):
            assert person.wait() == Exit.INTERRUPTED
    finally:
        box_server.start()
    assert person.terminal_is_as_found()


def test_a_shell_that_ends_with_its_box_says_so(sit: Sit, box: str, box_cli: Cli) -> None:
    person = sit("shell", box)
    person.type("echo rea''dy\r")
    person.expect("ready")
    box_cli("box", "delete", box, "--yes")
    assert person.wait() != 0
    assert person.terminal_is_as_found()


def test_exec_with_a_terminal_ends_with_us(sit: Sit, box: str, boxes: BoxCli) -> None:
    person = sit("exec", "-t", box, "--", "sh", "-c", "stty size; read answer; exit $answer", rows=33, columns=99)
    person.expect("33 99")
    person.type("6\r")
    assert person.wait() == 6
    assert person.terminal_is_as_found()


def test_without_a_terminal_it_is_refused(boxes: BoxCli, box: str) -> None:
    done = boxes.run("shell", box)
    assert done.returncode == Exit.NOT_RUN
    assert b"this command needs a terminal" in done.stderr
    assert f"holdfast box exec {box}".encode() in done.stderr
