"""A home belongs to one server at a time, and to one user."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from holdfast.client import local_server
from holdfast.client.local_server import (
    RunningServer,
    ServerNotStarted,
    find_answering,
    find_or_start,
    read_running,
)
from holdfast.server.compose import CannotServe, serve
from holdfast.server.config import Settings
from holdfast.server.home import Home, HomeInUse
from holdfast.testing.server import ServerProcess


def test_a_second_server_on_the_same_home_is_refused_by_name(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home") as first, pytest.raises(HomeInUse) as refused, Home(tmp_path / "home"):
        pass
    assert str(tmp_path / "home") in str(refused.value)
    assert first.url in str(refused.value)


def test_a_home_is_free_again_after_its_server_died(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    with server:
        server.kill()
        assert read_running(tmp_path / "home") is not None, "the dead leave their note"
        server.start()
        assert httpx.get(f"{server.url}/health", timeout=240).status_code == 200
    assert read_running(tmp_path / "home") is None, "the living take it back"


def test_only_its_user_can_read_a_home(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home"):
        for path in [tmp_path / "home", *(tmp_path / "home").iterdir()]:
            assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


def test_a_process_has_its_own_umask_again_after_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with Home(tmp_path):
            (tmp_path / "private").touch()
        (tmp_path / "public").touch()
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("private", "public")]
    assert modes == [0o600, 0o644]


def test_a_note_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    for text in ("", "{}", "[]", '{"url": 1}', "\x00"):
        (tmp_path / "server.json").write_text(text)
        with pytest.raises(ValueError, match=r"\S"):
            read_running(tmp_path)


def test_the_note_says_where_the_server_is(tmp_path: Path) -> None:
    running = RunningServer("http://127.0.0.1:1", 1, "0", 2, "hf_x")
    with Home(tmp_path) as home:
        home.announce(running, lambda: False)
        assert read_running(tmp_path) == running


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.com"])
def test_without_keys_only_loopback_is_served(tmp_path: Path, host: str) -> None:
    with pytest.raises(CannotServe, match="--no-auth"):
        serve(Settings(home=tmp_path, host=host, auth=False), lambda *_: None)


def test_a_port_that_is_taken_is_named(server: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(CannotServe, match=str(server.address[1])):
        serve(Settings(home=tmp_path, port=server.address[1]), lambda *_: None)


def test_a_child_that_a_killed_server_left_holding_the_lock_is_waited_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = f"""
import os, pathlib
from holdfast.client.local_server import RunningServer
from holdfast.server.home import Home
home = Home(pathlib.Path({str(home)!r})).__enter__()
home.announce(RunningServer("http://127.0.0.1:1", os.getpid(), "0", 0, None), lambda: False)
told, tell = os.pipe()
if os.fork() == 0:
    os.write(tell, b".")
    os.read(0, 1)  # until the test lets go
    os._exit(0)
os.read(told, 1)
os._exit(0)
"""
    server = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    server.wait(240)
    assert server.stdin is not None
    letting_go = threading.Timer(0.3, server.stdin.close)
    letting_go.start()
    with Home(home):
        assert read_running(home) is None
    letting_go.join()


def test_what_listens_where_a_killed_server_did_is_not_taken_for_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = RunningServer(f"http://127.0.0.1:{listener.getsockname()[1]}", os.getpid(), "0", 0, "hf_x")
        with Home(tmp_path) as home:
            home.announce(running, lambda: False)
            assert find_answering(tmp_path) == running
            note = (tmp_path / "server.json").read_text()
        (tmp_path / "server.json").write_text(note)  # as one that is killed leaves it
        assert find_answering(tmp_path) is None


def test_a_port_that_is_taken_in_the_last_moment_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, False])  # free when asked first, and then not
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(local_server, "DEFAULT_PORT", taken.getsockname()[1])
        monkeypatch.setattr(local_server, "_is_free", lambda port: next(answers))
        running, started = find_or_start(tmp_path)
    try:
        assert started
        assert httpx.get(f"{running.url}/health", timeout=240).status_code == 200
    finally:
        os.kill(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("inside", ["", "home"])
def test_a_home_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path, inside: str) -> None:
    """For root, whom no mode keeps out, it is a file, or in one."""
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / inside
    with pytest.raises(ServerNotStarted, match=f"cannot use the home {home}: ") as refused:
        find_or_start(home)
    assert refused.value.hint == "choose another with --home DIR"


def test_a_log_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "server.log").mkdir()
    with pytest.raises(ServerNotStarted, match=f"cannot use the home {tmp_path}: Is a directory"):
        find_or_start(tmp_path)


def _start_at_a_free_port(home: Path) -> tuple[RunningServer, int]:
    for last in (False, False, False, False, True):  # another program may take the port in between
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        (home / "holdfast.toml").write_text(f"port = {port}\n")
        try:
            return find_or_start(home)[0], port
        except ServerNotStarted:
            if last:
                raise
    raise AssertionError


def test_a_server_in_the_background_has_the_port_that_is_configured(tmp_path: Path) -> None:
    running, port = _start_at_a_free_port(tmp_path)
    try:
        assert running.url == f"http://127.0.0.1:{port}"
    finally:
        os.kill(running.pid, signal.SIGKILL)


def test_who_comes_second_waits_until_the_server_of_the_first_answers(tmp_path: Path) -> None:
    """The second finds the home taken, by a server that does not answer yet."""
    home, found = tmp_path / "home", []
    second = threading.Thread(target=lambda: found.append(find_or_start(home)), daemon=True)
    with socket.create_server(("127.0.0.1", 0)) as listener, Home(home) as first:
        running = RunningServer(f"http://127.0.0.1:{listener.getsockname()[1]}", os.getpid(), "0", 0, "hf_x")
        second.start()
        deadline = time.monotonic() + 240
        while "already running" not in _text_of(home / "server.log"):
            assert second.is_alive(), "it gave up"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first.announce(running, lambda: False)
        second.join(60)
        assert found == [(running, False)]


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize("as_json", [True, False])
def test_a_server_ends_when_its_home_is_no_longer_there(tmp_path: Path, as_json: bool) -> None:
    """Nobody could find it any more, and what it acknowledged would be lost."""
    home = tmp_path / "home"
    command = [sys.executable, "-P", "-m", "holdfast", "up", "--home", str(home), "--port", "0"]
    command += ["--json"] if as_json else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline()
        home.rename(tmp_path / "elsewhere")
        try:
            _, said = server.communicate(timeout=240)
        finally:
            server.kill()
    assert f"the home {home} was deleted, moved or replaced" in said
    assert "all entries are on disk" not in said


def test_a_server_whose_home_was_replaced_leaves_the_note_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "home"
    running = RunningServer("http://127.0.0.1:1", os.getpid(), "0", 0, "hf_x")
    first = Home(path).__enter__()
    path.rename(tmp_path / "elsewhere")
    with Home(path) as second:
        second.announce(running, lambda: False)
        first.__exit__(None, None, None)
        assert read_running(path) == running
