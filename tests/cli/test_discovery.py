"""Which server a command uses, and what it says when there is none."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.session import FoundServer, find_server
from holdfast.client.local_server import default_home
from holdfast.testing.server import ServerProcess

HERE = "http://127.0.0.1:1111"
THERE = "http://127.0.0.1:2222"


def note(home: Path, url: str, api_key: str | None) -> None:
    """What a server writes into its home."""
    told = {"url": url, "pid": 1, "version": "0", "startedAt": 0, "apiKey": api_key}
    (home / "server.json").write_text(json.dumps(told))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    note(tmp_path, HERE, "hf_here")
    return tmp_path


def find(
    default: Path,
    server: str | None = None,
    api_key: str | None = None,
    home: Path | None = None,
    **environment: str,
) -> tuple[str, str | None]:
    found: FoundServer = find_server(server, api_key, home, environment, default)
    return found.url, found.api_key


def test_the_home_is_used_where_nothing_is_said(home: Path) -> None:
    assert find(home) == (HERE, "hf_here")
    assert find(home, api_key="hf_other") == (HERE, "hf_other")
    assert find(home, HOLDFAST_API_KEY="hf_other") == (HERE, "hf_other")


def test_a_url_wins_and_never_gets_the_key_of_another_server(home: Path) -> None:
    assert find(home, server=THERE) == (THERE, None)
    assert find(home, HOLDFAST_URL=THERE) == (THERE, None)
    assert find(home, server=THERE, HOLDFAST_API_KEY="hf_1") == (THERE, "hf_1")
    assert find(home, server=THERE, HOLDFAST_URL=HERE) == (THERE, None)
    assert find(home, server=HERE + "/") == (HERE + "/", "hf_here")


def test_the_command_line_beats_the_environment(home: Path, tmp_path: Path) -> None:
    assert find(tmp_path / "other", home=home, HOLDFAST_URL=THERE) == (HERE, "hf_here")
    assert find(home, api_key="hf_1", HOLDFAST_API_KEY="hf_2") == (HERE, "hf_1")


def test_no_server_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=str(tmp_path)) as raised:
        find(tmp_path)
    assert raised.value.exit is Exit.UNREACHABLE
    assert "holdfast up" in str(raised.value.next_step)


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}', "not json"])
def test_a_broken_note_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    with pytest.raises(CommandError, match=r"cannot read .*server\.json"):
        find(tmp_path)


def test_homes_by_platform() -> None:
    user = Path("/home/u")
    assert default_home({}, "linux", user) == Path("/home/u/.local/share/holdfast")
    assert default_home({"XDG_DATA_HOME": "/data"}, "linux", user) == Path("/data/holdfast")
    assert default_home({"XDG_DATA_HOME": "relative"}, "linux", user) == Path("/home/u/.local/share/holdfast")
    assert default_home({}, "darwin", user) == Path("/home/u/Library/Application Support/holdfast")
    assert default_home({"HOLDFAST_HOME": "/h", "XDG_DATA_HOME": "/data"}, "linux", user) == Path("/h")


def test_the_environment_is_read(bare_cli: Cli, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(server.home))
    assert bare_cli("thread", "list").exit == 0
    monkeypatch.setenv("HOLDFAST_HOME", "/nowhere")
    monkeypatch.setenv("HOLDFAST_URL", server.url)
    refused = bare_cli("thread", "list")
    assert refused.exit == Exit.NOT_AUTHORISED
    assert "--api-key" in refused.err or "holdfast key create" in refused.err or "Bearer" in refused.err
    monkeypatch.setenv("HOLDFAST_API_KEY", "hf_wrong")
    for given, said in (
        ((), "correct HOLDFAST_API_KEY, or unset it"),
        (("--api-key", "hf_x"), "correct --api-key, or"),
    ):
        wrong = bare_cli("thread", "list", *given)
        assert wrong.exit == Exit.NOT_AUTHORISED
        assert said in wrong.err
        assert "key create" not in wrong.err
    monkeypatch.setenv("HOLDFAST_API_KEY", server.api_key or "")
    assert bare_cli("thread", "list").exit == 0


def test_a_server_that_does_not_answer(bare_cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        outcome = bare_cli("thread", "list", "--server", url)
        assert (outcome.exit, outcome.out) == (Exit.UNREACHABLE, "")
        assert f"{url} cannot be reached: connection refused" in outcome.err
        assert "Traceback" not in outcome.err
        note(tmp_path, url, None)
        stale = bare_cli("thread", "list", "--home", str(tmp_path))
        assert (stale.exit, f"holdfast up --home {tmp_path}" in stale.err) == (Exit.UNREACHABLE, True)
        lost = bare_cli("thread", "append", "t-1", "hello", "--server", url, "--retry-for", "0s")
        assert lost.exit == Exit.UNREACHABLE
        assert "--id e-" in lost.err
        waited = bare_cli("thread", "append", "t-1", "hello", "--server", url, "--retry-for", "1s")
        assert waited.err.count("  waiting      ") == 1
    assert bare_cli("thread", "list", "--server", "nonsense").exit == Exit.USAGE
