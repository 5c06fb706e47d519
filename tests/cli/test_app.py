"""The command line as a whole: help, mistakes, what gets imported, how it looks on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

import holdfast
from holdfast.cli.commands import COMMANDS
from holdfast.cli.exits import Exit
from holdfast.testing.server import ServerProcess


def modules_after(*arguments: str) -> set[str]:
    """What a command imports, told by its own process."""
    program = (
        "import sys, json\nfrom holdfast.cli import main\n"
        f"sys.argv = ['holdfast', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_version_imports_next_to_nothing() -> None:
    modules = modules_after("--version")
    heavy = {"typer", "rich", "click", "fastapi", "httpx", "pydantic", "asyncio", "importlib.metadata"}
    assert not heavy & modules
    assert {name for name in modules if name.startswith("holdfast")} == {"holdfast", "holdfast.cli"}


HEAVY = {
    "anyio", "asyncio", "click", "fastapi", "hashlib", "httpcore", "httpx", "importlib.metadata", "logging", "pydantic",
    "random", "rich", "shutil", "ssl", "starlette", "subprocess", "typer", "uvicorn", "websockets",
}  # fmt: skip
"""What no everyday command may load: each of these takes as long as the command itself, or longer."""


WIRE_TYPES = {
    command: {f"holdfast.api.{name}" for name in (*names.split(), "quantities")}
    for command, names in {
        "exec": "errors errors.boxes",
        "list": "box box.network box.records box.spec document errors errors.boxes limits",
        "list with a hint": "box box.network box.records box.spec document errors errors.boxes limits",
        "create": "box box.network box.records box.spec document errors errors.boxes limits",
        "append": "document errors errors.threads ids limits thread thread.entries",
    }.items()
}
"""What everyday commands may load of the types on the wire: each class of these takes half a millisecond.
`quantities` has none: it parses the sizes and durations of options."""


@pytest.mark.parametrize("command", sorted(WIRE_TYPES))
def test_everyday_commands_import_nothing_heavy(command: str, box_server: ServerProcess, box_cli: Cli) -> None:
    """So that a command answers at once. Who needs one of these imports it where it is needed."""
    home = ("--home", str(box_server.home))
    box_cli("box", "list")  # a server that is still opening its providers answers late
    arguments: tuple[str, ...]
    if command == "append":
        arguments = ("thread", "append", box_cli("thread", "new").out.strip(), "hello", *home)
    elif command == "exec":
        box_cli("box", "create", "--key", "everyday")
        arguments = ("box", "exec", *home, "everyday", "--", "true")
    elif command == "list with a hint":
        arguments = ("box", "list", "--key", "no-such-key", *home)
    else:
        arguments = ("box", command, *home)
    modules = modules_after(*arguments)
    assert HEAVY & modules == set()
    ours = {name for name in modules if name.startswith("holdfast.")}
    assert {name.split(".")[1] for name in ours} <= {"api", "cli", "client"}
    assert {name for name in ours if name.startswith("holdfast.api.")} <= WIRE_TYPES[command]


def test_a_command_imports_its_own_module_only() -> None:
    modules = modules_after("thread", "--help")
    assert "holdfast.cli.thread.commands" in modules
    assert not modules & {f"holdfast.cli.{name}" for name in ("box.commands", "run.launch", "server.up", "key")}
    assert not modules & {"holdfast.client.client", "holdfast.server.compose", "httpx", "fastapi", "rich"}


def test_version_is_the_packages(bare_cli: Cli) -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"holdfast {holdfast.__version__}\n"
    assert bare_cli("--version").out == done.stdout


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_output_to_a_full_disk_is_an_error_and_no_traceback(server: ServerProcess, form: list[str]) -> None:
    command = [sys.executable, "-m", "holdfast", "thread", "list", "--home", str(server.home), *form]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    assert done.returncode == Exit.FAILURE
    assert "cannot write the output: the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_help_names_every_command(bare_cli: Cli) -> None:
    for arguments in (("--help",), ()):
        help = bare_cli(*arguments).out
        assert all(f"\n  {name} " in help for name in COMMANDS)
    threads = bare_cli("thread", "--help").out
    for name in ("new", "list", "show", "tail", "entries", "append", "rename", "archive", "delete", "token"):
        assert f"\n  {name} " in threads
        assert "--json" in bare_cli("thread", name, "--help").out


@pytest.mark.parametrize(
    ("arguments", "what", "next_step"),
    [
        (("thred",), "Did you mean 'thread'", "holdfast --help"),
        (("thread", "lits"), "Did you mean 'list'?", "holdfast thread --help"),
        (("thread", "list", "--limit", "many"), "--limit", "holdfast thread list --help"),
        (("thread", "list", "--status", "asleep"), "asleep", "holdfast thread list --help"),
        (("thread", "show"), "Missing", "holdfast thread show --help"),
        (("thread", "list", "--nonsense"), "--nonsense", "holdfast thread list --help"),
        (("thread", "new", "--label", ":x"), "':x' is not a label", "--label team:core"),
        (("thread", "tail", "t-1", "--since", "x+y"), "'x+y' is not a position", None),
        (("up", "--port", "70000"), "--port", "holdfast up --help"),
    ],
)
def test_mistakes_are_explained(bare_cli: Cli, arguments: tuple[str, ...], what: str, next_step: str | None) -> None:
    outcome = bare_cli(*arguments)
    assert (outcome.exit, outcome.out) == (Exit.USAGE, "")
    assert outcome.err.startswith("  error        ")
    assert what in outcome.err
    if next_step is not None:
        assert f"  next         {next_step}" in outcome.err or next_step in outcome.err


def test_completion_is_there(bare_cli: Cli) -> None:
    environment = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": "holdfast thread t",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "holdfast"], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert set(done.stdout.split()) == {"tail", "token", "trace", "tree", "turns"}
    shown = subprocess.run(
        # It asks which shell it was started from.
        ["bash", "-c", '"$@"; true', "bash", sys.executable, "-m", "holdfast", "--show-completion", "bash"],
        env={**os.environ, "SHELL": "/bin/bash"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "_HOLDFAST_COMPLETE" in shown.stdout


def on_terminal(*arguments: str, **environment: str) -> str:
    """What a person sees: the command's output on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not data:
            break
        seen += data
    os.close(ours)
    process.wait(timeout=240)
    return seen.decode()


def test_people_get_colour_and_hints(server: ServerProcess, cli: Cli) -> None:
    made = on_terminal("thread", "new", "for people", "--home", str(server.home))
    assert "\x1b[" in made
    assert "holdfast thread append" in made
    id = cli("thread", "new", "a title that is far too long for one line of this terminal " * 2).out.strip()
    listed = on_terminal("thread", "list", "--home", str(server.home))
    assert id in listed
    assert "…" in listed
    assert "\x1b[" in listed
    assert "for people" in listed
    assert "\x1b[" not in on_terminal("thread", "list", "--home", str(server.home), NO_COLOR="1", TERM="dumb")
    assert "\x1b[" not in cli("thread", "list").out


def test_up_says_where_it_is_and_refuses_a_second_one(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    command = [sys.executable, "-m", "holdfast", "up", "--home", home, "--port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline() for _ in range(3)]
        second = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=240, check=False)
        server.terminate()
        _, err = server.communicate(timeout=240)
    assert lines[0].startswith("  server       http://127.0.0.1:")
    assert lines[1] == f"  home         {home}\n"
    assert lines[2].startswith("  api key      hf_")
    assert second.returncode == Exit.CONFLICT
    assert home in json.loads(second.stderr)["error"]["message"]
    assert server.returncode == 0
    assert "stopped" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--no-auth", "--host", "0.0.0.0"), "--no-auth"),
        (("--home", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_up_says_why_it_cannot(bare_cli: Cli, tmp_path: Path, arguments: tuple[str, ...], what: str) -> None:
    command = [sys.executable, "-m", "holdfast", "up", "--home", str(tmp_path), "--port", "0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == Exit.FAILURE
    assert what in done.stderr
    assert "Traceback" not in done.stderr


def test_keys_by_command(cli: Cli, bare_cli: Cli, server: ServerProcess) -> None:
    secret = cli("key", "create", "laptop").out.strip()
    assert secret.startswith("hf_")
    assert bare_cli("thread", "list", "--server", server.url, "--api-key", secret).exit == 0
    made = cli("key", "create", "desktop", "--json").json()
    assert made["id"] in cli("key", "list").out
    assert cli("key", "revoke", made["id"], "--yes", "--json").json() == {"id": made["id"], "revoked": True}
    [row] = [each for each in cli("key", "list", "--json").json()["keys"] if each["id"] == made["id"]]
    assert row["revokedAt"] is not None
    assert cli("key", "revoke", "k-nobody", "--yes").exit == Exit.NOT_FOUND
    refused = bare_cli("thread", "list", "--server", server.url, "--api-key", made["key"])
    assert (refused.exit, "revoked" in refused.err) == (Exit.NOT_AUTHORISED, True)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("tasks", "holdfast task list"),
        ("stop", "holdfast down"),
        ("key create", "holdfast key create NAME"),
        ("delegate t-1", "holdfast delegate THREAD PROMPT"),
        ("zzz", "holdfast --help"),
    ],
)
def test_who_mistypes_a_command_is_shown_the_one_that_was_meant(bare_cli: Cli, typed: str, shown: str) -> None:
    outcome = bare_cli(*typed.split())
    assert outcome.exit == Exit.USAGE
    assert shown in " ".join(outcome.err.split())


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("up --port 99999", "it must be at most 65535"),
        ("up --port -1", "it must be at least 0"),
        ("thread list --limit 0", "it must be at least 1"),
    ],
)
def test_a_number_out_of_range_is_told_the_range(bare_cli: Cli, typed: str, shown: str) -> None:
    outcome = bare_cli(*typed.split())
    assert outcome.exit == Exit.USAGE
    words = " ".join(outcome.err.split())
    assert shown in words
    assert "Input should" not in words
