"""`holdfast image build` as people and programs use it, on a real server with real boxes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.images.image_builds import busybox
from tests.images.packing import Key, Repository, TestPackage
from tests.images.test_debian import packages

from holdfast.cli.app import run as run_command
from holdfast.client import SyncClient
from holdfast.images.base import PACKAGES
from holdfast.testing.server import ServerProcess


@dataclass(frozen=True)
class Outcome:
    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Command:
    """The command line in this process, from a folder, on the home of a server."""

    home: Path
    folder: Path
    captured: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Outcome:
        self.captured.readouterr()
        at = arguments.index("--") if "--" in arguments else len(arguments)
        exit = run_command([*arguments[:at], "--home", str(self.home), *arguments[at:]])
        out, err = self.captured.readouterr()
        return Outcome(int(exit), out, err)

    def told(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("build")
    with ServerProcess(folder / "home") as server:
        with SyncClient(server.url, api_key=server.api_key) as client:
            client.images.import_archive("test/busybox", busybox())
        yield server.home
        with SyncClient(server.url, api_key=server.api_key) as client:
            assert list(client.boxes.list()) == [], "a build leaves no box behind"


@pytest.fixture
def command(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    monkeypatch.chdir(tmp_path)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield Command(home, tmp_path, capfd)


def recipe(command: Command, text: str) -> str:
    (command.folder / "image.toml").write_text(f'base = "test/busybox"\nnetwork = "none"\n{text}')
    return "image.toml"


def run(command: Command, image: str, line: str) -> str:
    box = command.told("box", "create", "-q", "--image", image).strip()
    try:
        return command.told("box", "exec", box, "--", "/bin/sh", "-c", line)
    finally:
        command.told("box", "delete", "--yes", box)


def test_in_a_pipe_the_name_alone_is_printed_and_the_steps_beside_it(command: Command) -> None:
    path = recipe(command, 'name = "cli/piped"\ncommands = ["echo hello > /made"]')
    first, second = command("image", "build", path), command("image", "build", ".")
    assert (first.returncode, first.stdout) == (0, "cli/piped\n"), first.stderr
    assert re.search(r"  run +echo hello > /made +\d+\.\d s\n", first.stderr)
    assert re.search(r"  run +echo hello > /made +cached\n", second.stderr)
    assert run(command, "cli/piped", "cat /made") == "hello\n"


def test_programs_get_json(command: Command) -> None:
    path = recipe(command, '[env]\nA = "1"')
    made = json.loads(command.told("image", "build", path, "--name", "cli/json", "--json"))
    assert (made["name"], made["config"]["env"]["A"]) == ("cli/json", "1")


def test_a_failure_shows_the_end_of_what_was_said(command: Command) -> None:
    path = recipe(command, "commands = [\"printf '\\\\033[31mred alert\\\\n'; exit 3\"]")
    done = command("image", "build", path, "--name", "cli/fails")
    said = done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    assert "red alert" in said
    assert "\033" not in said, "what a command printed must not drive the terminal"
    assert "  error        this ended with 3" in said
    assert "  next         mend it" in said
    assert command("image", "show", "cli/fails").returncode == 3


def test_what_makes_no_sense_is_said_before_anything_is_made(command: Command) -> None:
    nameless = command("image", "build", recipe(command, 'commands = ["true"]'))
    assert (nameless.returncode, "--name team/we" in nameless.stderr) == (2, True)
    unknown = command("image", "build", recipe(command, "comands = []"), "--name", "a")
    assert (unknown.returncode, "a recipe has no key comands" in unknown.stderr) == (2, True)
    missing = command("image", "build", "nowhere.toml", "--name", "a")
    assert (missing.returncode, "cannot be read" in missing.stderr) == (2, True)
    mixed = command("image", "build", "image.toml", "--insecure")
    assert (mixed.returncode, "are only for base" in mixed.stderr) == (2, True)
    (command.folder / "image.toml").write_text('base = "holdfast/base"')
    baseless = command("image", "build", "image.toml", "--name", "a")
    assert (baseless.returncode, f"holdfast image build --home {command.home} base" in baseless.stderr) == (3, True)


@pytest.fixture
def repository(tmp_path: Path, key: Key) -> Repository:
    repository = Repository(tmp_path / "mirror")
    for package in packages(b"#!/bin/sh\ntrue\n"):
        repository.add(package)
    repository.publish(key)
    return repository


def test_a_base_comes_from_the_mirror_that_is_named(command: Command, repository: Repository, key: Key) -> None:
    for name in PACKAGES:
        repository.add(TestPackage(name))
    repository.publish(key)
    options = ("--mirror", repository.url, "--suite", "test", "--arch", "amd64", "--name", "cli/base")
    strange = command("image", "build", "base", *options)
    assert (strange.returncode, "does not trust" in strange.stderr) == (1, True)
    made = command("image", "build", "base", *options, "--keyring", str(key.keyring), "--package", "tool")
    assert (made.returncode, made.stdout) == (0, "cli/base\n"), made.stderr
    for step in ("packages", "download", "unpack", "configure"):
        assert f"\n  {step} " in "\n" + made.stderr
    assert run(command, "cli/base", "cat /usr/tool; echo $PIP_BREAK_SYSTEM_PACKAGES") == "tool1\n"
    again = command("image", "build", "base", *options, "--keyring", str(key.keyring), "--package", "tool")
    assert "is made of these very packages" in again.stderr
    believed = command("image", "build", "base", *options, "--insecure", "--package", "tool")
    assert (believed.returncode, "signatures are not checked" in believed.stderr) == (0, True)
    typo = command("image", "build", "base", *options, "--insecure", "--package", "nodesj")
    assert (typo.returncode, "there is no package nodesj" in typo.stderr, "perhaps nodejs" in typo.stderr) == (
        2,
        True,
        True,
    )


def test_on_a_machine_without_apt_a_base_is_pulled(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command("image", "build", "base")
    assert (done.returncode, done.stdout) == (2, "")
    assert "this machine has no apt-get" in done.stderr
    assert "pull an image instead" in done.stderr
    assert "image pull" in done.stderr


def test_on_a_terminal_there_is_a_line_that_moves_and_what_to_do_next(command: Command) -> None:
    path = recipe(command, 'name = "cli/terminal"\ncommands = ["echo halfway; sleep 0.3; echo there"]')
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast", "image", "build", path, "--home", str(command.home)],
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
        cwd=command.folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    said = b""
    try:
        while piece := os.read(leader, 65536):
            said += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(leader)
    assert process.wait(240) == 0, said.decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert "halfway" in plain
    assert re.search(r"run +echo halfway; sleep 0.3; echo there +\d+\.\d s", plain)
    assert f"holdfast box create --home {command.home} --image cli/terminal" in plain
