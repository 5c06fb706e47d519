"""A backup that is made while a server writes, and restored, is one moment of the home, whole and verified."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.cli.test_maintenance import JSON, client_of, entries_of, fill

from holdfast.cli.exits import Exit
from holdfast.cli.server.backup import TENANTS
from holdfast.server.tenant.tenants import FOLDER
from holdfast.storage import maintenance
from holdfast.testing.server import ServerProcess


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_backup_taken_while_entries_are_written_has_a_prefix_of_each_thread(
    bare_cli: Cli, home: Path, tmp_path: Path
) -> None:
    copies = [tmp_path / "backups" / str(number) for number in range(3)]
    acknowledged: dict[Path, int] = {}
    count = 0
    with ServerProcess(home) as server, client_of(server) as http:
        fill(http, "t-1", entries=1)
        digest = http.post("/v1/workspaces", content=b"an archive").json()["digest"]
        stop = threading.Event()

        def write() -> None:
            nonlocal count
            with client_of(server) as own:
                while not stop.is_set():
                    payload = {"type": "chat", "text": f"{count}" + "x" * 5000}
                    own.post("/v1/stream/threads/t-1", headers=JSON, json=[{"payload": payload}]).raise_for_status()
                    count += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for copy in copies:
                acknowledged[copy] = count
                outcome = bare_cli("backup", str(copy), "--home", str(home), "--json")
                assert outcome.exit == Exit.OK, outcome
        finally:
            stop.set()
            writer.join()
        final = entries_of(http, "t-1")
    for number, copy in enumerate(copies):
        restored = tmp_path / f"restored-{number}"
        outcome = bare_cli("restore", str(copy), "--home", str(restored), "--json")
        assert outcome.exit == Exit.OK, outcome
        assert json.loads(outcome.out)["streams"] in (1, 2)  # the thread, and the audit log if it has begun
        assert (restored / "workspaces" / digest).read_bytes() == b"an archive"
    with ServerProcess(tmp_path / "restored-2") as server, client_of(server) as http:
        found = entries_of(http, "t-1")
        assert found == final[: len(found)]
        assert len(found) >= acknowledged[copies[2]]  # all that was acknowledged before the backup began
        fill(http, "t-2")  # it is a home like any other


def test_a_restore_overwrites_nothing(bare_cli: Cli, home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with ServerProcess(home) as server, client_of(server) as http:
        fill(http, "t-1", entries=1)
        assert bare_cli("backup", str(copy), "--home", str(home)).exit == Exit.OK
        outcome = bare_cli("restore", str(copy), "--home", str(home))
        assert outcome.exit == Exit.CONFLICT
        assert "already exists and is not empty" in outcome.err
        fill(http, "t-2", entries=1)  # the server goes on
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine\n")
    assert bare_cli("restore", str(copy), "--home", str(tmp_path / "other")).exit == Exit.CONFLICT
    assert bare_cli("restore", str(tmp_path / "no-backup"), "--home", str(tmp_path / "new")).exit == Exit.NOT_FOUND
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".*.restoring"))


def test_a_damaged_backup_is_not_restored(bare_cli: Cli, home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with ServerProcess(home) as server, client_of(server) as http:
        fill(http, "t-1")
        http.post("/v1/workspaces", content=b"an archive").raise_for_status()
        assert bare_cli("backup", str(copy), "--home", str(home)).exit == Exit.OK
    (workspace,) = (copy / "workspaces").iterdir()
    workspace.write_bytes(b"another archive")
    outcome = bare_cli("restore", str(copy), "--home", str(tmp_path / "new"))
    assert outcome.exit == Exit.FAILURE
    assert "is damaged: its content is not what its name says" in outcome.err
    workspace.unlink()
    database = maintenance.database_file(copy)
    content = bytearray(database.read_bytes())
    at = content.index(b"t-1t-1t-1", len(content) // 2)
    content[at + 100 : at + 110] = b"0123456789"
    database.write_bytes(content)
    outcome = bare_cli("restore", str(copy), "--home", str(tmp_path / "new"))
    assert outcome.exit == Exit.FAILURE
    assert "is damaged" in outcome.err
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".*.restoring"))


def test_a_backup_has_the_tenants_of_the_server(bare_cli: Cli, home: Path, tmp_path: Path) -> None:
    with ServerProcess(home) as server, client_of(server) as http:
        key = http.post("/v1/tenants", json={"name": "acme"}).json()["key"]["key"]
        own = {"Authorization": f"Bearer {key}"}
        assert http.post("/v1/threads", json={"id": "t-theirs"}, headers=own).status_code == 201
        assert bare_cli("backup", str(tmp_path / "copy"), "--home", str(home)).exit == Exit.OK
    assert bare_cli("restore", str(tmp_path / "copy"), "--home", str(tmp_path / "restored")).exit == Exit.OK
    with ServerProcess(tmp_path / "restored") as server, client_of(server) as http:
        assert http.get("/v1/threads/t-theirs", headers=own).status_code == 200
        assert http.get("/v1/threads/t-theirs").status_code == 404
    assert TENANTS == FOLDER
