"""Hints can be pasted: they name the command as the user called it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import command_name

CHECKOUT = Path(__file__).parents[2]


def hint_of(typed: str, monkeypatch: pytest.MonkeyPatch, text: str = "holdfast up starts one") -> str:
    command_name.command_name.cache_clear()
    monkeypatch.setattr(sys, "argv", [typed])
    try:
        return command_name.as_called(text)
    finally:
        command_name.command_name.cache_clear()


@pytest.mark.parametrize(
    ("folder", "typed"),
    [(CHECKOUT, "bin/holdfast"), (CHECKOUT / "bin", "./holdfast"), (Path("/"), str(CHECKOUT / "bin" / "holdfast"))],
)
def test_a_hint_names_the_command_as_it_was_typed(folder: Path, typed: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
    environment["PATH"] = environment["PATH"].replace(str(CHECKOUT / "bin"), "/nowhere")
    done = subprocess.run(
        [typed, "thread", "list"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert f"next         {typed} up starts one" in done.stderr
    help = subprocess.run(
        [typed, "run", "--help"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert help.stdout.startswith(f"Usage: {typed} run")
    assert f'\n  {typed} run "fix the failing test"' in help.stdout


def test_a_command_on_the_path_is_called_by_its_name(tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path), "PATH": f"{CHECKOUT / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["holdfast", "thread", "list"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "next         holdfast up starts one" in done.stderr


def test_a_path_with_blanks_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hint_of(f"{tmp_path}/my tools/holdfast", monkeypatch) == f"'{tmp_path}/my tools/holdfast' up starts one"


@pytest.mark.parametrize(
    "text", ["see ~/.local/share/holdfast first", "pip install holdfast-extra now", "my-holdfast up", "Holdfast is up"]
)
def test_only_commands_are_named_anew(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hint_of("./holdfast", monkeypatch, text) == text


def test_every_command_in_a_hint_is_named_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    hint = hint_of("bin/holdfast", monkeypatch, "holdfast attach t-1      holdfast --help; (holdfast box list)")
    assert hint == "bin/holdfast attach t-1      bin/holdfast --help; (bin/holdfast box list)"


def test_what_starts_in_the_background_does_not_inherit_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import os, sys; sys.argv = ['x', '--version']; from holdfast.cli import main; main();"
        "print('HOLDFAST_CALLED_AS' in os.environ, sys.argv[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HOLDFAST_CALLED_AS": "bin/holdfast"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False bin/holdfast"
