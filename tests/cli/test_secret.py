"""`holdfast secret`: set, list, show, rotate and remove. The value is never an argument and never shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.conftest import Cli

VALUE = "sk-live-0123456789abcdefghij"


@pytest.fixture
def token(cli: Cli) -> Iterator[str]:
    command = ("secret", "set", "TOKEN", "--host", "api.example.com", "--host", "api.example.org:8443")
    made = cli(*command, stdin=f"{VALUE}\n")
    assert made.exit == 0, made.err
    yield made.out
    cli("secret", "remove", "TOKEN", "--yes")


def test_a_secret_is_set_and_shown_without_its_value(cli: Cli, token: str) -> None:
    assert "api.example.com (Authorization)" in token
    assert "TOKEN=holdfast-placeholder-TOKEN" in token
    listed, shown = cli("secret", "list"), cli("secret", "show", "TOKEN")
    assert "api.example.org:8443 (Authorization)" in listed.out
    assert "set" in shown.out
    [document] = cli("secret", "list", "--json").json()["secrets"]
    assert document["bindings"][0]["format"] == "Bearer {}"
    for text in (token, listed.out, shown.out, str(document)):
        assert VALUE not in text


def test_a_secret_is_rotated_and_removed(cli: Cli, token: str) -> None:
    assert "version 2" in cli("secret", "rotate", "TOKEN", stdin="sk-live-zyxwvutsrqponmlkjihg\n").out
    assert cli("secret", "remove", "TOKEN", "--yes").exit == 0
    assert cli("secret", "list", "--json").json() == {"secrets": []}
    assert "removed" in cli("secret", "show", "TOKEN").out
    gone = cli("secret", "rotate", "TOKEN", stdin=VALUE)
    assert gone.exit == 3
    assert "there is no secret 'TOKEN'" in gone.err


def test_an_exposed_secret_is_said_to_be_one_loudly(cli: Cli) -> None:
    made = cli("secret", "set", "PLAIN", "--expose", "env", stdin=VALUE)
    assert "boxes get the value itself, as a variable" in made.out + made.err
    assert "IN BOXES, as a variable" in cli("secret", "list").out
    cli("secret", "remove", "PLAIN", "--yes")


def test_repositories_of_one_host_are_one_binding(cli: Cli) -> None:
    command = ("secret", "set", "GIT", "--git", "github.com/acme/app", "--git", "https://github.com/acme/lib.git")
    [binding] = cli(*command, "--json", stdin=VALUE).json()["bindings"]
    assert binding["repositories"] == ["acme/app", "acme/lib"]
    assert "git github.com/acme/app, git github.com/acme/lib" in cli("secret", "list").out
    cli("secret", "remove", "GIT", "--yes")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "would go nowhere"),
        (("--header", "X-Key"), "the host is missing"),
        (("--host", "a.example.com", "--query", "key", "--basic", "me"), "exclude each other"),
        (("--git", "github.com"), "is not a repository"),
        (("--host", "*.example.com"), "is not a host that a secret can be bound to"),
    ],
)
def test_a_mistake_is_named(cli: Cli, options: tuple[str, ...], said: str) -> None:
    made = cli("secret", "set", "TOKEN", *options, stdin=VALUE)
    assert made.exit == 2
    assert said in made.err


def test_an_empty_value_is_refused(cli: Cli) -> None:
    made = cli("secret", "set", "TOKEN", "--host", "api.example.com", stdin="\n")
    assert made.exit == 2
    assert "there is no value for TOKEN" in made.err
