"""The command line as a program would use it: arguments in, output, errors and exit code out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
def cli(bare_cli: Cli, server: ServerProcess) -> Cli:
    """Runs a command on the home of the shared server."""

    def on_home(*arguments: str, stdin: str = "") -> Outcome:
        return bare_cli(*arguments, "--home", str(server.home), stdin=stdin)

    return on_home


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
