"""What a program of the Daytona SDK leaves in the background runs as long as its sandbox does."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable

import pytest
from daytona import Sandbox, SessionExecuteRequest

_SERVER = "python3 -u -m http.server --bind 127.0.0.1 {port}"
"""Prints a line for each request. A request fails if that does."""
_ASK = (
    "import http.client; asked = http.client.HTTPConnection('127.0.0.1', {port}, timeout=5); "
    "asked.request('GET', '/'); print(asked.getresponse().status)"
)

_PORTS = itertools.count(8100)
"""Of the sandbox, which has a network of its own."""


def by_exec(sandbox: Sandbox, command: str) -> None:
    assert sandbox.process.exec(command, timeout=30).exit_code == 0


def by_session(sandbox: Sandbox, command: str) -> None:
    """As openai-agents does for each of its commands."""
    name = str(uuid.uuid4())
    sandbox.process.create_session(name)
    assert sandbox.process.execute_session_command(name, SessionExecuteRequest(command=command)).exit_code == 0
    sandbox.process.delete_session(name)


def answers(sandbox: Sandbox, port: int) -> bool:
    return sandbox.process.exec(f'python3 -c "{_ASK.format(port=port)}"').result == "200\n"


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("start", [by_exec, by_session])
@pytest.mark.parametrize("command", ["{server} &", "nohup {server} >/dev/null 2>&1 &", "bash -lc '{server} &'"])
def test_a_server_goes_on_when_what_started_it_has_ended(
    shared: Sandbox, start: Callable[[Sandbox, str], None], command: str
) -> None:
    port = next(_PORTS)
    start(shared, command.format(server=_SERVER.format(port=port)))
    eventually(lambda: answers(shared, port))
    assert all(answers(shared, port) for _ in range(3))


def test_a_server_ends_with_its_sandbox(sandbox: Sandbox) -> None:
    port = next(_PORTS)
    by_session(sandbox, f"{_SERVER.format(port=port)} &")
    eventually(lambda: answers(sandbox, port))
    sandbox.stop()
    sandbox.start()
    assert not answers(sandbox, port)


def test_a_command_that_runs_ends_with_its_session_and_what_was_started_before_goes_on(shared: Sandbox) -> None:
    name = str(uuid.uuid4())
    shared.process.create_session(name)
    before = shared.process.execute_session_command(name, SessionExecuteRequest(command="sleep 600 & echo $!"))
    begun = SessionExecuteRequest(command="echo $$ > /tmp/shell; sleep 601", run_async=True)
    shared.process.execute_session_command(name, begun)
    eventually(lambda: runs(shared, "[s]leep 601"))
    shared.process.delete_session(name)
    assert not runs(shared, "[s]leep 601")
    assert shared.process.exec(f"kill {before.stdout}").exit_code == 0


def runs(sandbox: Sandbox, pattern: str) -> bool:
    return sandbox.process.exec(f"grep -saqe '{pattern.replace(' ', '.')}' /proc/[0-9]*/cmdline").exit_code == 0
