"""Settings of a server: an option before a variable, that before the file, that before the default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, start

from holdfast.cli.exits import Exit
from holdfast.server.config import declared
from holdfast.testing.server import ServerProcess

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def settings(cli: Cli, home: Path, *options: str) -> dict[str, dict[str, Any]]:
    outcome = cli("config", "show", "--home", str(home), "--json", *options)
    assert outcome.exit == 0, outcome.err
    return {each["name"]: each for each in outcome.json()["settings"]}


def test_each_source_comes_before_the_next(bare_cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pool(*options: str) -> tuple[object, object]:
        found = settings(bare_cli, home, *options)["pool"]
        return found["value"], found["source"]

    assert pool() == (8, "default")
    (home / "holdfast.toml").write_text("pool = 3\n")
    assert pool() == (3, "file")
    monkeypatch.setenv("HOLDFAST_POOL", "4")
    assert pool() == (4, "environment")
    assert pool("--pool", "5") == (5, "option")
    monkeypatch.setenv("HOLDFAST_POOL", "abc")
    wrong = bare_cli("config", "show", "--home", str(home))
    assert (wrong.exit, "it must be a whole number" in " ".join(wrong.err.split())) == (2, True)
    assert "HOLDFAST_POOL" in wrong.err


def test_switches_and_lists_have_the_same_sources(bare_cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "holdfast.toml").write_text('auth = false\nallow_private = ["10.0.0.0/8"]\ndocker_host = "tcp://d:1"\n')
    found = settings(bare_cli, home)
    assert (found["auth"]["value"], found["auth"]["source"]) == (False, "file")
    assert found["allow_private"]["value"] == ["10.0.0.0/8"]
    assert (found["docker_host"]["value"], found["docker_host"]["source"]) == ("tcp://d:1", "file")
    monkeypatch.setenv("HOLDFAST_NO_AUTH", "false")
    assert settings(bare_cli, home)["auth"]["value"] is True
    found = settings(bare_cli, home, "--no-auth", "--allow-private", "a.corp", "--allow-private", "b.corp")
    assert (found["auth"]["value"], found["allow_private"]["value"]) == (False, ["a.corp", "b.corp"])


def test_secrets_are_not_shown(bare_cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "holdfast.toml").write_text('sprites_token = "very-secret-one"\n')
    monkeypatch.setenv("DAYTONA_API_KEY", "very-secret-two")
    for options in ((), ("--json",)):
        shown = bare_cli("config", "show", "--home", str(home), *options).out
        assert "daytona_api_key" in shown
        assert "sprites_token" in shown
        assert "very-secret" not in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pool = ", "is not TOML"),
        ("pol = 3", "has 'pol', which is no setting"),
        ("prot = 1", "write port, if that is meant; the settings are the options in holdfast up --help"),
        ("zzzzzz = 1", "correct the file; the settings are the options in holdfast up --help"),
        ("first_key = false", "has 'first_key', which is no setting"),
        ('pool = "3"', "is not a whole number"),
        ("pool = true", "is not a whole number"),
        ("pool = 5000", "at most 1000"),
        ("port = -1", "at least 0"),
        ('log_level = "loud"', "none of debug"),
        ("allow_private = [1]", "is not a list of texts"),
        ("daytona_api_key = 90210777", "which is not a text"),
    ],
)
def test_a_file_that_is_not_right_is_refused(bare_cli: Cli, home: Path, text: str, says: str) -> None:
    (home / "holdfast.toml").write_text(text)
    refused = bare_cli("config", "show", "--home", str(home))
    assert refused.exit == Exit.USAGE
    assert says in " ".join(refused.err.split())
    assert "90210777" not in refused.err


def test_a_server_uses_the_file_of_its_home(home: Path) -> None:
    (home / "holdfast.toml").write_text('port = 0\nauth = false\nhost = "127.0.0.2"\n')
    with start("up", "--home", str(home)) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        process.communicate(timeout=240)
    assert "http://127.0.0.2:" in said[0]
    assert "none needed" in said[2]


def test_the_document_lists_every_setting() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `([^`]+)` \| `([^`]+)` \|", (CHECKOUT / "docs/configuration.md").read_text(), re.M
    )
    assert rows == [(each.name, each.option, each.variable) for each in declared() if not each.hidden]


def test_a_server_that_runs_now_is_named(bare_cli: Cli, home: Path) -> None:
    """Its port may be another one than that of the settings, which was taken when it started."""
    assert bare_cli("config", "show", "--home", str(home), "--json").json()["running"] is None
    with ServerProcess(home) as server:
        assert bare_cli("config", "show", "--home", str(home), "--json").json()["running"] == server.url
        shown = bare_cli("config", "show", "--home", str(home)).out
        assert f"server {server.url}" in " ".join(shown.split())
