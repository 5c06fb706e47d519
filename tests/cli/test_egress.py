"""`holdfast egress`, `box network` and `box egress`, on a server whose world has nothing in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("box_server")


@pytest.fixture
def policy(box_cli: Cli) -> Iterator[str]:
    made = box_cli("egress", "set", "web", "--allow", "default", "--allow", "*.example.com:443", "--bandwidth", "2M")
    assert made.exit == 0, made.err
    yield made.out
    box_cli("egress", "remove", "web")


def test_an_environment_has_a_policy_until_it_is_removed(box_cli: Cli, policy: str) -> None:
    assert "web" in policy
    assert "default, *.example.com:443" in policy
    assert "2 MB per second" in policy
    assert box_cli("egress", "show", "web").out == policy
    listed = box_cli("egress", "list")
    assert "web" in listed.out
    document = box_cli("egress", "list", "--json").json()
    network = {
        "mode": "allow",
        "allow": ["default", "*.example.com:443"],
        "bandwidth": 2 << 20,
        "connections": None,
        "secrets": [],
    }
    assert document == {"policies": [{"environment": "web", "network": network}]}


def test_a_policy_that_is_not_there_is_said_to_be_missing(box_cli: Cli) -> None:
    for command in ("show", "remove"):
        told = box_cli("egress", command, "nothing")
        assert told.exit == 3
        assert "no network policy" in told.err
        assert "holdfast egress set" in told.err


def test_rules_that_make_no_sense_are_refused_before_anything_is_asked(box_cli: Cli) -> None:
    told = box_cli("egress", "set", "web", "--allow", "no host!")
    assert told.exit == 2
    assert "is not a network rule" in told.err
    assert box_cli("egress", "set", "web", "--mode", "open", "--allow", "example.com").exit == 2


def test_the_default_list_is_shown(box_cli: Cli) -> None:
    assert box_cli("egress", "default", "--json").json() == {"rules": []}


@pytest.fixture
def networked(box_cli: Cli) -> Iterator[str]:
    made = box_cli("box", "create", "-q", "--allow", "example.com", "--connections", "7")
    assert made.exit == 0, made.err
    yield made.out.strip()
    box_cli("box", "delete", made.out.strip(), "--yes")


def test_the_network_of_a_box_is_shown_and_changed(box_cli: Cli, networked: str) -> None:
    shown = box_cli("box", "network", networked)
    assert "allow: example.com; 7 connections at once" in shown.out
    assert "allow: example.com; 7 connections at once" in box_cli("box", "show", networked).out
    changed = box_cli("box", "network", networked, "--mode", "open", "--json").json()
    assert changed["network"]["mode"] == "open"
    assert changed["network"]["connections"] is None
    assert "none" in box_cli("box", "network", networked, "--mode", "none").out


def test_what_a_box_was_refused_is_listed(box_cli: Cli, networked: str) -> None:
    assert "has made no requests" in box_cli("box", "egress", networked).out
    box_cli("box", "exec", networked, "--", "curl", "--silent", "http://elsewhere.example/")
    listed = box_cli("box", "egress", networked, "--denied")
    assert "denied" in listed.out
    assert "elsewhere.example:80" in listed.out
    assert "no rule covers elsewhere.example" in listed.out
    [decision] = box_cli("box", "egress", networked, "--json").json()["decisions"]
    assert (decision["host"], decision["allowed"], decision["method"]) == ("elsewhere.example", False, "GET")
