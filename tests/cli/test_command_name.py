"""Hints can be pasted: they name the command as the user called it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli import command_name
from holdfast.cli.app import run
from holdfast.cli.parsing.typer_app import build

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
        [typed, "thread", "list"], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert f"next         start one with {typed} up" in done.stderr
    help = subprocess.run(
        [typed, "run", "--help"], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    assert help.stdout.startswith(f"Usage: {typed} run")
    assert f'\n  {typed} run "fix the failing test"' in help.stdout


def test_a_command_on_the_path_is_called_by_its_name(tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path), "PATH": f"{CHECKOUT / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["holdfast", "thread", "list"], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert "next         start one with holdfast up" in done.stderr


def test_a_path_with_blanks_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hint_of(f"{tmp_path}/my tools/holdfast", monkeypatch) == f"'{tmp_path}/my tools/holdfast' up starts one"


@pytest.mark.parametrize(
    "text", ["see ~/.local/share/holdfast first", "pip install holdfast-extra now", "my-holdfast up", "Holdfast is up"]
)
def test_only_commands_are_named_anew(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hint_of("./holdfast", monkeypatch, text) == text


def test_every_command_in_a_hint_is_named_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    hint = hint_of("bin/holdfast", monkeypatch, "holdfast attach t-1, holdfast --help; (holdfast box list)")
    assert hint == "bin/holdfast attach t-1, bin/holdfast --help; (bin/holdfast box list)"


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


@pytest.mark.parametrize(
    ("home", "server", "hint", "expected"),
    [
        ("/h", None, "holdfast up starts one", "holdfast up --home /h starts one"),
        ("my home", None, "holdfast up finds it", "holdfast up --home 'my home' finds it"),
        ("/h", None, "holdfast thread delete t-1 --yes", "holdfast thread delete --home /h t-1 --yes"),
        ("/h", None, "holdfast runs; holdfast diff t-1", "holdfast runs --home /h; holdfast diff --home /h t-1"),
        ("/h", None, "holdfast interpreter template list", "holdfast interpreter template list --home /h"),
        ("/h", None, "holdfast doctor", "holdfast doctor --home /h"),
        ("/h", None, "holdfast up --home /other", "holdfast up --home /other"),
        ("/h", None, "holdfast thread --help", "holdfast thread --help"),
        ("/h", None, "holdfast thread new --help", "holdfast thread new --help"),
        ("/h", None, "the folder holdfast thread", "the folder holdfast thread"),
        ("/h", "http://s:1", "holdfast box exec b-1 -- ls", "holdfast box exec --server http://s:1 b-1 -- ls"),
        (None, "http://s:1", "holdfast up starts one", "holdfast up starts one"),
        (None, None, "holdfast up starts one", "holdfast up starts one"),
    ],
)  # fmt: skip
def test_a_hint_stays_with_the_home_or_server_that_was_named(
    home: str | None, server: str | None, hint: str, expected: str
) -> None:
    """Pasted without it, `up` would start another home's server, and `delete` would delete there."""
    assert command_name.with_target(hint, command_name.Target(home, server)) == expected


def test_every_command_takes_the_option_that_its_hint_is_given() -> None:
    def options(command: Any, path: str) -> Iterator[tuple[str, set[str]]]:
        for name, each in getattr(command, "commands", {}).items():
            yield from options(each, f"{path} {name}")
        if not hasattr(command, "commands"):
            yield path, {option for parameter in command.params for option in parameter.opts}

    for path, taken in options(typer.main.get_command(build([])), "holdfast"):
        for target in (command_name.Target("/h", None), command_name.Target(None, "http://s:1")):
            hint = command_name.with_target(f"{path} X", target)
            given = set(re.findall(r"--\w+", hint))
            assert given <= taken, f"{hint}: no such option"
            assert given or "--home" not in taken or target.server, f"{hint}: --home is lost"


def test_a_target_is_forgotten_when_its_command_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(["thread", "list", "--home", str(tmp_path)]) != 0
    assert hint_of("holdfast", monkeypatch) == "holdfast up starts one"


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bin/holdfast", *arguments], cwd=CHECKOUT, capture_output=True, text=True, timeout=240, check=False
    )


def test_hints_of_a_named_home_are_pasted_whole(tmp_path: Path) -> None:
    folder = tmp_path / "a home"
    assert (
        f"next         start one with bin/holdfast up --home '{folder}'"
        in run_here("thread", "list", "--home", str(folder)).stderr
    )
    told = json.loads(run_here("thread", "list", "--json", "--home", str(folder)).stderr)
    assert told["error"]["hint"].startswith(f"start one with holdfast up --home '{folder}'")


def test_an_option_of_a_command_in_a_box_is_not_ours(tmp_path: Path) -> None:
    told = run_here("box", "exec", "--home", str(tmp_path / "ours"), "b-1", "tool", "--home", "/theirs").stderr
    assert f"start one with bin/holdfast up --home {tmp_path}/ours" in told


def test_a_place_that_cannot_be_searched_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such as a folder of root's in the PATH of another user. Here it is one that not even root can search."""
    program = tmp_path / "holdfast"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(["x" * 5000, str(tmp_path)]))
    monkeypatch.setattr(sys, "argv", [str(program)])
    command_name.command_name.cache_clear()
    assert command_name.command_name() == "holdfast"
    command_name.command_name.cache_clear()
