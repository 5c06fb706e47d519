"""`holdfast provider`: list, add, test and remove."""

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

from holdfast.cli.errors import CommandError
from holdfast.cli.provider.commands import parse_credential
from holdfast.cli.server.provider_options import split_by_source
from holdfast.providers.modal.descriptor import MODAL
from holdfast.providers.sprites.descriptor import SPRITES
from holdfast.testing.modal import ModalCloudThread
from holdfast.testing.server import ServerProcess

KEY = "as-real-0123456789abcdefghij"
TOKEN = f"MODAL_TOKEN_ID=ak-1\nMODAL_TOKEN_SECRET={KEY}\n"


@pytest.fixture(scope="module")
def modal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalCloudThread]:
    with ModalCloudThread(tmp_path_factory.mktemp("cloud")) as thread:
        yield thread


@pytest.fixture
def added(cli: Cli, modal: ModalCloudThread) -> Iterator[str]:
    command = ("provider", "add", "work", "--kind", "modal", "--modal-server-url", modal.cloud.url)
    token = f"# mine\nexport modal_token_id={modal.cloud.token_id}\nMODAL_TOKEN_SECRET='{modal.cloud.token_secret}'\n"
    made = cli(*command, "--modal-app", "boxes", "--credential-stdin", stdin=token)
    assert made.exit == 0, made.err
    yield made.out
    cli("provider", "remove", "work", "--yes")


def test_an_account_is_added_and_shown_without_its_credential(cli: Cli, added: str, modal: ModalCloudThread) -> None:
    assert "work  modal" in added
    assert "modal_app = boxes" in added
    assert "sealed" in added
    assert "holdfast provider test work" in added
    listed = cli("provider", "list")
    [line] = [line for line in listed.out.splitlines() if line.startswith("work")]
    assert line.split()[:5] == ["work", "modal", "ready", "0", "sealed"]
    [record] = [each for each in cli("provider", "list", "--json").json()["providers"] if each["name"] == "work"]
    assert (record["kind"], record["isReady"], record["credential"]) == ("modal", True, "sealed")
    for text in (added, listed.out, str(record)):
        assert modal.cloud.token_secret not in text
        assert modal.cloud.token_id not in text


def test_an_account_is_tested_step_by_step(cli: Cli, added: str) -> None:
    tried = cli("provider", "test", "work")
    assert tried.exit == 0, tried.out
    lines = tried.out.splitlines()
    assert [line.split()[1] for line in lines[:5]] == ["reach", "authorize", "create", "exec", "delete"]
    assert all(line.split()[0] == "✓" and " ms " in line for line in lines[:5])
    assert "holdfast box create --provider work" in lines[-1]
    trial = cli("provider", "test", "work", "--json").json()
    assert (trial["name"], trial["ok"], len(trial["steps"])) == ("work", True, 5)


def test_a_test_that_fails_says_what_to_do(cli: Cli, added: str) -> None:
    changed = cli("provider", "add", "work", "--credential-stdin", stdin="modal_token_secret=as-wrong-0123456789\n")
    assert changed.exit == 0, changed.err
    tried = cli("provider", "test", "work")
    assert tried.exit == 1
    assert "✗ authorize" in tried.out
    assert "Token validation failed" in tried.out
    assert "next: " in tried.out
    assert "as-wrong" not in tried.out


@pytest.mark.parametrize(
    ("command", "stdin", "exit", "words"),
    [
        (("add", "work"), "", 2, "give --kind; kinds with accounts: "),
        (("add", "work", "--kind", "nowhere"), "", 2, "no kind of provider 'nowhere'"),
        (("add", "local"), "", 2, "local needs no account"),
        (("add", "work", "--kind", "modal"), "", 2, "needs a credential of its own"),
        (("add", "Work", "--kind", "modal"), "", 2, "name"),
        (("add", "work", "--kind", "modal", "--credential-stdin"), "", 2, "contains no credential"),
        (("add", "work", "--kind", "modal", "--credential-stdin"), KEY, 2, "line 1 of standard input"),
        (("add", "work", "--kind", "modal", "--credential-stdin", "--sprites-url", "x"), TOKEN, 2, "no setting"),
        (("add", "work", "--kind", "modal", "--credential-env"), "", 2, "MODAL_TOKEN_ID, MODAL_TOKEN_SECRET"),
        (("test", "nothing"), "", 3, "there is no provider 'nothing'"),
        (("remove", "nothing", "--yes"), "", 3, "there is no provider 'nothing'"),
        (("remove", "local", "--yes"), "", 3, "nothing to remove"),
        (("remove", "local"), "", 2, "holdfast provider remove local --yes"),
    ],
)
def test_a_mistake_is_explained(cli: Cli, command: tuple[str, ...], stdin: str, exit: int, words: str) -> None:
    told = cli("provider", *command, stdin=stdin)
    assert told.exit == exit, told
    assert words in told.err
    assert KEY not in told.err


def test_a_secret_is_no_option(cli: Cli) -> None:
    told = cli("provider", "add", "work", "--kind", "modal", "--modal-token-secret", KEY)
    assert told.exit == 2
    assert KEY not in told.err


def test_a_credential_comes_from_the_variables_of_the_vendor(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPRITES_TOKEN", KEY)
    made = cli("provider", "add", "mine", "--kind", "sprites", "--credential-env", "--json").json()
    assert (made["credential"], made["isReady"]) == ("sealed", True)
    assert cli("provider", "remove", "mine", "--yes", "--json").json() == {"name": "mine", "removed": True}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (KEY, {"sprites_token": KEY}),
        (f"\n{KEY}==\n", {"sprites_token": f"{KEY}=="}),
        (f"SPRITES_TOKEN={KEY}", {"sprites_token": KEY}),
        (f'export sprites_token="{KEY}"', {"sprites_token": KEY}),
    ],
)
def test_a_credential_of_one_part_is_given_alone_or_by_name(text: str, found: dict[str, str]) -> None:
    assert parse_credential(text, SPRITES.secrets) == found


def test_what_is_wrong_with_a_credential_is_told_without_quoting_it() -> None:
    for text in (KEY, f"ak-1\n{KEY}", f"OTHER={KEY}"):
        with pytest.raises(CommandError) as caught:
            parse_credential(text, MODAL.secrets)
        assert KEY not in str(caught.value)


def test_options_and_variables_of_up_are_told_apart() -> None:
    given = {"modal_token_id": "a", "modal_app": "b", "sprites_token": "c"}
    flags, environment = split_by_source(given, ("--port", "--modal-app"))
    assert flags == {"modal_app": "b"}
    assert environment == {"modal_token_id": "a", "sprites_token": "c"}


def test_on_a_terminal_a_credential_is_typed_unseen(cli: Cli, server: ServerProcess) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "provider", "add", "sprites", "--home", str(server.home)]
    # In a session of its own: it must not find the terminal of whoever runs the tests.
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as program:
        os.close(theirs)
        seen = b""
        while b"sprites token" not in seen:
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
    assert b"sealed" in seen
    assert KEY.encode() not in seen
    assert cli("provider", "remove", "sprites", "--yes").exit == 0
