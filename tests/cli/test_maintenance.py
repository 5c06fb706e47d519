"""`holdfast backup`, `check` and `compact`, on a home whose server runs and on one whose server does not."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import Cli
from tests.disks import CannotMount, SmallDisk

from holdfast.cli.exits import Exit
from holdfast.storage.sqlite.schema import VERSION
from holdfast.testing.server import ServerProcess

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def client_of(server: ServerProcess) -> httpx.Client:
    return httpx.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {server.api_key}"}, timeout=60, trust_env=False
    )


def fill(http: httpx.Client, thread: str, entries: int = 200) -> None:
    http.put(f"/v1/stream/threads/{thread}", headers=JSON).raise_for_status()
    batch = [{"payload": {"type": "chat", "text": thread * 2000}} for _ in range(entries)]
    http.post(f"/v1/stream/threads/{thread}", headers=JSON, content=json.dumps(batch)).raise_for_status()


def entries_of(http: httpx.Client, thread: str) -> list[object]:
    answer = http.get(f"/v1/stream/threads/{thread}")
    answer.raise_for_status()
    found: list[object] = answer.json()
    return found


def test_a_backup_of_a_running_home_is_a_home(bare_cli: Cli, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "monday"
    with ServerProcess(home) as server, client_of(server) as http:
        fill(http, "t-1")
        key = http.post("/v1/keys", json={"name": "mine"}).json()["key"]
        before = entries_of(http, "t-1")
        outcome = bare_cli("backup", str(target), "--home", str(home), "--json")
        assert outcome.exit == Exit.OK, outcome
        # The thread, and the audit log with the new key.
        assert (json.loads(outcome.out)["streams"], json.loads(outcome.out)["damage"]) == (2, [])
        fill(http, "t-2")  # the server goes on
    with ServerProcess(target) as server, client_of(server) as http:
        assert entries_of(http, "t-1") == before
        assert http.get("/v1/threads/t-2").status_code == 404
        assert http.get("/v1/threads/t-1", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert (target / "secret").read_text() == (home / "secret").read_text()
    assert target.stat().st_mode & 0o077 == 0


def test_a_backup_overwrites_nothing(bare_cli: Cli, home: Path, tmp_path: Path) -> None:
    with ServerProcess(home):
        pass
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    assert bare_cli("backup", str(tmp_path / "taken"), "--home", str(home)).exit == Exit.CONFLICT
    assert [each.name for each in (tmp_path / "taken").iterdir()] == ["mine"]
    assert bare_cli("backup", str(tmp_path / "new"), "--home", str(tmp_path / "nowhere")).exit == Exit.NOT_FOUND
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("size", [4096, 65536])
def test_a_backup_onto_a_full_disk_says_which_disk_and_what_to_do(home: Path, size: int) -> None:
    with ServerProcess(home) as server, client_of(server) as http:
        fill(http, "t-1")
    try:
        with SmallDisk(size) as disk:
            target = disk.there / "copy"
            done = disk.run(sys.executable, "-P", "-m", "holdfast", "backup", str(target), "--home", str(home))
            left = [each.name for each in disk.here.iterdir()]
    except CannotMount as error:
        pytest.skip(str(error))
    assert done.returncode == Exit.DISK_FULL, done.stderr
    assert f"cannot write {target}: the disk is full" in done.stderr
    assert "next         free some space, or choose a folder on another disk" in done.stderr
    assert left == []


def test_check_says_what_is_damaged_and_doctor_that_something_is(bare_cli: Cli, home: Path) -> None:
    with ServerProcess(home) as server, client_of(server) as http:
        fill(http, "t-a")
        fill(http, "t-b")
        assert bare_cli("check", "--home", str(home)).exit == Exit.OK
    assert bare_cli("compact", "--home", str(home)).exit == Exit.OK  # free pages hold what was there before
    database = home / "holdfast.db"
    content = bytearray(database.read_bytes())
    at = content.index(b"t-a" * 300) + 100
    content[at : at + 1] = b"X"
    database.write_bytes(content)
    outcome = bare_cli("check", "--home", str(home), "--json")
    assert outcome.exit == Exit.FAILURE
    assert {each["what"] for each in json.loads(outcome.out)["damage"]} == {"threads/t-a"}
    assert "threads/t-a" in bare_cli("check", "--home", str(home)).out
    with ServerProcess(home) as server, client_of(server) as http:
        assert len(entries_of(http, "t-b")) == 200
        answer = http.get("/v1/threads/t-a/entries")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "damaged")
        assert "holdfast check" in answer.json()["error"]["hint"]

    content = bytearray(database.read_bytes())
    page = content.index(b"t-a" * 300) // 4096
    content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    database.write_bytes(content)
    findings = json.loads(bare_cli("doctor", "--home", str(home), "--json").out)["findings"]
    (finding,) = [each for each in findings if each["name"] == "database"]
    assert finding["word"] == "limited"
    assert "holdfast check" in finding["next"]
    assert bare_cli("check", "--home", str(home)).exit == Exit.FAILURE


def test_compact_gives_the_room_of_deleted_threads_back(bare_cli: Cli, home: Path) -> None:
    with ServerProcess(home) as server, client_of(server) as http:
        fill(http, "t-a")
        fill(http, "t-b")
        http.delete("/v1/threads/t-a").raise_for_status()
        refused = bare_cli("compact", "--home", str(home))
        assert refused.exit == Exit.CONFLICT
        assert "holdfast down" in refused.err
    outcome = bare_cli("compact", "--home", str(home), "--json")
    assert outcome.exit == Exit.OK, outcome
    assert json.loads(outcome.out)["bytes"] < json.loads(outcome.out)["bytesBefore"]
    with ServerProcess(home) as server, client_of(server) as http:
        assert len(entries_of(http, "t-b")) == 200
    with sqlite3.connect(home / "holdfast.db") as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM purges").fetchone() == (0,)


def test_a_home_of_a_newer_version_is_refused_by_name(bare_cli: Cli, home: Path) -> None:
    with ServerProcess(home):
        pass
    with sqlite3.connect(home / "holdfast.db") as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    for command in (["up", "--port", "0"], ["check"], ["compact"]):
        outcome = bare_cli(*command, "--home", str(home))
        assert outcome.exit == Exit.FAILURE
        assert "newer Holdfast" in outcome.err
        assert "Traceback" not in outcome.err
    findings = json.loads(bare_cli("doctor", "--home", str(home), "--json").out)["findings"]
    assert [each["word"] for each in findings if each["name"] == "database"] == ["missing"]
