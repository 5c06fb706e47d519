"""`holdfast up` beside a server that runs already, and the keys it shows."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Outcome, start

from holdfast.cli.exits import Exit
from holdfast.cli.server.provider_options import without_own_address
from holdfast.client.local_server import find_or_start, read_running
from holdfast.testing.server import ServerProcess


def up(home: Path, *options: str) -> Outcome:
    """In a process of its own: a server configures its process."""
    with start("up", "--home", str(home), *options) as process:
        out, err = process.communicate(timeout=240)
    return Outcome(process.returncode, out, err)


def test_a_server_that_runs_already_is_named_and_left_alone(cli: Cli, server: ServerProcess) -> None:
    again = up(server.home)
    assert (again.exit, again.err) == (0, "")
    assert f"  server       {server.url}  already running, as process " in again.out
    assert f"holdfast key create --home {server.home} NAME" in again.out
    told = up(server.home, "--json").json()
    assert (told["url"], told["alreadyRunning"]) == (server.url, True)
    assert f"  page         {server.url}  a link that logs a browser in: holdfast login" in again.out
    assert cli("thread", "list").exit == 0


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_link_that_logs_in_is_printed_on_a_terminal_only(server: ServerProcess, on_terminal: bool) -> None:
    """What goes into a pipe may end in a log that others read."""
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    try:
        command = [sys.executable, "-m", "holdfast", "up", "--home", str(server.home)]
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, timeout=240, check=False)
        shown = os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert ("/login#code=" in shown) is on_terminal
    assert server.url in shown


def test_a_server_that_runs_otherwise_is_a_conflict(server: ServerProcess) -> None:
    refused = up(server.home, "--port", "0", "--no-auth")
    assert refused.exit == Exit.CONFLICT
    assert f"already running on {server.home} at {server.url}" in refused.err
    assert "--port, --no-auth" in refused.err
    assert f"holdfast down --home {server.home}" in refused.err


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Path]:
    """The home of a server that a command started in the background."""
    home = tmp_path / "home"
    find_or_start(home)
    yield home
    subprocess.run([sys.executable, "-m", "holdfast", "down", "--home", str(home)], check=False, capture_output=True)


def test_the_first_key_waits_for_who_starts_the_server_by_hand(background: Path, bare_cli: Cli) -> None:
    assert bare_cli("key", "list", "--home", str(background), "--json").json() == {"keys": []}
    assert bare_cli("down", "--home", str(background)).exit == 0
    up = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "up", "--home", str(background), "--port", "0"],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert up.stdout is not None
    try:
        said = [up.stdout.readline() for _ in range(4)]
        assert said[2].startswith("  api key      hf_")
        assert read_running(background) is not None
    finally:
        up.terminate()
        up.communicate(timeout=240)


@pytest.mark.parametrize(
    "options",
    [
        ("--allow-private", "127.0.0.1"),
        ("--allow-private", "a b"),
        ("--egress-proxy", "socks5://x"),
        ("--egress-proxy", "http://ada:hidden@x:1"),
        ("--egress-proxy", "env:NOT_SET"),
    ],
)
def test_a_network_that_makes_no_sense_is_refused_at_once(bare_cli: Cli, tmp_path: Path, options: tuple[str]) -> None:
    refused = bare_cli("up", "--home", str(tmp_path / "home"), *options)
    assert refused.exit == Exit.USAGE
    assert "hidden" not in refused.err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://127.0.0.1:8484/compat/daytona", False),
        ("http://localhost:8484/compat/daytona/", False),
        ("http://127.0.0.1:8585/compat/daytona", True),
        ("https://app.daytona.example/api", True),
        (None, True),
    ],
)
def test_a_server_is_no_provider_of_itself(url: str | None, kept: bool) -> None:
    """A user of the Daytona API exports its address, and starts the server again in the same terminal."""
    environment = {"daytona_api_url": url, "daytona_api_key": "hf_x", "modal_app": "mine"}
    assert without_own_address(environment, 8484) == (environment if kept else {"modal_app": "mine"})
