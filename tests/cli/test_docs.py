"""What docs/cli.md shows works as shown, and says of exit codes is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.exits import Exit
from holdfast.testing.server import ServerProcess

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


THREADS, BOXES, INTERPRETERS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.mark.parametrize(
    ("tour", "shown"),
    [
        pytest.param(THREADS, "pi.tool           tool=bash  command=pytest -q", id="threads"),
        pytest.param(BOXES, "42\n", id="boxes"),
        pytest.param(INTERPRETERS, "42\n", id="interpreters"),
    ],
)
def test_the_tour_runs(server: ServerProcess, tmp_path: Path, tour: str, shown: str) -> None:
    command = tmp_path / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    command.chmod(0o755)
    source = Path(__file__).parents[2] / "src"
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(source),
        "HOLDFAST_HOME": str(server.home),
    }
    done = subprocess.run(
        ["sh", "-eux", "-c", tour],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert "  error " not in done.stderr


def test_every_exit_code_is_documented() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.M)}
    assert documented == {int(code) for code in Exit}
