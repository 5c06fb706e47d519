"""The end of everything: `holdfast down --all`, `box delete --all` and `purge`."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.rows import BoxRow
from holdfast.cli import session
from holdfast.cli.errors import CommandError
from holdfast.cli.options import Where
from holdfast.cli.server import down
from holdfast.cli.server.purge import Left, check_home, find_holdings, remove, remove_folder
from holdfast.client import Client
from holdfast.client.local_server import RunningServer, find_running, is_alive, read_running
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.xdist_group("runs of the command line")


class Command:
    """The command, on a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "holdfast", *arguments],
            env={**os.environ, "HOLDFAST_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=check,
        )


def processes_of(box: str) -> list[str]:
    """Of a box on this machine, by the name that its first process has."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            line = (each / "cmdline").read_bytes() if each.name.isdigit() else b""
        except OSError:
            continue
        if line.startswith(f"holdfast-box {box}".encode()):
            found.append(each.name)
    return found


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    from holdfast.client.local_server import find_or_start

    command = Command(tmp_path / "home")
    find_or_start(command.home)
    yield command
    command("box", "delete", "--all", "--yes", check=False)
    command("down", check=False)


def test_purge_shows_what_it_removes_and_removes_all_of_it(command: Command, tmp_path: Path) -> None:
    boxes = [command("box", "create", "-q").stdout.strip() for _ in range(2)]
    command("volume", "create", "cache")
    command("box", "snapshot", boxes[0])
    command("thread", "new", "Something")
    running = read_running(command.home)
    assert running is not None
    assert processes_of(boxes[0])

    asked = command("purge", check=False)
    assert (asked.returncode, "holdfast purge --yes" in asked.stderr) == (2, True), asked.stderr
    assert f"  boxes        2: {boxes[1]}, {boxes[0]}" in asked.stdout
    assert "  threads      1\n" in asked.stdout
    assert "  volumes      1: cache" in asked.stdout
    assert "  snapshots    1\n" in asked.stdout
    assert command.home.exists()

    done = command("purge", "--yes")
    assert f"  removed      {command.home}" in done.stdout
    assert not command.home.exists()
    assert not is_alive(running.pid)
    assert processes_of(boxes[0]) == processes_of(boxes[1]) == []
    assert command("purge", "--yes", check=False).returncode == 3


def test_what_went_with_its_box_does_not_keep_a_home_from_being_removed(command: Command) -> None:
    """A sleeping box takes the snapshot of its sleep along, which was counted before."""

    async def work() -> Left:
        running = read_running(command.home)
        assert running is not None
        async with Client(running.url, api_key=running.api_key) as client:
            kept = await (await client.boxes.open((await client.boxes.create()).box.id)).snapshot()
            found = await find_holdings(client)
            return await remove(
                client, replace(found, snapshots=(kept.id, "s-gone"), boxes=(*found.boxes, ("local", "b-gone")))
            )

    assert asyncio.run(work()) == Left((), ())


def test_a_purge_without_a_server_ends_the_boxes_that_one_left(command: Command) -> None:
    box = command("box", "create", "-q").stdout.strip()
    command("down")
    assert processes_of(box)
    command("purge", "--yes")
    assert processes_of(box) == []
    assert not command.home.exists()


@pytest.fixture
def without_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever machine this is. Has to come before the server is started."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker.sock")


@pytest.mark.usefixtures("without_docker")
def test_a_box_that_never_reached_its_provider_leaves_no_row(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    command: Command = request.getfixturevalue("command")
    refused = command("box", "create", "--provider", "docker", check=False)
    assert (refused.returncode, "no-docker.sock" in refused.stderr) == (1, True), refused.stderr
    assert command("box", "list", "--all", "-q").stdout == ""


@pytest.mark.usefixtures("without_docker")
def test_a_provider_that_is_away_does_not_keep_a_purge_from_the_rest(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command: Command = request.getfixturevalue("command")
    here = command("box", "create", "-q").stdout.strip()
    command("down")
    away = asyncio.run(remember_box_at_docker(command.home))

    done = command("purge", "--yes")
    assert "not reached  docker: " in done.stderr
    assert f"left behind  at docker: box {away}, what else Holdfast may have there" in done.stderr
    assert f"  removed      {command.home}" in done.stdout
    assert not command.home.exists()
    assert processes_of(here) == []


async def remember_box_at_docker(home: Path) -> str:
    """As a server leaves it whose Docker went away since."""
    spec = BoxSpec(provider="docker")
    row = BoxRow(
        id="b-at-docker", tenant="default", node=(home / "node").read_text().strip(), provider="docker", key=None,
        spec=spec, labels={}, state=BoxState.RUNNING, created_at=1, changed_at=1, last_active_at=1,
    )  # fmt: skip
    async with SqliteBoxes(home / "holdfast.db") as rows:
        await rows.insert(row)
    return row.id


def test_a_purge_that_is_not_confirmed_leaves_no_server_behind(command: Command) -> None:
    """It starts one to see what there is; whoever stopped theirs finds it stopped."""
    command("down")
    asked = command("purge", check=False)
    assert (asked.returncode, "  threads      0\n" in asked.stdout) == (2, True), asked.stderr
    assert find_running(command.home) is None
    assert "started in the background" not in asked.stderr


def test_a_purge_that_is_not_confirmed_leaves_a_server_as_it_was(command: Command) -> None:
    before = find_running(command.home)
    command("purge", check=False)
    assert find_running(command.home) == before is not None


def test_down_all_stops_boxes_and_keeps_their_files(command: Command) -> None:
    box = command("box", "create", "-q").stdout.strip()
    command("box", "exec", box, "--", "sh", "-c", "echo kept > note")
    done = command("down", "--all")
    assert f"  stopped      box {box}" in done.stdout
    assert processes_of(box) == []
    from holdfast.client.local_server import find_or_start

    find_or_start(command.home)
    command("box", "start", box)
    assert command("box", "exec", box, "--", "cat", "note").stdout == "kept\n"


def test_down_all_ends_the_boxes_that_a_killed_server_left(command: Command) -> None:
    box = command("box", "create", "-q").stdout.strip()
    running = read_running(command.home)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    done = command("down", "--all")
    assert f"  stopped      box {box}" in done.stdout
    assert processes_of(box) == []


@pytest.mark.parametrize("arguments", [("down", "--all"), ("purge", "--yes")])
def test_boxes_end_although_another_program_has_the_port_of_their_server(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    box = command("box", "create", "-q").stdout.strip()
    command("down")
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("HOLDFAST_LISTEN_PORT", str(other.getsockname()[1]))
        command(*arguments)
    assert processes_of(box) == []


def test_down_signals_nobody_who_only_has_the_number_of_a_killed_server(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other,
    ):
        note = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "pid": other.pid, "version": "0"}
        (tmp_path / "server.json").write_text(json.dumps({**note, "startedAt": 0, "apiKey": None}))
        (tmp_path / "lock").touch()
        done = Command(tmp_path)("down", check=False)
        assert (done.returncode, other.poll()) == (5, None), done.stderr
        assert "start one with holdfast up" in done.stderr
        other.kill()


def test_a_server_that_hangs_is_named_with_how_to_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(down, "_PATIENCE", 0.0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as server:
        server.send_signal(signal.SIGSTOP)
        try:
            os.waitpid(server.pid, os.WUNTRACED)  # or the next signal might overtake this one
            with pytest.raises(CommandError) as refused:
                down.stop_server(tmp_path, RunningServer("http://127.0.0.1:1", server.pid, "0", 0, None))
        finally:
            server.kill()
    assert f"kill -9 {server.pid}" in str(refused.value.next_step)


def test_a_command_says_what_it_waits_for_where_a_server_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        note = {"url": url, "pid": 4_000_000, "version": "0", "startedAt": 0, "apiKey": None}
        (tmp_path / "server.json").write_text(json.dumps(note))
        session.ensure_server(Where(None, None, tmp_path))
    told = capfd.readouterr().err
    assert f"waiting      for the server at {url}" in told
    assert "kill -9 4000000" in told


def test_every_box_is_deleted_after_it_was_named(command: Command) -> None:
    assert "there are no boxes" in command("box", "delete", "--all", "--yes").stdout
    boxes = [command("box", "create", "-q").stdout.strip() for _ in range(2)]
    asked = command("box", "delete", "--all", check=False)
    assert asked.returncode == 2
    assert all(box in asked.stderr for box in boxes)
    assert "holdfast box delete --all --yes" in asked.stderr
    assert command("box", "delete", check=False).returncode == 2
    assert command("box", "delete", boxes[0], "--all", "--yes", check=False).returncode == 2
    command("box", "delete", "--all", "--yes")
    assert command("box", "list", "-q").stdout == ""


def test_a_home_whose_server_was_stopped_as_soon_as_it_answered_is_a_home(tmp_path: Path) -> None:
    """Boxes, and the name of the node that they belong to, are prepared in the background."""
    with ServerProcess(tmp_path / "home") as server:
        server.kill()
    (tmp_path / "home" / "node").unlink(missing_ok=True)  # as if it had died just before
    check_home(tmp_path / "home")


def test_what_is_no_home_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "secret").write_text("mine")
    with pytest.raises(CommandError, match="is not the home of a server"):
        check_home(folder)
    with pytest.raises(CommandError, match="nothing to remove"):
        check_home(tmp_path / "missing")
    (tmp_path / "home").mkdir()
    for name in ("holdfast.db", "secret", "lock"):
        (tmp_path / "home" / name).write_text("")
    check_home(tmp_path / "home")
    (tmp_path / "link").symlink_to(tmp_path / "home")
    with pytest.raises(CommandError, match="is not the home of a server"):
        check_home(tmp_path / "link")


def test_removing_a_folder_follows_no_link_and_stops_at_no_mode(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "closed" / "inner").mkdir(parents=True)
    (home / "closed" / "inner" / "file").write_text("x")
    outside.mkdir()
    (outside / "precious").write_text("x")
    (home / "link").symlink_to(outside)
    (home / "closed").chmod(0o000)
    remove_folder(home)
    assert not home.exists()
    assert (outside / "precious").exists()


def test_a_tree_deeper_than_any_path_does_not_keep_a_home_from_being_removed(tmp_path: Path) -> None:
    """A box can make one."""
    home = tmp_path / "home"
    home.mkdir()
    at = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    try:
        remove_folder(home)
        assert not home.exists()
    finally:  # pytest cannot remove it, and would fail for ever after
        subprocess.run(["rm", "-rf", home], check=True)


def test_a_purge_that_was_killed_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "local").mkdir(parents=True)
    for name in ("holdfast.db", "secret", "node", "lock"):
        (home / name).write_text(name)
    unlink = Path.unlink

    def dies(path: Path, missing_ok: bool = False) -> None:
        if path.name == "lock":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(home)
    (home / "secret").unlink(missing_ok=True)  # whatever the order was
    assert home.exists()
    Command(home)("purge", "--yes")
    assert not home.exists()
