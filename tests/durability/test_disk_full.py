"""A full disk refuses appends by name, keeps serving reads, and loses nothing; with room again, writing goes on."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.disks import CannotMount, SmallDisk
from tests.durability.faults import fill_disk_while_writing
from tests.server.box_providers import dummies
from tests.server.conftest import api_of

from holdfast.testing.server import ServerProcess

MEGABYTE = 1024 * 1024


def test_a_disk_that_fills_up_under_the_server_loses_nothing(tmp_path: Path, seed: int) -> None:
    try:
        report = asyncio.run(fill_disk_while_writing(16 * MEGABYTE, seed, log=tmp_path / "server.log"))
    except CannotMount as error:
        pytest.skip(str(error))
    report.check()
    assert report.refused >= 200, report
    assert report.acknowledged > 100, report
    assert report.kills == 3, report


WRITE = """
import os, pathlib, sys
from holdfast.storage.sqlite import reserve
from holdfast.storage.sqlite.schema import connect
path = pathlib.Path(sys.argv[1])
connection = connect(path)
if sys.argv[2] == "kept":
    reserve.keep(path)
connection.execute("CREATE TABLE kept (word)")
connection.execute("INSERT INTO kept VALUES ('fast')")
os._exit(0)
"""
READ = """
import pathlib, sys
from holdfast.storage.sqlite.schema import connect
print(connect(pathlib.Path(sys.argv[1])).execute("SELECT word FROM kept").fetchall())
"""


@pytest.mark.parametrize("kept", ["kept", "not kept"])
def test_a_database_opens_on_a_full_disk_by_the_room_that_was_kept_for_it(kept: str) -> None:
    try:
        with SmallDisk(2 * MEGABYTE) as disk:
            path = disk.there / "data.db"
            assert disk.run(sys.executable, "-c", WRITE, path, kept).returncode == 0
            (disk.here / "data.db-shm").unlink()  # where the crash came before there was room for it
            with pytest.raises(OSError, match="No space"):
                disk.put_ballast(2 * MEGABYTE)
            assert disk.free_bytes == 0
            read = disk.run(sys.executable, "-c", READ, path)
            if kept == "kept":
                assert read.stdout == "[('fast',)]\n", read.stderr
            else:
                assert "disk I/O error" in read.stderr
    except CannotMount as error:
        pytest.skip(str(error))


ANNOUNCE = """
import os, pathlib, sys
from holdfast.client.local_server import RunningServer, read_running
from holdfast.server.home import Home
path, port = pathlib.Path(sys.argv[1]), sys.argv[2]
home = Home(path).__enter__()
if sys.argv[4] == "full":  # another program takes what the start has freed
    other = os.open(path / "other", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while os.write(other, bytes(4096)):
            pass
    except OSError:
        os.close(other)
running = RunningServer(f"http://127.0.0.1:{port}", os.getpid(), "0", 0, "hf_key")
home.announce(running, lambda: False)  # what others free is taken by another program
assert read_running(path) == running
if sys.argv[3] == "killed":
    os._exit(0)
home.__exit__()
assert read_running(path) is None
"""


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_server_is_found_on_a_full_disk_although_others_take_all_space(end: str) -> None:
    try:
        with SmallDisk(2 * MEGABYTE) as disk:
            assert disk.run(sys.executable, "-c", ANNOUNCE, disk.there, "1", end, "empty").returncode == 0
            for port in ("65535", "22222", "3"):
                started = disk.run(sys.executable, "-c", ANNOUNCE, disk.there, port, end, "full")
                assert started.returncode == 0, started.stderr
                assert disk.free_bytes == 0
    except CannotMount as error:
        pytest.skip(str(error))


def test_a_delete_on_a_full_disk_makes_room(tmp_path: Path) -> None:
    try:
        with SmallDisk(24 * MEGABYTE) as disk, disk.server(log=tmp_path / "server.log") as server:
            headers = {"Authorization": f"Bearer {server.api_key}", "Content-Type": "application/octet-stream"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as http:
                for name in ("large", "small"):
                    http.put(f"/v1/stream/{name}").raise_for_status()
                while http.post("/v1/stream/large", content=bytes(500_000)).status_code == 204:
                    pass
                while http.post("/v1/stream/large", content=bytes(5_000)).status_code == 204:
                    pass
                assert http.post("/v1/stream/large", content=bytes(500_000)).status_code == 507
                answer = http.delete("/v1/stream/large")
                assert answer.status_code == 204, answer.text
                deadline = time.monotonic() + 240
                for _ in range(16):  # half of what was deleted
                    while http.post("/v1/stream/small", content=bytes(500_000)).status_code != 204:
                        assert time.monotonic() < deadline, server.read_log()[-3000:]
    except CannotMount as error:
        pytest.skip(str(error))


def test_a_box_can_be_deleted_on_a_full_disk_and_all_else_says_what_to_do(tmp_path: Path) -> None:
    try:
        with SmallDisk(24 * MEGABYTE) as disk:
            server = ServerProcess(
                disk.there / "home",
                command=disk.command,
                home_here=disk.here / "home",
                log=tmp_path / "server.log",
                providers=dummies,
            )
            with server, api_of(server) as api:
                spec = {"spec": {"provider": "local"}}
                plain, other = (api.post("/v1/boxes", json=spec).json()["box"]["id"] for _ in range(2))
                keyed = api.post("/v1/boxes", json={**spec, "key": "mine"}).json()["box"]["id"]
                with pytest.raises(OSError, match="No space"):
                    disk.put_ballast(24 * MEGABYTE)
                # There may be room left in the log of the database.
                answers = (api.post(f"/v1/boxes/{other}/{('stop', 'start')[number % 2]}") for number in range(1_000))
                refused = next(answer for answer in answers if answer.status_code != 200)
                told = refused.json()["error"]
                assert (refused.status_code, told["code"]) == (507, "no_space"), refused.text
                assert "on the server's disk" in told["hint"]
                for id in (plain, keyed):
                    deleted = api.delete(f"/v1/boxes/{id}")
                    assert deleted.status_code == 200, deleted.text
                    assert api.get(f"/v1/boxes/{id}").json()["state"] == "deleted"
    except CannotMount as error:
        pytest.skip(str(error))
