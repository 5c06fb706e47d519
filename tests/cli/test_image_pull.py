"""`holdfast image pull` as people and programs use it: a real server, a real registry on loopback."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.images.registry import PASSWORD, USER, Pushed, RegistryProcess, htpasswd
from tests.providers.local.rootfs import Tar, busybox

from holdfast.cli.exits import Exit
from holdfast.cli.image.docker_login import find_login
from holdfast.images.registry.authentication import Credentials
from holdfast.testing.server import ServerProcess

LOGIN = Credentials(USER, PASSWORD)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    folder = tmp_path_factory.mktemp("registry")
    registry = RegistryProcess(folder / "r", htpasswd(folder))
    headers = {"Authorization": LOGIN.basic}
    registry.push("team/tools", "1", Pushed([busybox().done()], {"Env": ["A=1"]}), headers=headers)
    registry.push("team/large", "1", Pushed([Tar().file("x", os.urandom(3 << 20)).done()]), headers=headers)
    registry.push("team/broken", "1", Pushed([b"no tar archive at all" * 100]), headers=headers)
    yield registry
    registry.close()


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody is logged in."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def log_in(path: Path, registry: str) -> None:
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    path.write_text(json.dumps({"auths": {registry: {"auth": auth}}}))


def test_a_pulled_image_is_used_by_its_name(box_cli: Cli, registry: RegistryProcess, docker_config: Path) -> None:
    name = f"{registry.host}/team/tools:1"
    log_in(docker_config, registry.host)
    made = box_cli("image", "pull", name)
    assert (made.exit, made.out) == (0, f"{name}\n"), made.err
    assert re.search(r"  download +127\S+, 1 layer +.* s\n  unpack +1 layer +.* s\n", made.err)
    assert name in box_cli("image", "list", "-q").out.splitlines()
    assert "  pulled       sha256:" in box_cli("image", "show", name).out
    box = box_cli("box", "create", "--image", name).out.strip()
    assert box_cli("box", "exec", box, "--", "sh", "-c", "echo $A; id -u").out == "1\n0\n"
    assert box_cli("box", "delete", box, "--yes").exit == 0
    again = box_cli("image", "pull", name, "--json")
    assert (again.json()["name"], "is up to date" in again.err) == (name, True)
    pinned = f"{registry.host}/team/tools@{again.json()['pulled']}"
    assert box_cli("image", "pull", pinned).exit == 0
    box = box_cli("box", "create", "--image", pinned).out.strip()
    assert box_cli("box", "exec", box, "--", "id", "-u").out == "0\n"
    assert box_cli("box", "delete", box, "--yes").exit == 0
    for each in box_cli("image", "list", "-q").out.split():
        assert box_cli("image", "remove", each, "--yes").exit == 0


def test_a_password_comes_by_standard_input(box_cli: Cli, registry: RegistryProcess) -> None:
    name = f"{registry.host}/team/tools:1"
    refused = box_cli("image", "pull", name)
    assert (refused.exit, "requires a user and a password" in refused.err) == (Exit.NOT_AUTHORISED, True)
    assert "--password-stdin" in refused.err
    alone = box_cli("image", "pull", name, "--password-stdin")
    assert (alone.exit, "needs --username" in alone.err) == (Exit.USAGE, True)
    options = ("--name", "cli/tools", "--username", USER, "--password-stdin")
    assert "no password" in box_cli("image", "pull", name, *options).err
    made = box_cli("image", "pull", name, *options, stdin=f"{PASSWORD}\n")
    assert (made.exit, made.out) == (0, "cli/tools\n"), made.err
    assert box_cli("image", "remove", "cli/tools", "--yes").exit == 0


def test_what_cannot_be_pulled_says_why(box_cli: Cli, registry: RegistryProcess, docker_config: Path) -> None:
    log_in(docker_config, registry.host)
    missing = box_cli("image", "pull", f"{registry.host}/team/nothing")
    assert (missing.exit, "has no 127.0.0.1" in missing.err) == (Exit.NOT_FOUND, True), missing.err
    hostile = box_cli("image", "pull", f"{registry.host}/team/broken:1")
    assert "not a tar archive" in hostile.err
    wrong = box_cli("image", "pull", "../etc/passwd")
    assert (wrong.exit, "does not name an image" in wrong.err) == (Exit.USAGE, True), wrong.err
    assert box_cli("image", "list", "-q").out == ""


def test_on_a_terminal_bytes_are_shown_as_they_come(
    box_cli: Cli, box_server: ServerProcess, registry: RegistryProcess, docker_config: Path
) -> None:
    log_in(docker_config, registry.host)
    leader, follower = pty.openpty()
    command = ["image", "pull", f"{registry.host}/team/large:1", "--name", "cli/shown", "--home", str(box_server.home)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast", *command],
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "140"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    said = b""
    try:
        while piece := os.read(leader, 65536):
            said += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(leader)
    assert process.wait(240) == 0, said.decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert re.search(r"[\d.]+ [kM]?B of [\d.]+ MB", plain), plain
    assert "holdfast box create" in plain
    assert box_cli("image", "remove", "cli/shown", "--yes").exit == 0


def test_docker_s_logins_are_found_where_docker_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"DOCKER_CONFIG": str(tmp_path)}
    path = tmp_path / "config.json"
    assert find_login("ghcr.io", environment) is None
    log_in(path, "https://index.docker.io/v1/")
    assert find_login("docker.io", environment) == (USER, PASSWORD)
    assert find_login("ghcr.io", environment) is None, "of one registry for that one alone"
    for broken in ("", "[]", '{"auths": 1}', '{"auths": {"ghcr.io": {"auth": "?"}}}', '{"credsStore": "../../bin/sh"}'):
        path.write_text(broken)
        assert find_login("ghcr.io", environment) is None
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        '#!/bin/sh\n[ "$1" = get ] && read place; echo "{\\"Username\\": \\"$place\\", \\"Secret\\": \\"x\\"}"\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path.write_text(json.dumps({"credHelpers": {"ghcr.io": "test"}}))
    assert find_login("ghcr.io", environment) == ("ghcr.io", "x")
    assert find_login("quay.io", environment) is None
