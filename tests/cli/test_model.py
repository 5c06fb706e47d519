"""`holdfast model`: add, list, test and remove."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest
from tests.cli.conftest import Cli

from holdfast.testing.model import ScriptedModel, error
from holdfast.testing.server import ServerProcess

KEY = "sk-real-0123456789abcdefghij"


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=KEY) as model:
        yield model


@pytest.fixture
def added(cli: Cli, provider: ScriptedModel) -> Iterator[str]:
    command = ("model", "add", "mine", "--api", "openai-chat", "--api", "anthropic", "--base-url", provider.url)
    made = cli(*command, "--key-stdin", "--model", "scripted", "--context", "32000", stdin=f"{KEY}\n")
    assert made.exit == 0, made.err
    yield made.out
    cli("model", "remove", "mine", "--yes")


def test_a_model_is_added_and_shown_without_its_key(cli: Cli, added: str, provider: ScriptedModel) -> None:
    assert "mine" in added
    assert f"openai-chat  {provider.url}" in added
    assert "32,000 tokens" in added
    assert "set" in added
    assert "holdfast model test mine" in added
    listed = cli("model", "list")
    assert "ready" in listed.out.splitlines()[1]
    assert "mine" in listed.out.splitlines()[1]
    [mine] = [each for each in cli("model", "list", "--json").json()["models"] if each["name"] == "mine"]
    assert mine["hasKey"] is True
    for text in (added, listed.out, str(mine)):
        assert KEY not in text
        assert KEY[-4:] not in text


def test_a_model_is_tried(cli: Cli, added: str, provider: ScriptedModel) -> None:
    provider.answer_sides("ready")
    tried = cli("model", "test", "mine")
    assert tried.exit == 0, tried.err
    assert "mine/scripted" in tried.out
    assert "ready" in tried.out
    assert cli("model", "test", "mine/other", "--api", "anthropic", "--json").json()["model"] == "mine/other"


@pytest.mark.parametrize(
    ("status", "exit", "hint"),
    [(401, 4, "the key is not accepted"), (404, 3, "check the name 'scripted'"), (500, 1, "the provider has trouble")],
)
def test_a_trial_that_fails_says_what_to_do(
    cli: Cli, added: str, provider: ScriptedModel, status: int, exit: int, hint: str
) -> None:
    provider.answer_sides(error(status, "it says no \x1b[31m"))
    tried = cli("model", "test", "mine")
    assert tried.exit == exit
    assert f"mine/scripted does not answer ({status}): it says no" in tried.err
    assert "\x1b" not in tried.err
    assert hint in tried.err


def test_a_server_that_is_not_there_is_said_to_be_unreachable(cli: Cli, added: str) -> None:
    assert cli("model", "add", "mine", "--base-url", "http://127.0.0.1:1").exit == 0
    tried = cli("model", "test", "mine", "--json")
    assert tried.exit == 5
    assert "cannot be reached" in tried.err


@pytest.mark.parametrize(
    ("command", "exit", "words"),
    [
        (("add", "unheard"), 2, "give --api and --base-url, or use a built-in provider: anthropic"),
        (("add", "mine", "--base-url", "http://127.0.0.1:1"), 2, "is not known"),
        (("add", "Mine", "--base-url", "http://127.0.0.1:1", "--api", "anthropic"), 2, "name"),
        (("add", "openai", "--key-stdin"), 2, "contains no key"),
        (("add", "mine", "--api", "telepathy"), 2, "telepathy"),
        (("test", "unheard"), 3, "there is no model 'unheard'"),
        (("test", "openai"), 6, "holdfast model add openai --key-stdin"),
        (("remove", "unheard", "--yes"), 3, "there is no model 'unheard'"),
        (("remove", "openai", "--yes"), 3, "nothing to remove"),
    ],
)
def test_a_mistake_is_explained(cli: Cli, command: tuple[str, ...], exit: int, words: str) -> None:
    told = cli("model", *command)
    assert told.exit == exit, told
    assert words in told.err


def test_the_providers_that_are_built_in_are_listed(cli: Cli) -> None:
    listed = cli("model", "list").out
    for name in ("anthropic", "openai", "openrouter", "google"):
        assert name in listed
    assert "no key" in listed


def test_on_a_terminal_a_key_is_typed_unseen(cli: Cli, server: ServerProcess) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "model", "add", "groq", "--home", str(server.home)]
    # In a session of its own: it must not find the terminal of whoever runs the tests.
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as program:
        os.close(theirs)
        seen = b""
        while b"key" not in seen:
            seen += os.read(ours, 4096)
        deadline = time.monotonic() + 240
        while termios.tcgetattr(ours)[3] & termios.ECHO and time.monotonic() < deadline:  # until it hides what is typed
            os.sched_yield()
        os.write(ours, KEY.encode() + b"\n")
        with contextlib.suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 4096):
                seen += piece
        assert program.wait(240) == 0
    os.close(ours)
    assert b"set" in seen
    assert KEY.encode() not in seen
    assert cli("model", "remove", "groq", "--yes").exit == 0
