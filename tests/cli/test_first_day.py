"""What makes the command line pleasant from the first day on: names in short, completion, lists, narrow screens."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from tests.cli.conftest import Cli

from holdfast.cli.exits import Exit
from holdfast.cli.terminal.console import fitting
from holdfast.testing.server import ServerProcess


def test_the_beginning_of_an_id_is_enough(cli: Cli) -> None:
    first = cli("thread", "new", "One", "--id", "t-unlike-one").out.strip()
    cli("thread", "new", "Two", "--id", "t-unlike-two")
    assert cli("thread", "append", "t-unlike-o", "hello").exit == 0
    assert "hello" in cli("thread", "entries", "unlike-o").out
    assert cli("thread", "show", "t-unlike-o", "--json").json()["id"] == first
    assert cli("thread", "rename", "unlike-o", "Another").exit == 0
    many = cli("thread", "show", "t-unlike")
    assert many.exit == Exit.USAGE
    assert "t-unlike-one" in many.err
    assert "t-unlike-two" in many.err
    assert cli("thread", "delete", "t-unlike", "--yes").exit == Exit.USAGE, "nothing is deleted by a guess"
    assert cli("thread", "show", "t-").exit == Exit.NOT_FOUND
    assert cli("thread", "show", "t-nobody-has-this").exit == Exit.NOT_FOUND
    assert cli("thread", "delete", "t-unlike-o", "--yes").out.split() == ["deleted", first]
    cli("thread", "delete", "t-unlike-two", "--yes")


def test_a_short_beginning_is_enough_where_only_one_thread_has_it(cli: Cli) -> None:
    id = cli("thread", "new", "--id", "t-z-1m7k6c-with-dashes").out.strip()
    for name in ("t-z", "t-z-", "t-z-1m"):
        assert cli("thread", "show", name, "--json").json()["id"] == id
    assert cli("thread", "show", "z").exit == Exit.NOT_FOUND, "that is not how an id begins, and too short to search"
    cli("thread", "delete", id, "--yes")


def test_a_token_opens_its_thread_and_guesses_none(cli: Cli) -> None:
    id = cli("thread", "new", "--id", "t-tokened-one").out.strip()
    token = cli("thread", "token", id).out.strip()
    assert cli("thread", "entries", id, "--api-key", token).exit == 0
    assert cli("thread", "entries", "t-tokened", "--api-key", token).exit in (Exit.NOT_AUTHORISED, Exit.NOT_FOUND)
    cli("thread", "delete", id, "--yes")


@pytest.mark.parametrize(
    "arguments",
    [
        ("thread", "delete", "{thread}"),
        ("volume", "delete", "asked-for"),
        ("image", "remove", "i"),
        ("model", "remove", "asked-for"),
        ("key", "revoke", "{key}"),
        ("interpreter", "delete", "i-1"),
        ("box", "snapshots", "--delete", "s-1"),
        ("box", "prune"),
    ],
)
def test_what_deletes_asks_and_takes_yes(cli: Cli, arguments: tuple[str, ...]) -> None:
    thread = cli("thread", "new").out.strip()
    cli("key", "create", "asked for")
    key = next(each["id"] for each in cli("key", "list", "--json").json()["keys"] if each["revokedAt"] is None)
    cli("volume", "create", "asked-for")
    cli("model", "add", "asked-for", "--base-url", "http://127.0.0.1:9/v1", "--api", "openai-chat")
    words = [word.format(thread=thread, key=key) for word in arguments]
    refused = cli(*words)
    assert refused.exit == Exit.USAGE
    assert "there is no terminal to ask" in refused.err
    assert f"next         holdfast {' '.join(words)} --yes" in refused.err
    cli("thread", "delete", thread, "--yes")
    cli("volume", "delete", "asked-for", "--yes")
    cli("model", "remove", "asked-for", "--yes")
    cli("key", "revoke", key, "--yes")


@pytest.mark.parametrize("yes", [(), ("--yes",)])
@pytest.mark.parametrize(
    ("arguments", "next_step"),
    [
        (("volume", "delete", "nope"), "holdfast volume list"),
        (("key", "revoke", "nope"), "holdfast key list"),
        (("model", "remove", "nope"), "holdfast model list"),
        (("thread", "delete", "t-nope"), "holdfast thread list"),
    ],
)
def test_what_is_not_there_is_said_before_anybody_is_asked(
    cli: Cli, arguments: tuple[str, ...], yes: tuple[str, ...], next_step: str
) -> None:
    refused = cli(*arguments, *yes)
    assert refused.exit == Exit.NOT_FOUND, refused.err
    assert next_step in refused.err.partition("next  ")[2]
    assert "create nope" not in refused.err


def test_a_hint_leads_on_when_it_is_followed(cli: Cli) -> None:
    """A fork is what can be compared; an interpreter that is not kept is not in the list."""
    one, two = (cli("thread", "new").out.strip() for _ in range(2))
    assert f"next         compare a thread with a fork of it: holdfast fork {one}" in cli("compare", one, two).err
    assert "holdfast interpreter run FILE --keep" in cli("interpreter", "list").err
    missing = cli("import", "nope.jsonl")
    assert missing.exit == Exit.NOT_FOUND
    assert "holdfast import --from claude" in missing.err
    for each in (one, two):
        cli("thread", "delete", each, "--yes")


def test_who_revokes_a_key_by_its_name_is_told_its_id(cli: Cli) -> None:
    cli("key", "create", "curl-of-mine")
    [key] = [each["id"] for each in cli("key", "list", "--json").json()["keys"] if each["name"] == "curl-of-mine"]
    refused = cli("key", "revoke", "curl-of-mine")
    assert refused.exit == Exit.NOT_FOUND
    assert "curl-of-mine is the name of an API key, and not its id" in refused.err
    assert f"next         holdfast key revoke {key}" in refused.err
    cli("key", "revoke", key, "--yes")


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (("backup",), "holdfast backup DIR;"),
        (("interpreter", "delete"), "holdfast interpreter delete ID...;"),
        (("image", "pull"), "holdfast image pull NAME[:TAG|@DIGEST];"),
        (("compare",), "holdfast compare THREAD OTHER;"),
    ],
)
def test_missing_arguments_have_the_same_names_in_the_message_and_in_what_to_do(
    cli: Cli, arguments: tuple[str, ...], written: str
) -> None:
    refused = cli(*arguments)
    assert refused.exit == Exit.USAGE
    missing = written.rstrip(";").split()[len(arguments) + 1]
    assert f"Missing argument '{missing}'." in refused.err
    assert f"next         {written}" in refused.err


def test_a_thread_without_a_run_has_nothing_to_cancel_steer_or_resume(cli: Cli) -> None:
    id = cli("thread", "new").out.strip()
    assert {cli(*words).exit for words in (("cancel", id), ("steer", id, "go"), ("resume", id))} == {Exit.CONFLICT}
    cancelled = cli("cancel", id)
    assert "has no run to cancel" in cancelled.err
    assert "resume" not in cancelled.err
    assert cli("cancel", "r-nope").exit == Exit.NOT_FOUND
    cli("thread", "delete", id, "--yes")


def test_no_key_is_asked_for_where_agent_and_model_cannot_speak(cli: Cli) -> None:
    refused = cli("run", "x", "--agent", "claude", "--model", "openai")
    assert refused.exit == Exit.USAGE, refused.err
    assert "speaks anthropic, and openai speaks openai" in refused.err
    assert "needs a key" not in refused.err
    assert "anthropic needs a key" in cli("run", "x", "--agent", "claude", "--model", "anthropic").err


@pytest.mark.parametrize(
    ("arguments", "said", "next_step"),
    [
        (
            ("thread", "new", "--id", "Bad Id!"),
            "id: 'Bad Id!' does not fit: it takes letters, digits, - and _, at most 128",
            "holdfast thread new --help",
        ),
        (
            ("volume", "create", "bad name"),
            "name: 'bad name' does not fit: it takes letters, digits, dots, - and _, at most 63, and begins with a "
            "letter or digit",
            "holdfast volume create --help",
        ),
        (("key", "create", ""), "name: must not be empty", "holdfast key create --help"),
        (("box", "create", "--network", "foo"), "'foo' is not one of 'none', 'allow', 'open'", "holdfast box create"),
        (("interpreter", "run", "nofile.py"), "cannot read nofile.py: No such file or directory", "give a Python"),
    ],
)
def test_a_value_that_is_refused_is_told_in_plain_words_with_what_to_do(
    cli: Cli, arguments: tuple[str, ...], said: str, next_step: str
) -> None:
    refused = cli(*arguments)
    assert refused.exit == Exit.USAGE, refused.err
    assert said in refused.err
    assert f"next         {next_step}" in refused.err
    for raw in ("String should", "Value error", "[Errno"):
        assert raw not in refused.err


def complete(server: ServerProcess, *words: str) -> list[str]:
    """As bash asks."""
    line = ["holdfast", *words]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast"],
        env={
            **os.environ,
            "HOLDFAST_HOME": str(server.home),
            "HOLDFAST_CALLED_AS": "bin/holdfast",
            "_HOLDFAST_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(line),
            "COMP_CWORD": str(len(line) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout.split()


def test_shells_complete_ids_and_agents(cli: Cli, server: ServerProcess) -> None:
    id = cli("thread", "new", "Completed", "--id", "t-complete-me").out.strip()
    assert complete(server, "thread", "show", "t-comp") == [id]
    assert complete(server, "attach", "t-comp") == [id]
    assert complete(server, "run", "x", "--agent", "c") == ["claude", "codex"]
    assert complete(server, "resume", "t-nothing-like-it") == []
    assert "runs" in complete(server, "ru")
    cli("thread", "delete", id, "--yes")


def test_completion_without_a_server_says_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    class Nowhere:
        home = tmp_path_factory.mktemp("nowhere")

    assert complete(Nowhere(), "thread", "show", "t-") == []  # type: ignore[arg-type]


def test_runs_are_listed(cli: Cli) -> None:
    # Other tests may have launched some at the server that they share.
    assert cli("runs", "--agent", "nobody", "--json").json() == {"runs": []}
    assert 'holdfast run "what to do" --agent NAME' in cli("runs", "--agent", "nobody").out
    assert cli("runs", "--status", "nonsense").exit == Exit.USAGE


@pytest.mark.parametrize(
    ("widths", "room", "kept"),
    [
        ([16, 9, 7, 10, 60], 120, [16, 9, 7, 10, 60]),
        ([16, 9, 7, 10, 60], 80, [16, 9, 7, 10, 30]),
        ([16, 9, 7, 10, 60], 50, [16, 6, 6, 7, 7]),
        ([16, 9, 7, 10, 60], 10, [16, 4, 4, 4, 4]),
        ([30], 10, [30]),
    ],
)
def test_columns_give_way_and_the_first_stays(widths: list[int], room: int, kept: list[int]) -> None:
    assert fitting(widths, room) == kept


@pytest.mark.parametrize(
    ("widths", "numbers", "room", "kept"),
    [
        ([11, 7, 25, 9, 39], [False, False, False, True, False], 60, [11, 7, 15, 9, 10]),
        ([11, 7, 25, 9], [False, False, False, True], 40, [11, 7, 7, 9]),
        ([11, 9, 9], [False, True, True], 26, [11, 5, 6]),
    ],
)
def test_a_number_is_cut_only_when_no_text_is_left_to_cut(
    widths: list[int], numbers: list[bool], room: int, kept: list[int]
) -> None:
    assert fitting(widths, room, numbers) == kept


def on_terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What a command writes to a terminal that is so wide."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        stdin=there,
        stdout=there,
        stderr=there,
        env={**kept, "TERM": "xterm-256color", **environment},
    )
    os.close(there)
    said = b""
    while True:
        try:
            piece = os.read(here, 65536)
        except OSError:
            break
        if not piece:
            break
        said += piece
    process.wait(240)
    os.close(here)
    return said.decode()


def test_lists_fit_narrow_terminals(cli: Cli, server: ServerProcess) -> None:
    id = cli("thread", "new", "A title that is much longer than a narrow terminal has room for, by far").out.strip()
    for columns in (44, 60, 100):
        out = on_terminal(columns, "thread", "list", "--home", str(server.home))
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.splitlines()]
        [ours] = [line for line in lines if line.startswith(id)]  # an id is never cut, also not the long ones of others
        assert max(len(lines[0]), len(ours)) <= columns, lines
    cli("thread", "delete", id, "--yes")


def test_no_colour_means_none(server: ServerProcess) -> None:
    coloured = on_terminal(100, "doctor", "--home", str(server.home))
    plain = on_terminal(100, "doctor", "--home", str(server.home), NO_COLOR="1")
    pattern = r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|38|9[0-7])[;m]"
    assert re.search(pattern, coloured)
    assert not re.search(pattern, plain)
