"""The guide's provider of another package: a module and an entry point make it an option, a check and boxes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "extending" / "provider.md"
MODULE = GUIDE.read_text().partition("`shed.py`:\n\n```python\n")[2].partition("```")[0]


class Installed:
    """Holdfast as a command, beside another package that brings a provider."""

    def __init__(self, folder: Path, home: Path, entry_point: str) -> None:
        (folder / "shed.py").write_text(MODULE)
        about = folder / "shed-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shed\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[holdfast.providers]\nshed = {entry_point}\n")
        self.home = home
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "DOCKER_"))},
            "PYTHONPATH": str(folder),
            "COLUMNS": "100",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "holdfast", *arguments]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments),
            env={**self.environment, "HOLDFAST_HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    (tmp_path / "packages").mkdir()
    return Installed(tmp_path / "packages", tmp_path / "home", "shed:SHED")


@pytest.fixture
def server(installed: Installed) -> Iterator[subprocess.Popen[str]]:
    """Started with the option that the provider declares."""
    command = installed.command("up", "--home", str(installed.home), "--port", "0", "--pool", "0", "--json")
    command += ["--shed-folder", str(installed.home / "boxes")]
    with subprocess.Popen(command, env=installed.environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert json.loads(running.stdout.readline())["url"]
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=240) == 0


def test_its_settings_are_options_of_up(installed: Installed) -> None:
    told = " ".join(installed("up", "--help").split())
    assert "--shed-folder DIR Where the boxes of the shed are kept. [env var: SHED_FOLDER]" in told


def test_its_checks_are_findings_of_doctor(installed: Installed) -> None:
    findings = {each["name"]: each for each in json.loads(installed("doctor", "--json"))["findings"]}
    assert findings["shed"]["purpose"] == "boxes of the provider shed"


@pytest.mark.usefixtures("server")
def test_its_boxes_are_made_where_its_setting_says(installed: Installed) -> None:
    id = installed("box", "create", "--provider", "shed", "--network", "open", "-q").strip()
    assert [path.name for path in (installed.home / "boxes" / "boxes").iterdir()] == [id]
    assert installed("box", "exec", id, "--", "echo", "hello") == "hello\n"
    installed("box", "delete", "--yes", id)


def test_one_that_cannot_be_loaded_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    broken = Installed(tmp_path / "packages", tmp_path / "home", "shed:NOTHING")
    assert "--docker-host" in broken("up", "--help")
