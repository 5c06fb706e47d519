"""The command line as a program would use it: arguments in, output, errors and exit code out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from holdfast.cli.app import run
from holdfast.testing.server import ServerProcess


@dataclass(frozen=True)
class Outcome:
    exit: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.exit == 0, self.err
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """NDJSON."""
        assert self.exit == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


class Cli(Protocol):
    def __call__(self, *arguments: str, stdin: str = "") -> Outcome: ...


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)


@pytest.fixture
def bare_cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Runs a command in this process, with nothing said about the server."""

    def cli(*arguments: str, stdin: str = "") -> Outcome:
        path = tmp_path / "stdin"
        path.write_text(stdin)
        capfd.readouterr()
        with path.open() as given:
            monkeypatch.setattr(sys, "stdin", given)
            exit = run(list(arguments))
        out, err = capfd.readouterr()
        return Outcome(int(exit), out, err)

    return cli


@pytest.fixture
def cli(bare_cli: Cli, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs commands on the home of the shared server."""
    monkeypatch.setenv("HOLDFAST_HOME", str(server.home))
    return bare_cli


class BoxCli:
    """The command in processes of its own, on a server with boxes. Options of ours go before the box's command."""

    def __init__(self, home: Path) -> None:
        self.environment = {**os.environ, "HOLDFAST_HOME": str(home), "COLUMNS": "100"}

    def run(
        self, *arguments: str, stdin: bytes | int = b"", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[bytes]:
        given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        command = [sys.executable, "-m", "holdfast", "box", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, timeout=timeout, check=False, **given)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "holdfast", "box", *arguments]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, env=self.environment, **{**streams, **options})


@pytest.fixture(scope="session")
def box_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with boxes of its own, which are deleted in the end: they would outlive it."""
    home = tmp_path_factory.mktemp("boxes") / "home"
    with ServerProcess(home) as server:
        yield server
        left = run_quietly(home, "list", "-q").split()
        if left:
            run_quietly(home, "delete", "--yes", *left)


def run_quietly(home: Path, *arguments: str) -> str:
    done = BoxCli(home).run(*arguments)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture
def box_cli(bare_cli: Cli, box_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs `box exec …` and the like in this process, on the home of the server with boxes."""
    monkeypatch.setenv("HOLDFAST_HOME", str(box_server.home))
    return bare_cli


@pytest.fixture
def boxes(box_server: ServerProcess) -> BoxCli:
    return BoxCli(box_server.home)


@pytest.fixture
def box(box_cli: Cli) -> str:
    made = box_cli("box", "create", "-q")
    assert made.exit == 0, made.err
    return made.out.strip()


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
