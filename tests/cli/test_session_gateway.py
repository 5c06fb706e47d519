"""`holdfast session open`, `members`, `revoke` and `tunnel`."""

from __future__ import annotations

import httpx
import pytest
from tests.cli.conftest import Cli

from holdfast.testing.server import ServerProcess


@pytest.fixture
def thread(cli: Cli) -> str:
    return str(cli("thread", "new", "--json").json()["id"])


def status(server: ServerProcess, thread: str, url: str) -> int:
    host = f"{thread}.localhost:{server.address[1]}"
    return httpx.get(
        server.url + url.removeprefix(f"http://{host}"), headers={"host": host}, trust_env=False
    ).status_code


def test_a_link_is_opened_until_it_is_revoked(cli: Cli, server: ServerProcess, thread: str) -> None:
    printed = cli("session", "open", thread[:10])
    assert printed.exit == 0, printed.err
    (url,) = printed.out.split()  # in a pipe, only the link
    assert status(server, thread, url) == 303
    shown = cli("session", "open", thread, "--for", "ada", "--role", "viewer", "--expires", "1h", "--json").json()
    assert (shown["subject"], shown["role"]) == ("ada", "viewer")
    assert "viewer" in cli("session", "members", thread).out
    assert cli("session", "revoke", thread, url).exit == 0
    assert [status(server, thread, each) for each in (url, shown["url"])] == [401, 303]
    assert cli("session", "revoke", thread).exit == 0
    assert status(server, thread, shown["url"]) == 401
    left = cli("session", "members", thread, "--remove", "ada", "--json").json()["members"]
    assert [each["role"] for each in left] == ["owner"]


def test_a_stranger_needs_a_role(cli: Cli, thread: str) -> None:
    refused = cli("session", "open", thread, "--for", "zoe")
    assert refused.exit != 0
    assert "not a member" in refused.err


def test_tunnels_are_added_listed_and_deleted(cli: Cli, thread: str) -> None:
    assert "no tunnels" in cli("session", "tunnel", thread).out
    added = cli("session", "tunnel", thread, "app", "3000")
    assert f"http://app--{thread}.localhost" in added.out
    assert cli("session", "tunnel", thread, "--json").json()["tunnels"][0]["port"] == 3000
    refused = cli("session", "tunnel", thread, "vscode", "3000")
    assert refused.exit != 0
    assert "route" in refused.err
    assert cli("session", "tunnel", thread, "app").exit == 2
    assert cli("session", "tunnel", thread, "--delete").exit == 2
    assert "no tunnels" in cli("session", "tunnel", thread, "app", "--delete").out
