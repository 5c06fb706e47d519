"""The supervisor of programs in a box, as a process of its own, with real programs, ports and locks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.providers.stream.test_guest import pythons

from holdfast.guest import service_supervisor
from holdfast.guest.service_supervisor import remove_stale

pytestmark = pytest.mark.anyio
SOURCE = str(Path(service_supervisor.__file__))
PATIENCE = 240.0
LISTEN = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
time.sleep(600)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port: int = unused.getsockname()[1]
        return port


class Supervised:
    def __init__(self, folder: Path) -> None:
        self.status = folder / "state" / "status.json"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, *programs: dict[str, Any], python: str = sys.executable, clean: tuple[str, ...] = ()) -> None:
        code = f"import runpy, sys, os; runpy.run_path({SOURCE!r})['main'](os.dup(0), sys.argv[1].encode())"
        about = {"status": str(self.status), "generation": "g1", "clean": list(clean), "programs": list(programs)}
        self.process = await asyncio.create_subprocess_exec(
            python, "-S", "-c", code, json.dumps(about), start_new_session=True
        )

    def programs(self) -> dict[str, dict[str, Any]]:
        try:
            said = json.loads(self.status.read_text())
        except FileNotFoundError:
            return {}
        assert said["generation"] == "g1"
        return {each["name"]: each for each in said["programs"]}

    async def until(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                found = self.programs().get(name)
                if found is not None and holds(found):
                    return found
                await asyncio.sleep(0.02)

    async def is_in(self, name: str, state: str) -> dict[str, Any]:
        return await self.until(name, lambda each: each["state"] == state)

    def children(self) -> list[int]:
        assert self.process is not None
        return [
            int(each) for each in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    async def close(self) -> None:
        if self.process is not None:
            for pid in self.children():
                os.killpg(pid, signal.SIGKILL)
            self.process.kill()
            await self.process.wait()


@pytest.fixture
async def supervised(tmp_path: Path) -> AsyncIterator[Supervised]:
    made = Supervised(tmp_path)
    yield made
    await made.close()


def listener(name: str, port: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "argv": [sys.executable, "-S", "-c", LISTEN, str(port)], "port": port, **more}


@pytest.mark.parametrize("python", pythons())
async def test_a_program_that_ends_is_started_again_and_its_output_is_kept(supervised: Supervised, python: str) -> None:
    port = free_port()
    await supervised.start(listener("web", port), python=python)
    first = await supervised.is_in("web", "running")
    assert first["ms"] > 0
    await supervised.until("web", lambda each: each["output"] == "listening\n")
    (pid,) = supervised.children()
    os.kill(pid, signal.SIGKILL)
    again = await supervised.until("web", lambda each: each["restarts"] == 1 and each["state"] == "running")
    assert again["since"] >= first["since"]
    with socket.create_connection(("127.0.0.1", port)):
        pass


async def test_why_it_ended_is_told_and_one_that_ends_too_often_has_failed(
    supervised: Supervised, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    code = f"echo x >> {count}; echo no such thing; exit 3"
    await supervised.start({"name": "bad", "argv": ["sh", "-c", code], "socket": "/nowhere"})
    told = await supervised.until("bad", lambda each: each["restarts"] >= 2)
    assert told["state"] in ("restarting", "starting")
    assert "no such thing" in told["output"]
    waiting = await supervised.is_in("bad", "restarting")
    assert waiting["detail"] == "it ended with exit code 3"


async def test_a_program_waits_for_those_that_it_needs(supervised: Supervised, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    late = f"while [ ! -e {gate} ]; do sleep 0.05; done; exec {sys.executable} -S -c '{LISTEN}' $0"
    port = free_port()
    await supervised.start(
        {"name": "first", "argv": ["sh", "-c", late, str(port)], "port": port},
        {"name": "second", "argv": ["sleep", "600"], "after": ["first"]},
        {"name": "third", "argv": ["sleep", "600"], "beside": ["first"]},
    )
    assert (await supervised.is_in("second", "waiting"))["detail"] == "it waits for first"
    assert (await supervised.is_in("third", "starting"))["ms"] is None
    gate.touch()
    await supervised.is_in("second", "running")
    await supervised.is_in("third", "running")


async def test_a_missing_program_is_said_and_the_rest_runs(supervised: Supervised) -> None:
    await supervised.start(
        {"name": "none", "argv": ["no-such-program"]},
        {"name": "above", "argv": ["sleep", "600"], "after": ["none"]},
        {"name": "without", "argv": ["sleep", "600"], "needs": ["/no/such/folder"]},
        {"name": "fine", "argv": ["sleep", "600"]},
    )
    await supervised.is_in("fine", "running")
    programs = supervised.programs()
    assert {name: each["state"] for name, each in programs.items()} == {
        "none": "missing", "above": "missing", "without": "missing", "fine": "running"
    }  # fmt: skip
    assert programs["none"]["detail"] == "no-such-program is not in this box"
    assert programs["above"]["detail"] == "it needs none, which is missing"
    assert programs["without"]["detail"] == "/no/such/folder is not in this box"


async def test_a_squatter_on_its_port_is_told_of_and_never_taken_for_the_program(supervised: Supervised) -> None:
    squatter = socket.create_server(("0.0.0.0", 0))
    port = squatter.getsockname()[1]
    await supervised.start(listener("web", port))
    blocked = await supervised.is_in("web", "blocked")
    assert f"another program listens on port {port}" in blocked["detail"]
    assert f"process {os.getpid()}" in blocked["detail"]
    squatter.close()
    assert (await supervised.is_in("web", "running"))["restarts"] == 0


async def test_who_takes_the_port_while_the_program_starts_does_not_make_it_ready(supervised: Supervised) -> None:
    port = free_port()
    await supervised.start({"name": "web", "argv": ["sh", "-c", "sleep 600"], "port": port})
    await supervised.is_in("web", "starting")
    with socket.create_server(("127.0.0.1", port)):
        looked = asyncio.get_running_loop().time() + 0.6  # several looks of the supervisor
        while asyncio.get_running_loop().time() < looked:
            assert supervised.programs()["web"]["state"] == "starting"
            await asyncio.sleep(0.05)


async def test_output_without_end_is_bounded(supervised: Supervised) -> None:
    await supervised.start({"name": "loud", "argv": ["sh", "-c", "yes no-end | head -c 30000000; sleep 600"]})
    told = await supervised.until("loud", lambda each: len(each["output"]) > 3000)
    assert len(told["output"]) <= 4096
    assert supervised.status.stat().st_size < 16_000


async def test_at_rest_it_uses_no_processor(supervised: Supervised) -> None:
    await supervised.start({"name": "calm", "argv": ["sleep", "600"]})
    await supervised.is_in("calm", "running")
    assert supervised.process is not None
    stat = Path(f"/proc/{supervised.process.pid}/status")

    def switches() -> int:
        return sum(int(line.split()[1]) for line in stat.read_text().splitlines() if "ctxt_switches" in line)

    await asyncio.sleep(0.2)
    before = switches()
    await asyncio.sleep(0.6)
    assert switches() - before <= 2


def test_locks_of_what_runs_no_more_are_removed_and_others_stay(tmp_path: Path) -> None:
    dead, reused, none = tmp_path / "dead", tmp_path / "reused", tmp_path / "none"
    dead.write_text("      4194000\n")
    reused.write_text(f"{os.getpid()}\n")  # a process, but none that has such a lock
    link, alive = tmp_path / "link", tmp_path / "alive"
    link.symlink_to("another-host-4194001")
    process = tmp_path / "chromium"
    process.symlink_to("/bin/sleep")
    running = subprocess.Popen([process, "600"])
    try:
        alive.symlink_to(f"host-{running.pid}")
        # A process gets its name a moment after it counts as started.
        while Path(f"/proc/{running.pid}/comm").read_text() != "chromium\n":
            assert running.poll() is None
        for path in (dead, reused, none, link, alive):
            remove_stale(str(path))
        assert sorted(each.name for each in tmp_path.iterdir()) == ["alive", "chromium"]
    finally:
        running.kill()
        running.wait()


def test_settings_of_the_user_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "some" / "init"
    service_supervisor.write_if_absent(str(path), "ours")
    assert path.read_text() == "ours"
    path.write_text("theirs")
    service_supervisor.write_if_absent(str(path), "ours")
    assert path.read_text() == "theirs"
