"""What is left when a server starts anew, and what intervals do while it runs."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from daytona import CreateSandboxFromSnapshotParams, DaytonaNotFoundError, SessionExecuteRequest
from tests.compat.daytona.conftest import client_of

from holdfast.storage.sqlite import DATABASE
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.box  # their servers make the boxes


def test_a_server_that_starts_anew_finds_everything_again(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", daytona=True) as server:
        with client_of(server) as daytona:
            made = daytona.create(CreateSandboxFromSnapshotParams(name="kept", labels={"a": "b"}))
            made.process.create_session("s")
            made.process.execute_session_command("s", SessionExecuteRequest(command="x=5"))
            made.code_interpreter.run_code("y = 6")
        server.kill()
        server.start()
        with client_of(server) as daytona:
            found = daytona.get("kept")
            assert (found.id, found.labels["a"]) == (made.id, "b")
            done = found.process.execute_session_command("s", SessionExecuteRequest(command="echo $x"))
            assert done.stdout == "5\n"
            assert len(found.process.get_session("s").commands) == 2
            assert found.code_interpreter.run_code("print(y)").stdout == "6\n"
            found.delete()


@pytest.mark.slow
def test_a_sandbox_whose_time_is_over_is_deleted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", daytona=True) as server:
        with client_of(server) as daytona:
            made = daytona.create(CreateSandboxFromSnapshotParams(ttl_minutes=20))
            assert made.id in [each.id for each in daytona.list()]
        server.stop()
        with closing(sqlite3.connect(server.home / DATABASE)) as connection, connection:
            # As if it were older. A minute is the shortest time that a sandbox can have.
            connection.execute(
                "UPDATE daytona_records SET created_at = created_at - ? WHERE id = ?", (21 * 60_000, made.id)
            )
        server.start()
        with client_of(server) as daytona:
            deadline = time.monotonic() + 150
            while made.id in [each.id for each in daytona.list()]:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            with pytest.raises(DaytonaNotFoundError):
                daytona.get(made.id)


def test_an_open_server_asks_for_no_key(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", daytona=True, auth=False) as server, client_of(server) as daytona:
        made = daytona.create()
        assert made.process.exec("echo open").result == "open\n"
        made.process.create_session("s")
        made.delete()
        answer = httpx.get(
            f"{server.url}/compat/daytona/sandbox", headers={"Origin": "https://evil.example"}, trust_env=False
        )
        assert answer.status_code == 403, "a page from elsewhere may not ask"
